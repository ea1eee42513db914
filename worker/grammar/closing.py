"""A short way to complete what a grammar has begun. Knows no run and no model.

For answers that are cut at a cap of ours: a title's JSON must be whole all the same.
"""

from collections.abc import Sequence

import numpy as np

from worker.grammar.matcher import GrammarFault, Matcher

MOST_STEPS = 4_096
OTHERS = 8  # ways on that are tried where none of the preferred ones is
# In the order in which they are tried: what ends JSON, then what leads on to an end.
PREFERRED = '}]",:0123456789-abcdeflnrstu{[\\ '


class FormCloser:
    """Completes forms in one vocabulary. `token_bytes`: of each id."""

    def __init__(self, token_bytes: Sequence[bytes | None]) -> None:
        ids = {spelled: i for i, spelled in enumerate(token_bytes) if spelled}
        chars = (char.encode() for char in PREFERRED)
        self._preferred = [ids[char] for char in chars if char in ids]
        self._quote = ids.get(b'"')

    def find(self, matcher: Matcher) -> tuple[int, ...] | None:
        """Ids after which the grammar accepts, or None where a bounded search found none."""
        path: list[int] = []
        ways = [(matcher.copy(), self._ways_on(matcher))]
        for _ in range(MOST_STEPS):
            if not ways:
                return None
            at, open_ways = ways[-1]
            if at.is_accepting:
                return tuple(path)
            if not open_ways:
                ways.pop()
                if path:
                    path.pop()
                continue
            token, after = open_ways.pop(0), at.copy()
            try:
                after.consume(token)
            except GrammarFault:
                continue
            path.append(token)
            ways.append((after, self._ways_on(after)))
        return None

    def _ways_on(self, matcher: Matcher) -> list[int]:
        """Ids that may come next, the most promising first."""
        allowed = matcher.allowed()
        ways = [token for token in self._preferred if allowed[token]]
        if len(ways) == len(self._preferred) and self._quote is not None:
            return [self._quote]  # inside a free text, which nothing else ends
        # Else whatever goes on: the middle of a character, letters that a choice offers.
        return ways or np.flatnonzero(allowed)[:OTHERS].tolist()
