"""Where one run stands in its grammar. Knows no form of grammar and no logits.

A thin face of llguidance's matcher: it counts what was consumed, and turns the library's silent
error states into exceptions. No matcher is ever shared by two runs.
"""

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray


class GrammarFault(Exception):
    """The library gave up on a grammar that it had compiled: too complex at this place."""


class Matcher:
    """The state of one run. `width`: ids that a row of logits has."""

    def __init__(self, matcher: LLMatcher, width: int, consumed: tuple[int, ...] = ()) -> None:
        self._consumed = list(consumed)
        self._matcher = matcher
        self._width = width

    def copy(self) -> "Matcher":
        """The same state, which then goes its own way."""
        return Matcher(self._matcher.deep_copy(), self._width, self.consumed)

    @property
    def consumed(self) -> tuple[int, ...]:
        """The ids that brought it here."""
        return tuple(self._consumed)

    @property
    def is_accepting(self) -> bool:
        """Whether the answer may end here."""
        return bool(self._matcher.is_accepting())

    def mask(self) -> bytes:
        """One bit an id, lowest first: whether it may come next; end ids where all is complete."""
        bits = allocate_token_bitmask(1, self._width)
        fill_next_token_bitmask(self._matcher, bits, 0)
        self._check()
        return bits.tobytes()

    def allowed(self) -> NDArray[np.bool_]:
        """Which ids may come next: (width,)."""
        bits = np.frombuffer(self.mask(), dtype=np.uint8)
        return np.unpackbits(bits, count=self._width, bitorder="little").astype(np.bool_)

    def valid_count(self, tokens: Sequence[int]) -> int:
        """How many of the tokens, from the first on, could be consumed. Consumes none."""
        # On a copy, which costs next to nothing: a guess may run into the library's limits where
        # what is written never does, and a matcher that has failed once has failed for good.
        return int(self._matcher.deep_copy().validate_tokens(list(tokens)))

    def forced(self) -> list[int]:
        """Tokens that spell what must come next whatever is chosen. Consumes none."""
        return list(self._matcher.deep_copy().compute_ff_tokens())

    def consume(self, token: int) -> None:
        """Goes on by a token that was allowed. Raises: GrammarFault."""
        if not self._matcher.consume_token(token):
            raise GrammarFault(sentence_of(self._matcher.get_error()))
        self._consumed.append(token)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarFault(sentence_of(self._matcher.get_error()))


def sentence_of(error: str) -> str:
    """The library's sentence, without its dump of state and grammar."""
    first, *more = error.split("\n<state>")[0].split("\n")
    # A regular expression is quoted under the first line, and below that stands what is wrong.
    reasons = [line for line in more if line.startswith("error: ")]
    return " ".join([first, *reasons])[:300]
