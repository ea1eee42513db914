"""What rounds cost on this machine, as it was measured. Knows no clock, no model and no file."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Shape = Literal["chain", "tree"]

CONTEXTS = (256, 1024, 4096, 8192, 16_384, 32_768)  # tokens
ROWS = (1, 2, 4, 8, 12, 16, 17, 20, 24, 32, 48, 64)
CONTEXT_STEP = 64  # tokens of context within which prices count as the same


@dataclass(frozen=True, slots=True)
class RoundPrices:
    """Milliseconds at one length of context. `chain`, `tree`: a verify of so many rows, from 1 on;
    what is committed afterwards is in them."""

    plain: float
    chain: tuple[float, ...]
    tree: tuple[float, ...]

    def verify_ms(self, rows: int, *, is_chain: bool) -> float:
        """Of one verify and its commit."""
        return (self.chain if is_chain else self.tree)[rows - 1]


@dataclass(frozen=True, eq=False)
class Prices:
    """The table: milliseconds by tokens of context, shape and rows; `commit` by shape alone.

    Linear between rows and in the logarithm of the context, flat outside of what was measured.
    """

    plain: Mapping[int, float]
    verify: Mapping[int, Mapping[Shape, Mapping[int, float]]]
    commit: Mapping[Shape, float]

    def at(self, length: int, most_rows: int) -> RoundPrices:
        """The prices behind `length` tokens, for up to `most_rows` rows."""
        return self._at(length // CONTEXT_STEP * CONTEXT_STEP, most_rows)

    @lru_cache(maxsize=512)  # noqa: B019 - a table lives as long as its worker
    def _at(self, length: int, most_rows: int) -> RoundPrices:
        place = math.log2(max(length, 1))
        known = sorted(self.verify)
        logs = [math.log2(context) for context in known]

        def of(shape: Shape) -> tuple[float, ...]:
            columns = [self.verify[context][shape] for context in known]
            return tuple(
                _between(logs, [_of_rows(column, rows) for column in columns], place)
                + self.commit[shape]
                for rows in range(1, most_rows + 1)
            )

        plain = sorted(self.plain)
        times = [self.plain[context] for context in plain]
        return RoundPrices(
            _between([math.log2(context) for context in plain], times, place),
            of("chain"),
            of("tree"),
        )


# Before anything was measured no draft is worth its price.
UNMEASURED = Prices(
    {256: 1.0}, {256: {"chain": {1: math.inf}, "tree": {1: math.inf}}}, {"chain": 0.0, "tree": 0.0}
)


def _of_rows(column: Mapping[int, float], rows: int) -> float:
    known = sorted(column)
    return _between(known, [column[at] for at in known], rows)


def _between(places: Sequence[float], values: Sequence[float], place: float) -> float:
    """Linear between the two nearest places, flat outside of them."""
    at = bisect_left(places, place)
    if at == 0:
        return values[0]
    if at == len(places):
        return values[-1]
    share = (place - places[at - 1]) / (places[at] - places[at - 1])
    return values[at - 1] + share * (values[at] - values[at - 1])
