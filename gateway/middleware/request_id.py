"""The id of a request, ours and unique, in the answer's `X-Request-ID`. Knows no surface."""

import os
import time
from collections.abc import Callable

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32, as ULIDs use
_PAIRS = [high + low for high in _ALPHABET for low in _ALPHABET]  # ten bits each
_TIME_SHIFTS = tuple(range(40, -1, -10))
_RANDOM_SHIFTS = tuple(range(70, -1, -10))
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
        self._drawn = b""
        self._at = 0
        self._ms = -1
        self._prefix = ""

    def __call__(self) -> str:
        """The next id."""
        ms = int(self._now() * 1000)
        if ms != self._ms:
            self._ms = ms
            self._prefix = "".join([_PAIRS[ms >> shift & 1023] for shift in _TIME_SHIFTS])
        if self._at == len(self._drawn):
            self._drawn, self._at = self._random_bytes(10 * DRAWN_AT_ONCE), 0
        number = int.from_bytes(self._drawn[self._at : self._at + 10])
        self._at += 10
        return self._prefix + "".join([_PAIRS[number >> shift & 1023] for shift in _RANDOM_SHIFTS])
