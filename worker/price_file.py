"""The price table on disk, one file for each kind of worker. Knows nothing of how it is measured.

No fault here ends anything: a table that cannot be read is measured, one that cannot be written is
measured again at the next start.
"""

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from worker.speculation.prices import Prices, prices_from

log = structlog.get_logger()

PRICES_REFUSED = "prices.refused"
PRICES_NOT_WRITTEN = "prices.not_written"

PRICES_VERSION = 1  # of the file, and of how its numbers are measured
MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """All that prices depend on. `device`: the name of its maker; `torch`: its version."""

    weights_hash: str
    layout: str
    device: str
    attention: str
    threads: int
    max_rows: int
    max_len: int
    torch: str
    version: int = PRICES_VERSION

    @property
    def name(self) -> str:
        """As a file is called."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class PriceFile:
    """The table of one fingerprint, in a folder that is made when it is needed."""

    def __init__(self, folder: Path, fingerprint: Fingerprint) -> None:
        self.path = folder / f"{fingerprint.name}.json"
        self._fingerprint = asdict(fingerprint)

    def read(self) -> Prices | None:
        """The table; None when there is none that can be used."""
        try:
            with self.path.open("rb") as file:
                fields = json.loads(file.read(MOST_BYTES))
            if not isinstance(fields, dict) or fields.get("fingerprint") != self._fingerprint:
                raise ValueError("it is of another worker")
            return prices_from(fields.get("prices"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as fault:
            log.warning(PRICES_REFUSED, path=str(self.path), reason=str(fault))
            return None

    def write(self, prices: Prices) -> bool:
        """Puts the table there in one piece; whether that went well."""
        fields = {"fingerprint": self._fingerprint, "prices": prices.to_fields()}
        new = self.path.with_suffix(f".{os.getpid()}.new")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.unlink(missing_ok=True)
            handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                json.dump(fields, file, indent=1)
            new.replace(self.path)
        except OSError as fault:
            log.warning(PRICES_NOT_WRITTEN, path=str(self.path), reason=str(fault))
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            return False
        return True
