"""The faults that cross a process. Knows nothing of HTTP or of who shows them to whom.

Fault
├── CodecFault          bytes from the other side that are no valid message
│   ├── MessageTooLarge
│   ├── UnknownMessage  a well-formed map of a type this version does not know
│   ├── VersionMismatch
│   └── BadField        a known message whose field is missing or has the wrong type
└── Refusal             the worker's word that it will not serve a request (and why)
"""

from typing import Literal

RefusalCode = Literal[
    "busy", "draining", "unknown_run", "stale_epoch", "trimmed", "prompt_mismatch", "too_long",
    "bad_request", "version", "bad_message", "internal",
]  # fmt: skip


class Fault(Exception):
    """Root of every fault declared in this package."""


class CodecFault(Fault):
    """Bytes that cannot be read as a message."""


class MessageTooLarge(CodecFault):
    """A message over the limit, refused before it is unpacked (or after it was packed)."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"message of {size_bytes} bytes is over the limit of {limit_bytes}")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class UnknownMessage(CodecFault):
    """A message type that this version does not know. Counted and refused, never fatal."""

    def __init__(self, type_name: str) -> None:
        super().__init__(f"unknown message type {type_name[:64]!r}")
        self.type_name = type_name


class VersionMismatch(CodecFault):
    """A message of another protocol version."""

    def __init__(self, found: object, expected: int) -> None:
        super().__init__(f"protocol version {str(found)[:16]} is not {expected}")
        self.found = found
        self.expected = expected


class BadField(CodecFault):
    """A field that is missing or of the wrong type. `field` is its dotted path."""

    def __init__(self, field: str, expected: str, found: str) -> None:
        super().__init__(f"field {field!r}: expected {expected}, found {found}")
        self.field = field
        self.expected = expected
        self.found = found


class Refusal(Fault):
    """The worker will not serve a request. Facts are those of the `Refused` message."""

    def __init__(
        self,
        code: RefusalCode,
        detail: str,
        *,
        param: str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.param = param
        self.retry_after_ms = retry_after_ms
