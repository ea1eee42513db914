"""What decides the next token of one run beside the logits. Knows no model and no cache.

Everything here is the run's own: its counts, its place in a grammar, the key of its noise. So a run
that is taken up again elsewhere goes on with the same tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from worker.grammar.matcher import Matcher
from worker.sampling.params import Sampling
from worker.sampling.penalties import TokenCounts
from worker.sampling.sampler import draw, is_near_tie

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A chosen token. `logprob` and `top` (id, log-probability; likeliest first) where asked for.

    They are of the plain logits, before bias, penalties, grammar and temperature. `is_near_tie`:
    of a greedy choice, whether another token was as good but for rounding.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    is_near_tie: bool = False


class Chooser:
    """Chooses the tokens of one run. `number`: of the next token; it keys the noise.

    `masked`: ids that have no token. `matcher`: the grammar of the answer; it begins when `is_free`
    is taken away, behind the reasoning. `choices`: the texts of a choice as bytes, none otherwise.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int],
        *,
        number: int = 1,
        matcher: Matcher | None = None,
        is_free: bool = False,
        choices: "ChoiceTexts | None" = None,
    ) -> None:
        self.sampling = sampling
        self.number = number
        self.matcher = matcher
        self.is_free = is_free
        self.margin: float | None = None  # between the two best of a choice, once it was made
        self._choices = choices
        self._counts = TokenCounts(prompt)

    def choose(self, logits: Logits, masked: NDArray[np.int64]) -> Chosen:
        """The next token, which then counts as written. logits: (vocab,), changed in place.

        Order: bias, penalties, grammar, then those of `sampler.draw`.
        """
        logits[masked] = -np.inf
        sampling = self.sampling
        plain = logits.copy() if sampling.top_logprobs is not None else None
        if sampling.logit_bias:
            for token, value in sampling.logit_bias.items():
                logits[token] += value
        if sampling.has_penalties:
            self._counts.apply(logits, sampling)
        if self.matcher is not None and not self.is_free:
            logits[~self.matcher.allowed()] = -np.inf
            if self._choices is not None and self.margin is None:
                self.margin = self._choices.margin(logits)
        token = draw(logits, sampling, self.number)
        was_close = sampling.temperature == 0.0 and is_near_tie(logits, token)
        self.number += 1
        self._counts.add(token)
        if self.matcher is not None and not self.is_free:
            self.matcher.consume(token)
        chosen = Chosen(token) if plain is None else _with_logprobs(token, plain, sampling)
        return replace(chosen, is_near_tie=True) if was_close else chosen

    def skip(self, count: int) -> None:
        """Passes by the numbers of tokens that were put in, not chosen."""
        self.number += count

    def rewind(self, count: int, chosen: Sequence[int]) -> None:
        """The last `count` tokens were not written; `chosen`: those that were not put in."""
        self.number -= count
        for token in chosen:
            self._counts.remove(token)

    def follow(self, matcher: Matcher | None, *, retry: int | None = None) -> None:
        """Goes on by this grammar from the next token on, or by none.

        `retry`: how often something was written again, so that other noise decides.
        """
        self.matcher, self.is_free = matcher, self.is_free and matcher is None
        if retry is not None:
            self.sampling = replace(self.sampling, retry=retry)

    def copy(self) -> "Chooser":
        """The same state, which then goes its own way."""
        twin = Chooser(
            self.sampling,
            (),
            number=self.number,
            matcher=None if self.matcher is None else self.matcher.copy(),
            is_free=self.is_free,
            choices=self._choices,
        )
        twin.margin = self.margin
        twin._counts = self._counts.copy()
        return twin

    def state(self) -> tuple[object, ...]:
        """All of it in values that compare: equal states choose equal tokens from equal logits."""
        matcher = self.matcher
        grammar = None if matcher is None else (matcher.consumed, matcher.mask())
        return (self.sampling, self.number, self.is_free, self._counts.state(), grammar)


class ChoiceTexts:
    """The texts of a choice, and how clearly one of them leads. `token_bytes`: of each id."""

    def __init__(self, texts: Sequence[str], token_bytes: Sequence[bytes | None]) -> None:
        self._texts = [text.encode() for text in texts]
        self._token_bytes = token_bytes

    def margin(self, logits: Logits) -> float:
        """The best choice's share of the first token minus the second's. logits: masked, (vocab,).

        A token that several choices begin with counts for each of them.
        """
        ids = np.flatnonzero(logits > -np.inf)
        weights = np.exp(logits[ids].astype(np.float64) - float(logits[ids].max()))
        weights /= weights.sum()
        shares = [0.0] * len(self._texts)
        for token, weight in zip(ids.tolist(), weights.tolist(), strict=True):
            spelled = self._token_bytes[token] or b""
            for index, text in enumerate(self._texts):
                if spelled and text.startswith(spelled):
                    shares[index] += weight
        best = sorted(shares, reverse=True)
        return best[0] - best[1] if len(best) > 1 else 1.0


def _with_logprobs(token: int, plain: Logits, sampling: Sampling) -> Chosen:
    values = plain.astype(np.float64)
    values -= values.max()
    values -= np.log(np.exp(values).sum())
    # Ids without a token have none, however few there are.
    count = min(sampling.top_logprobs or 0, int((values > -np.inf).sum()))
    top: tuple[tuple[int, float], ...] = ()
    if count:
        likeliest = np.argpartition(-values, count - 1)[:count]
        order = likeliest[np.lexsort((likeliest, -values[likeliest]))]
        top = tuple((int(index), float(values[index])) for index in order)
    return Chosen(token, float(values[token]), top)
