"""The id of a request, ours and unique, in the answer's `X-Request-ID`. Knows no surface."""

import os
import time
from collections.abc import Callable

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32, as ULIDs use
_PAIRS = [high + low for high in _ALPHABET for low in _ALPHABET]  # ten bits each
_SHIFTS = tuple(range(120, -1, -10))


def new_request_id(
    now: Callable[[], float] = time.time, random_bytes: Callable[[int], bytes] = os.urandom
) -> str:
    """A ULID: 48 bits of milliseconds, 80 random bits, 26 characters that sort by time.

    Source: github.com/ulid/spec.
    """
    number = int(now() * 1000) << 80 | int.from_bytes(random_bytes(10))
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])
