"""The price table on disk, one file for each kind of worker. Knows nothing of how it is measured.

No fault here ends anything: a table that cannot be read is measured, one that cannot be written is
measured again at the next start.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from worker.measured_file import MeasuredFile
from worker.speculation.prices import Prices, prices_from

log = structlog.get_logger()

PRICES_REFUSED = "prices.refused"
PRICES_NOT_WRITTEN = "prices.not_written"

PRICES_VERSION = 1  # of the file, and of how its numbers are measured


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


class PriceFile:
    """The table of one fingerprint, in a folder that is made when it is needed."""

    def __init__(self, folder: Path, fingerprint: Fingerprint) -> None:
        self._file = MeasuredFile(folder, asdict(fingerprint), "prices")
        self.path = self._file.path

    def read(self) -> Prices | None:
        """The table; None when there is none that can be used."""
        try:
            return prices_from(self._file.read())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as fault:
            log.warning(PRICES_REFUSED, path=str(self.path), reason=str(fault))
            return None

    def write(self, prices: Prices) -> bool:
        """Puts the table there in one piece; whether that went well."""
        try:
            self._file.write(prices.to_fields())
        except OSError as fault:
            log.warning(PRICES_NOT_WRITTEN, path=str(self.path), reason=str(fault))
            return False
        return True
