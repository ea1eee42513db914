"""The id of a request, ours and unique, in the answer's `X-Request-ID`. Knows no surface."""

import os
import time
from collections.abc import Callable

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32, as ULIDs use
_FIVE_BITS = bytes(ord(_ALPHABET[byte & 31]) for byte in range(256))
_SHIFTS = tuple(range(35, -1, -5))  # of a time in units of 1,024 ms: 8 characters
RANDOM_CHARS = 16
DRAWN_AT_ONCE = 256  # ids that one reading of the system's random source is good for


class RequestIds:
    """Makes ULIDs: 48 bits of milliseconds, 80 random bits, 26 characters that sort by time.

    Source: github.com/ulid/spec.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.time,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._now = now
        self._random_bytes = random_bytes
        self._drawn: list[str] = []
        self._span = -1
        self._prefix = ""

    def __call__(self) -> str:
        """The next id."""
        ms = int(self._now() * 1000)
        span = ms >> 10
        if span != self._span:
            self._span = span
            self._prefix = "".join([_ALPHABET[span >> shift & 31] for shift in _SHIFTS])
        if not self._drawn:
            chars = self._random_bytes(RANDOM_CHARS * DRAWN_AT_ONCE).translate(_FIVE_BITS).decode()
            self._drawn = [
                chars[at : at + RANDOM_CHARS] for at in range(0, len(chars), RANDOM_CHARS)
            ]
        return self._prefix + _ALPHABET[ms >> 5 & 31] + _ALPHABET[ms & 31] + self._drawn.pop()
