"""The file of a kept state: safetensors, with all that says whose and of what it is. Ids, no text.

Knows no folder: what becomes of a file that is not used is decided elsewhere.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from worker.prefill import Plan
from worker.state.lineage import Lineage

FORMAT = 1
IDS = "ids"
CHECKSUM, HEAD_CHECKSUM = "checksum", "head_checksum"  # of all, and without the payload
# Whatever a damaged header can bring about: what it names need not exist or have that shape.
DAMAGE = (SafetensorError, ValueError, TypeError, KeyError, AttributeError, RuntimeError)

FileKind = Literal["rows", "state", "session"]


@dataclass(frozen=True, slots=True)
class Head:
    """What a file is of. `owner`: see `owner_of`. `start`: the position of the first of `ids`.

    `drafter`: what made the rows of drafters in it; `drafts`: how many tensors each of them has.
    """

    kind: FileKind
    owner: str
    start: int
    ids: tuple[int, ...]
    plan: Plan
    lineage: Lineage
    drafter: str = ""
    drafts: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """The position behind the last of its ids."""
        return self.start + len(self.ids)


class StateFault(Exception):
    """A file that is not used: `reason` is `absent`, `unreadable`, `damaged`, `format` or
    `fingerprint`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def owner_of(salt: str) -> str:
    """Who may use a file, so that the salt itself is written nowhere."""
    return hashlib.sha256(b"owner of kept states:" + salt.encode()).hexdigest()


def write_state(
    path: Path, fingerprint: str, head: Head, tensors: Mapping[str, Tensor], used_s: float
) -> int:
    """Puts a whole file there, or none; its bytes. `used_s`: becomes its time.

    Raises: OSError.
    """
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    ids = torch.tensor(head.ids, dtype=torch.int32)
    parts = {**tensors, IDS: ids}
    fields = _fields_of(head, fingerprint)
    fields[HEAD_CHECKSUM] = _checksum(fields, {IDS: ids})
    fields[CHECKSUM] = _checksum(fields, parts)
    try:
        save_file(parts, fresh, fields)
        handle = os.open(fresh, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fchmod(handle, 0o600)
            os.utime(handle, (used_s, used_s))
            os.fsync(handle)
            size_bytes = os.fstat(handle).st_size
        finally:
            os.close(handle)
        fresh.replace(path)
        _sync_folder(path.parent)
    except SafetensorError as fault:  # what the library makes of every fault of the system
        raise OSError(str(fault)) from fault
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
    return size_bytes


def read_state(path: Path, fingerprint: str) -> tuple[Head, dict[str, Tensor]]:
    """All of a file, every byte of it checked. Raises: StateFault.

    The tensors lie in the mapped file: what shall outlive it is to be copied.
    """
    with _opened(path) as file:
        fields = _checked_fields(file, fingerprint)
        parts = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        if fields.pop(CHECKSUM) != _checksum(fields, parts):
            raise StateFault("damaged")
        return _checked_head(fields, parts.pop(IDS)), parts


def read_head(path: Path, fingerprint: str) -> Head:
    """What a file says of itself; its payload is neither read nor checked. Raises: StateFault."""
    with _opened(path) as file:
        fields = _checked_fields(file, fingerprint)
        del fields[CHECKSUM]
        return _checked_head(fields, file.get_tensor(IDS))


@contextlib.contextmanager
def _opened(path: Path) -> Any:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError as fault:
        raise StateFault("absent") from fault
    except OSError as fault:
        raise StateFault("unreadable") from fault
    except DAMAGE as fault:
        raise StateFault("damaged") from fault


def _checked_fields(file: Any, fingerprint: str) -> dict[str, str]:
    fields: dict[str, str] = file.metadata()
    if fields["format"] != str(FORMAT):
        raise StateFault("format")
    if fields["fingerprint"] != fingerprint:
        raise StateFault("fingerprint")
    return fields


def _fields_of(head: Head, fingerprint: str) -> dict[str, str]:
    plan, lineage = head.plan, head.lineage
    return {
        "format": str(FORMAT),
        "fingerprint": fingerprint,
        "kind": head.kind,
        "owner": head.owner,
        "start": str(head.start),
        "plan": json.dumps([plan.family, plan.chunk, plan.cuts]),
        "plan_hash": plan.hash_below(head.end),
        "lineage": json.dumps([lineage.grid, lineage.read]),
        "drafter": head.drafter,
        "drafts": json.dumps(head.drafts),
    }


def _checked_head(fields: dict[str, str], ids: Tensor) -> Head:
    if fields.pop(HEAD_CHECKSUM) != _checksum(fields, {IDS: ids}):
        raise StateFault("damaged")
    family, chunk, cuts = json.loads(fields["plan"])
    grid, read = json.loads(fields["lineage"])
    return Head(
        cast(FileKind, fields["kind"]),
        fields["owner"],
        int(fields["start"]),
        tuple(ids.tolist()),
        Plan(family, chunk, tuple(cuts)),
        Lineage(grid, read),
        fields["drafter"],
        tuple(json.loads(fields["drafts"])),
    )


def _checksum(fields: Mapping[str, str], parts: Mapping[str, Tensor]) -> str:
    """SHA-256 over what the file says and holds, however its header spells that."""
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
    for name in sorted(parts):
        part = parts[name]
        digest.update(json.dumps([name, str(part.dtype), list(part.shape)]).encode())
        digest.update(part.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    """So that a name survives a loss of power as well."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
