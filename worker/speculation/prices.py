"""What rounds cost on this machine, as it was measured. Knows no clock, no model and no file."""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Literal, TypeVar

Shape = Literal["chain", "tree"]
SHAPES: tuple[Shape, ...] = ("chain", "tree")
T = TypeVar("T")

CONTEXTS = (256, 1024, 4096, 8192, 16_384, 32_768)  # tokens
ROWS = (1, 2, 4, 8, 12, 16, 17, 20, 24, 32, 48, 64)
CONTEXT_STEP = 64  # tokens of context within which prices count as the same
MOST_CELLS = 64  # of one column or row of a table that is read; ours have 12 at most
MOST_MS = 1e9


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

    def staircase(self) -> dict[int, float]:
        """By rows: how many plain steps a chain of so many costs, where contexts are shortest."""
        shortest = min(self.verify)
        chain = self.verify[shortest]["chain"]
        plain = self.plain[min(self.plain)]
        return {rows: (chain[rows] + self.commit["chain"]) / plain for rows in sorted(chain)[1:]}

    @lru_cache(maxsize=512)  # noqa: B019 - tables live long, and their places push each other out
    def _at(self, length: int, most_rows: int) -> RoundPrices:
        columns, place = self._columns, math.log2(max(length, 1))
        plain = self._plain
        return RoundPrices(
            between([at for at, _ in plain], [value for _, value in plain], place),
            _line(columns["chain"], place, most_rows),
            _line(columns["tree"], place, most_rows),
        )

    @cached_property
    def _plain(self) -> list[tuple[float, float]]:
        return [(math.log2(context), ms) for context, ms in sorted(self.plain.items())]

    @cached_property
    def _columns(self) -> dict[Shape, list[tuple[float, tuple[float, ...]]]]:
        """By shape: for each context its logarithm, and the price of each number of rows."""
        return {
            shape: [
                (math.log2(context), _of_rows(of_shape[shape], self.commit[shape]))
                for context, of_shape in sorted(self.verify.items())
            ]
            for shape in SHAPES
        }

    def to_fields(self) -> dict[str, Any]:
        """The table as JSON."""
        return {
            "plain": _written(self.plain),
            "verify": {
                str(context): {shape: _written(of_shape[shape]) for shape in SHAPES}
                for context, of_shape in sorted(self.verify.items())
            },
            "commit": dict(self.commit),
        }


# Before anything was measured no draft is worth its price.
UNMEASURED = Prices(
    {256: 1.0}, {256: {"chain": {1: math.inf}, "tree": {1: math.inf}}}, {"chain": 0.0, "tree": 0.0}
)


def prices_from(fields: Any) -> Prices:
    """The table that `to_fields` gave. Raises: ValueError for anything else."""
    plain, verify, commit = _named(fields, ("plain", "verify", "commit"))
    return Prices(
        _column(plain),
        _by_number(verify, lambda of_shape: _by_shape(of_shape, _column)),
        _by_shape(commit, _ms),
    )


def between(places: Sequence[float], values: Sequence[float], place: float) -> float:
    """Linear between the two nearest places, flat outside of them."""
    at = bisect_left(places, place)
    if at == 0:
        return values[0]
    if at == len(places):
        return values[-1]
    share = (place - places[at - 1]) / (places[at] - places[at - 1])
    return values[at - 1] + share * (values[at] - values[at - 1])


def _column(fields: Any) -> dict[int, float]:
    return _by_number(fields, _ms)


def _by_shape(fields: Any, read: Callable[[Any], T]) -> dict[Shape, T]:
    chain, tree = _named(fields, SHAPES)
    return {"chain": read(chain), "tree": read(tree)}


def _named(fields: Any, names: Sequence[str]) -> list[Any]:
    if not isinstance(fields, dict) or set(fields) != set(names):
        raise ValueError(f"not a table of {', '.join(names)}")
    return [fields[name] for name in names]


def _by_number(fields: Any, read: Callable[[Any], T]) -> dict[int, T]:
    if not isinstance(fields, dict) or not 1 <= len(fields) <= MOST_CELLS:
        raise ValueError("not a table by numbers")
    found = {int(key): read(value) for key, value in fields.items()}
    if min(found) < 1:
        raise ValueError("a number of tokens or rows below 1")
    return found


def _ms(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_MS:
        raise ValueError("a time that is no positive number")
    return float(value)


def _written(column: Mapping[int, float]) -> dict[str, float]:
    return {str(at): ms for at, ms in sorted(column.items())}


def _of_rows(column: Mapping[int, float], commit_ms: float) -> tuple[float, ...]:
    known = sorted(column)
    values = [column[at] + commit_ms for at in known]
    return tuple(between(known, values, rows) for rows in range(1, max(ROWS) + 1))


def _line(
    columns: Sequence[tuple[float, tuple[float, ...]]], place: float, most_rows: int
) -> tuple[float, ...]:
    """Between the two nearest columns, number by number."""
    if place <= columns[0][0]:
        return columns[0][1][:most_rows]
    for (left, low), (right, high) in pairwise(columns):
        if place < right:
            share = (place - left) / (right - left)
            pairs = zip(low[:most_rows], high[:most_rows], strict=True)
            return tuple(a + share * (b - a) for a, b in pairs)
    return columns[-1][1][:most_rows]
