"""Measures what rounds cost, one forward at a time. Knows no model, no device and no file.

What says most is measured first, so that a table can be made whenever the time is up. Within a wave
the cells take turns: a moment of other load on the machine falls on many of them and spoils none.
Each wave has a plain step among them, and its times are scaled by that: load that lasts makes all
of a wave slower, and what counts is how many plain steps a verify costs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeVar

from worker.speculation.prices import CONTEXTS, ROWS, SHAPES, Prices, Shape, between
from worker.speculation.tree import DraftTree, Source, only_root

T = TypeVar("T")
# Verifies a tree behind so many tokens and commits a path of it; the milliseconds of both.
Trial = Callable[[int, DraftTree, Sequence[int]], tuple[float, float]]

DROPPED = 2  # first samples of a cell: compilers and caches are not warm
LATER_CONTEXTS = 2  # halvings that the shortest context is ahead of the others
IN_TURN = 6  # cells of a wave beside the plain step
LEAST_MS = 0.001  # below what the clock can tell
SPREAD = 2_654_435_761  # odd: ids of neighbouring nodes lie far apart


@dataclass(frozen=True, slots=True)
class Scope:
    """What is measured: behind how many tokens, with how many rows, the root included.

    `samples`: kept of each cell; `limit_s`: of measuring, in all. Tokens are below `vocab_size`.
    """

    contexts: tuple[int, ...]
    rows: tuple[int, ...]
    samples: int
    limit_s: float
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of the table."""

    context: int
    shape: Shape | Literal["plain"]
    rows: int


@dataclass(frozen=True, slots=True)
class _Times:
    verify_ms: float
    commit_ms: float


class Calibration:
    """One table in the making. `clock`: seconds; time between two steps is not counted."""

    def __init__(self, scope: Scope, clock: Callable[[], float]) -> None:
        self.scope = scope
        self.spent_s = 0.0
        self._clock = clock
        self._longest_s = 0.0
        self._turns = _turns(scope)
        self._taken: list[dict[Cell, list[_Times]]] = []  # of each wave

    @property
    def length(self) -> int:
        """Tokens that the slot of the trials must have room for."""
        return max(self.scope.contexts) + max(self.scope.rows)

    def step(self, trial: Trial) -> bool:
        """Measures once; whether there is more to measure, and time for it."""
        turn = next(self._turns, None)
        if turn is None:
            return False
        wave, cell = turn
        began_s = self._clock()
        tree, path = trial_tree(cell, self.scope.vocab_size)
        times = _Times(*trial(cell.context, tree, path))
        if wave == len(self._taken):
            self._taken.append({})
        self._taken[wave].setdefault(cell, []).append(times)
        took_s = self._clock() - began_s
        self.spent_s += took_s
        self._longest_s = max(self._longest_s, took_s)
        return self.spent_s + self._longest_s <= self.scope.limit_s

    def prices(self) -> Prices | None:
        """The table by what is known; None when not even a plain step is."""
        known = self._medians()
        plain = {cell.context: times for cell, times in known.items() if cell.shape == "plain"}
        shortest = min(self.scope.contexts)
        if shortest not in plain:
            return None
        base = self._beyond(_column(known, plain, shortest, "chain"))
        forked = _filled(_column(known, plain, shortest, "tree"), base)
        verify: dict[int, dict[Shape, dict[int, float]]] = {}
        for context in plain:
            chain = _filled(_column(known, plain, context, "chain"), base)
            tree = {rows: max(LEAST_MS, chain[rows] + forked[rows] - base[rows]) for rows in base}
            verify[context] = {"chain": chain, "tree": tree}
        steps = {context: times.verify_ms + times.commit_ms for context, times in plain.items()}
        return Prices(steps, verify, _commits(known))

    def _medians(self) -> dict[Cell, _Times]:
        """Of all cells that half of their samples are there of, the dropped ones apart."""
        kept = [{cell: taken[DROPPED:] for cell, taken in wave.items()} for wave in self._taken]
        step = Cell(min(self.scope.contexts), "plain", 1)
        steps_ms = [times.verify_ms for wave in kept for times in wave[step]]
        known: dict[Cell, _Times] = {}
        for wave in kept:
            for cell, some in wave.items():
                if 2 * len(some) >= self.scope.samples:
                    scale = _median_ms(steps_ms) / _median_ms(
                        times.verify_ms for times in wave[step]
                    )
                    known[cell] = _Times(
                        scale * _median_ms(times.verify_ms for times in some),
                        scale * _median_ms(times.commit_ms for times in some),
                    )
        return known

    def _beyond(self, column: dict[int, float]) -> dict[int, float]:
        """With the most rows there may be. Were they not reached, each costs what one costs in the
        longest verify that was: never less than in truth."""
        last, most = max(column), max(self.scope.rows)
        return column if last == most else {**column, most: column[last] * most / last}


def scope_of(
    *, max_len: int, most_rows: int, vocab_size: int, samples: int, limit_s: float
) -> Scope:
    """What a worker whose sequences have up to `max_len` tokens needs to know."""
    most = max(1, min(most_rows, max_len - 1))
    longest = max(1, max_len - most)  # all rows must have a position
    contexts = {min(context, longest) for context in CONTEXTS if context <= max_len}
    rows = {rows for rows in ROWS if rows < most} | {most}
    return Scope(
        tuple(sorted(contexts or {longest})), tuple(sorted(rows)), samples, limit_s, vocab_size
    )


def trial_tree(cell: Cell, vocab_size: int) -> tuple[DraftTree, tuple[int, ...]]:
    """A tree of a cell's shape, and the path that is committed: half as deep as the tree.

    The path of a forked tree is in its second branch, so that the cache has rows to move. Its
    tokens differ, for experts are chosen by token.
    """
    rows = cell.rows
    if cell.shape == "plain":
        return only_root(0), (0,)
    parents = list(range(-1, rows - 1))
    path: tuple[int, ...] = tuple(range(1 + rows // 2))
    if cell.shape == "tree":
        second = 1 + (rows - 1) // 2
        parents[second] = 0
        path = (0, *range(second, second + (rows - second + 1) // 2))
    tokens = tuple(node * SPREAD % vocab_size for node in range(rows))
    sources = (Source(0), *[Source.LOOKUP] * (rows - 1))
    return DraftTree(tokens, tuple(parents), (1.0,) * rows, sources), path


def waves(scope: Scope) -> Iterator[Sequence[Cell]]:
    """All cells, a few at a time, halving the gaps between rows, and between contexts. The plain
    step of the shortest context is in all waves; the first is small, for with it there is a table.

    The stairs of the shortest context come first, for they are in all others. Forks come after
    chains of as many rows, and only there: both are rows of the same kind in the same forward.
    """
    contexts, rows = coarse_first(scope.contexts), coarse_first(scope.rows[1:]) or [[]]
    ordered: dict[int, list[Cell]] = {}
    for level, context in _numbered(contexts):
        late = level + LATER_CONTEXTS if level else 0
        ordered.setdefault(late, []).append(Cell(context, "plain", 1))
        for depth, count in _numbered(rows):
            ordered.setdefault(late + depth, []).append(Cell(context, "chain", count))
            if level == 0 and count > 2:  # fewer do not fork
                ordered.setdefault(late + depth + 1, []).append(Cell(context, "tree", count))
    cells = [cell for _, some in sorted(ordered.items()) for cell in some]
    step = cells.pop(0)
    yield [step, *cells[:1]]
    for start in range(1, len(cells), IN_TURN):
        yield [step, *cells[start : start + IN_TURN]]


def _numbered(levels: Sequence[Sequence[T]]) -> Iterator[tuple[int, T]]:
    return ((number, item) for number, level in enumerate(levels) for item in level)


def coarse_first(items: Sequence[T]) -> list[list[T]]:
    """The first, then the last, then what lies in the middle of each gap, again and again."""
    levels = [[item] for item in (*items[:1], *items[1:][-1:])]
    gaps = [(0, len(items) - 1)]
    while gaps := [(left, right) for left, right in gaps if right - left > 1]:
        middles = [(left + right) // 2 for left, right in gaps]
        levels.append([items[middle] for middle in middles])
        pairs = zip(gaps, middles, strict=True)
        gaps = [half for (left, right), at in pairs for half in ((left, at), (at, right))]
    return levels


def _turns(scope: Scope) -> Iterator[tuple[int, Cell]]:
    for number, wave in enumerate(waves(scope)):
        for _ in range(DROPPED + scope.samples):
            yield from ((number, cell) for cell in wave)


def _median_ms(times_ms: Iterable[float]) -> float:
    return max(LEAST_MS, median(times_ms))


def _column(
    known: Mapping[Cell, _Times], plain: Mapping[int, _Times], context: int, shape: Shape
) -> dict[int, float]:
    """What was measured of it. One row is a plain step, whatever the shape."""
    column = {1: plain[context].verify_ms}
    for cell, times in known.items():
        if (cell.context, cell.shape) == (context, shape):
            column[cell.rows] = times.verify_ms
    return column


def _filled(column: Mapping[int, float], base: Mapping[int, float]) -> dict[int, float]:
    """A column with a price for all rows of the base.

    What a longer context or a fork adds grows evenly with the rows; the stairs are those of the
    weights, which all columns share. What a fork adds is the same behind all contexts.
    """
    places = sorted(rows for rows in column if rows in base)
    added = [column[rows] - base[rows] for rows in places]
    return {rows: max(LEAST_MS, base[rows] + between(places, added, rows)) for rows in base}


def _commits(known: Mapping[Cell, _Times]) -> dict[Shape, float]:
    """Of a shape over all its cells; while there is none of it, of every draft or step."""
    found: dict[Shape, float] = {}
    for shape in SHAPES:
        times = [times.commit_ms for cell, times in known.items() if cell.shape == shape]
        found[shape] = median(times or [times.commit_ms for times in known.values()])
    return found
