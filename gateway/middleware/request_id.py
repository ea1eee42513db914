"""The id of a request, ours and unique, in the answer's `X-Request-ID`. Knows no surface."""

import os
import time
from collections.abc import Callable

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32, as ULIDs use


def new_request_id(
    now: Callable[[], float] = time.time, random_bytes: Callable[[int], bytes] = os.urandom
) -> str:
    """A ULID: 48 bits of milliseconds, 80 random bits, 26 characters that sort by time.

    Source: github.com/ulid/spec.
    """
    number = int(now() * 1000) << 80 | int.from_bytes(random_bytes(10))
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))
