"""Secrets by reference: `env:NAME` or `file:/path`. Knows no setting; values are never printed."""

import stat
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from gateway.settings.types import Secret


def read_secret(reference: str, environ: Mapping[str, str]) -> Secret:
    """Looks a reference up.

    Raises: ValueError, in a sentence that never quotes what might be a secret itself.
    """
    kind, _, rest = reference.partition(":")
    if kind == "env" and rest:
        value = environ.get(rest, "")
        if not value:
            raise ValueError(f"environment variable {rest} is not set")
        return Secret(reference, value)
    if kind == "file" and rest:
        return Secret(reference, _read_file(Path(rest).expanduser()))
    if _is_open_url(reference):
        return Secret(reference, reference)
    raise ValueError("a secret is given by reference: env:NAME or file:/path, never as it is")


def _read_file(path: Path) -> str:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        value = path.read_text().strip()
    except OSError as fault:
        raise ValueError(f"{path} cannot be read: {fault.strerror}") from fault
    if mode & 0o077:
        raise ValueError(f"{path} has mode {mode:04o}; a secret's file must be 0600 or stricter")
    if not value:
        raise ValueError(f"{path} is empty")
    return value


def _is_open_url(text: str) -> bool:
    """A database URL without a password is no secret and may stand in the file."""
    parts = urlsplit(text)
    return parts.scheme in ("postgresql", "postgres", "sqlite") and parts.password is None
