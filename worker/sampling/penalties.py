"""What a sequence has written so far, and how that changes a row of logits. Knows no run."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from worker.sampling.params import Sampling


class TokenCounts:
    """How often each id was written by choice, and which ids the prompt holds."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._written: dict[int, int] = {}
        self._prompt = np.unique(np.asarray(prompt, dtype=np.int64))

    def add(self, token: int) -> None:
        """Counts a token that was chosen; what others put into the sequence is not counted."""
        self._written[token] = self._written.get(token, 0) + 1

    def remove(self, token: int) -> None:
        """Takes back what `add` has counted."""
        self._written[token] -= 1
        if not self._written[token]:
            del self._written[token]

    def apply(self, logits: NDArray[np.float32], sampling: Sampling) -> None:
        """Lowers (or raises) the logits of what was there before, in place. logits: (vocab,).

        Presence and frequency look at what was written, repetition at the prompt as well.
        Source: OpenAI API reference, "frequency and presence penalties"; repetition: CTRL
        (Keskar et al. 2019), 4.1.
        """
        written = np.fromiter(self._written, dtype=np.int64, count=len(self._written))
        if sampling.presence_penalty or sampling.frequency_penalty:
            counts = np.fromiter(self._written.values(), dtype=np.float32, count=len(written))
            logits[written] -= sampling.presence_penalty + sampling.frequency_penalty * counts
        if (factor := sampling.repetition_penalty) != 1.0:
            seen = np.union1d(self._prompt, written)
            values = logits[seen]
            logits[seen] = np.where(values > 0, values / factor, values * factor)

    def copy(self) -> "TokenCounts":
        """The same counts, which then go their own way."""
        twin = TokenCounts(())
        twin._written, twin._prompt = dict(self._written), self._prompt
        return twin

    def state(self) -> tuple[object, ...]:
        """All of it in values that compare."""
        return (tuple(sorted(self._written.items())), self._prompt.tobytes())
