"""The shortest way to complete what a grammar has begun. Knows no run and no model.

For answers that are cut at a cap of ours: a title's JSON must be whole all the same.
"""

import heapq
from collections.abc import Iterable, Sequence

from worker.grammar.matcher import GrammarFault, Matcher

MOST_EXPANSIONS = 4_096
CLOSING = '"}],:01elnrstuaf'  # what closes JSON, and the letters of true, false and null


def closing_ids(token_bytes: Sequence[bytes | None]) -> tuple[int, ...]:
    """The ids of the single characters that the search may write."""
    wanted = {char.encode() for char in CLOSING}
    return tuple(i for i, spelled in enumerate(token_bytes) if spelled in wanted)


def shortest_end(
    matcher: Matcher, ids: Iterable[int], token_bytes: Sequence[bytes | None]
) -> tuple[int, ...] | None:
    """Ids after which the grammar accepts, fewest bytes first; None where none were found.

    Searched are tokens that are forced, and `ids`.
    """
    heap: list[tuple[int, int, tuple[int, ...], Matcher]] = [(0, 0, (), matcher.copy())]
    ids, count = tuple(ids), 0
    for _ in range(MOST_EXPANSIONS):
        if not heap:
            return None
        size, _, path, at = heapq.heappop(heap)
        if at.is_accepting:
            return path
        for steps in _ways_on(at, ids):
            count += 1
            after = at.copy()
            try:
                for token in steps:
                    after.consume(token)
            except GrammarFault:
                continue
            more = sum(len(token_bytes[token] or b"") for token in steps)
            heapq.heappush(heap, (size + more, count, path + steps, after))
    return None


def _ways_on(matcher: Matcher, ids: tuple[int, ...]) -> list[tuple[int, ...]]:
    if forced := matcher.forced():
        return [tuple(forced)]
    allowed = matcher.allowed()
    return [(token,) for token in ids if allowed[token]]
