"""Which conversations had a request with tools a moment ago. Knows no profile and no text.

What a client asks beside such a request, without tools, is likely a side request.
"""

from collections import OrderedDict
from collections.abc import Iterable

NEAR_MS = 10_000
MOST_KEPT = 10_000  # conversations and keys; the oldest are forgotten first


class Nearby:
    """Remembers when a conversation, or a key's client, last asked with tools."""

    def __init__(self) -> None:
        self._seen_ms: OrderedDict[tuple[str, ...], int] = OrderedDict()

    def saw(self, whose: Iterable[tuple[str, ...]], now_ms: int) -> None:
        """A request with tools came: of these conversations, of this key and client."""
        for one in whose:
            self._seen_ms[one] = now_ms
            self._seen_ms.move_to_end(one)
        while len(self._seen_ms) > MOST_KEPT:
            self._seen_ms.popitem(last=False)

    def is_near(self, whose: Iterable[tuple[str, ...]], now_ms: int) -> bool:
        """Whether one of them asked with tools within the last ten seconds."""
        return any(now_ms - self._seen_ms.get(one, -NEAR_MS - 1) <= NEAR_MS for one in whose)
