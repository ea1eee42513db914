"""The folder of an installation and what makes it one of a kind. Knows no setting by name."""

import contextlib
import os
import secrets
from pathlib import Path

HASH_KEY_BYTES = 32


def make_state_dir(path: Path) -> Path:
    """The state folder, made if need be, closed to everybody but its owner.

    It holds the worker's socket and the ledger: whoever may enter it may use both.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)
    return path


def hash_key(state_dir: Path) -> bytes:
    """The key of this installation's hashes; drawn once, then kept in a file of mode 0600.

    Two processes that start together end up with the same one.
    """
    path = state_dir / "hash.key"
    fresh = path.with_name(f"hash.key.{os.getpid()}")
    if not path.is_file():
        fresh.touch(mode=0o600)
        fresh.write_bytes(secrets.token_bytes(HASH_KEY_BYTES))
        with contextlib.suppress(FileExistsError):  # another process was first
            os.link(fresh, path)
        fresh.unlink()
    return path.read_bytes()
