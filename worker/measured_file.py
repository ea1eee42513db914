"""What was measured of this machine, on disk, one file for each kind of worker. Knows no number
and says nothing: who asks for it knows what a fault means."""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 20


class MeasuredFile:
    """One value under its `key`, in a folder that is made when it is needed.

    `fingerprint`: all that the value depends on; a file of another one is never used.
    """

    def __init__(self, folder: Path, fingerprint: Mapping[str, Any], key: str) -> None:
        text = json.dumps(fingerprint, sort_keys=True)
        self.path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
        self._fingerprint = dict(fingerprint)
        self._key = key

    def read(self) -> Any:
        """The value as JSON has it.

        Raises: FileNotFoundError where there is none; OSError, ValueError, RecursionError for a
            file that cannot be used.
        """
        with self.path.open("rb") as file:
            fields = json.loads(file.read(MOST_BYTES))
        if not isinstance(fields, dict) or fields.get("fingerprint") != self._fingerprint:
            raise ValueError("it is of another worker")
        return fields.get(self._key)

    def write(self, value: Any) -> None:
        """Puts the value there in one piece; what was there stays when that fails.

        Raises: OSError.
        """
        new = self.path.with_suffix(f".{os.getpid()}.new")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.unlink(missing_ok=True)
            handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                json.dump({"fingerprint": self._fingerprint, self._key: value}, file, indent=1)
            new.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise
