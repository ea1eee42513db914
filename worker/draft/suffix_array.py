"""Where else a text had the tokens that it ends with now: sorted once, searched by bisection.

Knows no file, no thread and no drafter. A text is an array of words: ids, and between documents
negative words, which equal no id and so end every comparison.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ORDER = 8  # ids before a place by which it is sorted, the nearest first
CONTEXT = 32  # ids before a place that are compared to tell likelier places from others
AHEAD = 64  # ids of one continuation
PLACES = 64  # of those that match as long, looked at
GROUP = 2**20  # places sorted at once: about 50 MB while it lasts
MOST_ID = 2**24  # no vocabulary is larger; above it three ids do not fit into a sort key

Words = NDArray[np.int32]


class SuffixArray:
    """The places of one part of a text, sorted by what stands before them.

    A place is a word with an id before it and an id in it: the first id of a continuation. Sorting
    by what stands before, nearest first, finds the longest match of an end in one search; by what
    comes after, each length would need a search of its own.
    """

    def __init__(self, words: Words, start: int, places: Words, ends: NDArray[np.int64]) -> None:
        self.words = words  # whole text up to this part's end; at least CONTEXT words before start
        self.start = start
        self._places = places
        self._ends = ends  # of the places after each id, so that a search begins among those

    @property
    def size(self) -> int:
        """Words of its part of the text."""
        return len(self.words) - self.start

    def match(self, nearest: list[int], least: int) -> "Match | None":
        """The places that the longest part of `nearest` stands before; None if under `least` ids.

        nearest: the last ids of a sequence, backwards.
        """
        query, places = nearest[:ORDER], self._places
        if not query or query[0] >= len(self._ends):
            return None
        low = int(self._ends[query[0] - 1]) if query[0] else 0
        high = int(self._ends[query[0]])
        before = self._reader(len(query))
        at = bisect_left(places, query, low, high, key=before)
        around = places[max(at - 1, low) : min(at + 1, high)]
        length = max((_common(before(place), query) for place in around), default=0)
        if length < least:
            return None
        query, before = query[:length], self._reader(length)
        first = bisect_left(places, query, low, at, key=before)
        return Match(self, length, first, bisect_right(places, query, at, high, key=before))

    def continuations(
        self, picks: NDArray[np.int64], nearest: list[int]
    ) -> list[tuple[int, list[int]]]:
        """For each picked place: ids before it that are as in `nearest`, and the ids from it on."""
        places = self._places[picks].astype(np.int64)[:, None]
        ahead = places + np.arange(AHEAD)
        ids = self.words.take(ahead, mode="clip")  # (picks, AHEAD)
        counts = _true_prefix((ids >= 0) & (ahead < len(self.words)))
        before = self.words.take(places - 1 - np.arange(len(nearest)), mode="clip")
        lengths = _true_prefix(before == np.asarray(nearest, dtype=np.int32))
        rows = zip(lengths.tolist(), ids, counts.tolist(), strict=True)
        return [(length, row[:count].tolist()) for length, row, count in rows]

    def _reader(self, count: int) -> Callable[[int], list[int]]:
        words = self.words
        return lambda place: words[place - 1 : place - 1 - count : -1].tolist()


@dataclass(frozen=True, slots=True)
class Match:
    """Places `first` to `last` (not itself) of an array, after `length` ids that match."""

    array: SuffixArray
    length: int
    first: int
    last: int


def find(
    arrays: Sequence[SuffixArray], tail: Sequence[int], least: int
) -> tuple[int, list[Sequence[int]]]:
    """How many ids at the end of `tail` stand elsewhere too (at most ORDER), and what came there.

    (0, []) if fewer than `least`. Up to PLACES continuations of up to AHEAD ids, each within its
    document; those whose context is like the tail for longest, over ORDER ids too, come first. Of
    more places that many are looked at, evenly over all.
    """
    nearest = [int(token) for token in tail[-CONTEXT:]][::-1]
    best: list[Match] = []
    for array in arrays:
        match = array.match(nearest, max(1, least, best[0].length if best else 0))
        if match is not None:
            best = [*best, match] if best and best[0].length == match.length else [match]
    if not best:
        return 0, []
    total = sum(match.last - match.first for match in best)
    picks = np.arange(min(total, PLACES)) * total // min(total, PLACES)
    found: list[tuple[int, list[int]]] = []
    for match in best:
        count = match.last - match.first
        own = picks[(picks >= 0) & (picks < count)]
        found += match.array.continuations(own + match.first, nearest)
        picks = picks - count
    found.sort(key=lambda pair: -pair[0])
    return best[0].length, [ids for _, ids in found]


def sort_part(words: Words, start: int, is_over: Callable[[], bool]) -> SuffixArray | None:
    """The array over a text from a word on; None when `is_over` says that nobody waits any more.

    words: int32, ids below MOST_ID, at least CONTEXT words before `start`. Takes about 0.4 s a
    million words, and beside the result (4 bytes a word) 4 more and those of a group.
    """
    assert start >= CONTEXT, "a comparison must not run out of the text"
    nearest = words[start - 1 : -1]
    is_place = (nearest >= 0) & (words[start:] >= 0)
    counts = np.zeros(int(nearest.max(initial=0, where=is_place)) + 1, dtype=np.int64)
    for at in range(0, len(nearest), GROUP):
        part = slice(at, at + GROUP)
        counts += np.bincount(nearest[part].compress(is_place[part]), minlength=len(counts))
    ends = np.cumsum(counts)
    sorted_places, filled = np.empty(int(ends[-1]), dtype=np.int32), 0
    for low, high in _runs(ends):
        places = np.flatnonzero((nearest >= low) & (nearest < high) & is_place) + start
        for group in _groups(words, places.astype(np.int32), 1 if high - low == 1 else 0):
            if is_over():
                return None
            sorted_places[filled : filled + len(group)] = group
            filled += len(group)
    return SuffixArray(words, start, sorted_places, ends)


def _runs(ends: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of ids that have at most GROUP places together, or one id that has more."""
    low, before = 0, 0
    while low < len(ends):
        high = max(low + 1, int(np.searchsorted(ends, before + GROUP, side="right")))
        if ends[high - 1] > before:
            yield low, high
        low, before = high, int(ends[high - 1])


def _groups(words: Words, places: Words, depth: int) -> Iterator[Words]:
    """Places that agree in `depth` ids, sorted by the others, in pieces that follow each other."""
    if len(places) <= GROUP or depth == ORDER:
        yield _sorted_group(words, places, depth)
        return
    keys = _keys(words, places, depth)
    for low, high in _runs(np.cumsum(np.bincount(keys))):
        part = places.compress((keys >= low) & (keys < high))
        yield from _groups(words, part, depth + 1 if high - low == 1 else depth)


def _sorted_group(words: Words, places: Words, depth: int) -> Words:
    """Sorted by as many ids at a time as fit into 63 bits beside the rank by those before.

    Stable, so that equal places stay in the order of the text.
    """
    rank = np.zeros(len(places), dtype=np.int64)
    rank_bits = len(places).bit_length()
    while depth < ORDER:
        ids = [_keys(words, places, depth)]
        bits = int(ids[0].max(initial=1)).bit_length()
        key = (rank << bits) | ids[0]
        depth, used = depth + 1, rank_bits + bits
        while depth < ORDER:
            more = _keys(words, places, depth)
            bits = int(more.max(initial=1)).bit_length()
            if used + bits > 63:
                break
            key = (key << bits) | more
            depth, used = depth + 1, used + bits
        order = np.argsort(key, kind="stable")
        places, key = places.take(order), key.take(order)
        rank = np.concatenate(([0], np.cumsum(key[1:] != key[:-1])))
        if rank[-1] == len(places) - 1:
            break
    return places


def _keys(words: Words, places: Words, depth: int) -> NDArray[np.int64]:
    """The word `depth` ids before the one before each place: 0 for a mark, an id plus 1."""
    # `take` lets other threads run meanwhile; an index in brackets holds the interpreter.
    return np.maximum(words.take(places - (1 + depth)), -1).astype(np.int64) + 1


def _true_prefix(rows: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How many values at the start of each row are true."""
    lengths: NDArray[np.int64] = np.where(rows.all(axis=1), rows.shape[1], rows.argmin(axis=1))
    return lengths


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many values two sequences share from their start."""
    for count, (a, b) in enumerate(zip(one, other, strict=True)):
        if a != b:
            return count
    return len(one)
