"""The id of a request, ours and unique, in the answer's `X-Request-ID`. Knows no surface."""

import os
import time
from collections.abc import Callable

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32, as ULIDs use
_FIVE_BITS = bytes(ord(_ALPHABET[byte & 31]) for byte in range(256))
_TIME_SHIFTS = tuple(range(45, -1, -5))
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
        self._ms = -1
        self._prefix = ""

    def __call__(self) -> str:
        """The next id."""
        ms = int(self._now() * 1000)
        if ms != self._ms:
            self._ms = ms
            self._prefix = "".join([_ALPHABET[ms >> shift & 31] for shift in _TIME_SHIFTS])
        if not self._drawn:
            chars = self._random_bytes(RANDOM_CHARS * DRAWN_AT_ONCE).translate(_FIVE_BITS).decode()
            self._drawn = [
                chars[at : at + RANDOM_CHARS] for at in range(0, len(chars), RANDOM_CHARS)
            ]
        return self._prefix + self._drawn.pop()
