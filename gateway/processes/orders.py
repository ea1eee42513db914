"""What the parent of several gateway processes tells them: JSON lines on their standard input.

Knows no process and no setting. The first line is an `Order`, the others are `News`; the end of the
input means that the parent is gone.
"""

import json
from dataclasses import asdict, dataclass

LINE_BYTES = 16 * 1024 * 1024  # a configuration with very many keys, and packages
SERVING = b"serving\n"  # what a child answers, once, on its standard output


@dataclass(frozen=True, slots=True)
class Order:
    """How to serve.

    `listener`: descriptor of the bound socket. `configuration`: what the file at `path` and those
    beside it say, packed (`settings.texts`); the parent has found it good. `host` to `is_debug`:
    options of the command line. `run_dir`: the folder that the processes of this parent share.
    """

    number: int
    listener: int
    path: str
    configuration: str
    run_dir: str
    host: str | None
    port: int | None
    ledger: str | None
    is_debug: bool

    def line(self) -> bytes:
        """As it is sent."""
        return _line(asdict(self))

    @classmethod
    def read(cls, line: bytes) -> "Order":
        """As it was sent."""
        return cls(**json.loads(line))


@dataclass(frozen=True, slots=True)
class News:
    """What has changed: the configuration was read again, or the engine's worker has gone."""

    configuration: str | None = None
    worker_lost: str | None = None

    def line(self) -> bytes:
        """As it is sent."""
        return _line(asdict(self))

    @classmethod
    def read(cls, line: bytes) -> "News":
        """As it was sent."""
        return cls(**json.loads(line))


def _line(values: dict[str, object]) -> bytes:
    return json.dumps(values).encode() + b"\n"
