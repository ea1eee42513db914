"""Values of a model's metadata, checked. Knows no key by name."""

from collections.abc import Mapping
from typing import Any

from worker.faults import LoadFault


def need_int(fields: Mapping[str, Any], key: str) -> int:
    """A positive integer. Raises: LoadFault."""
    value = fields.get(key)
    if type(value) is not int or value < 1:
        found = "nothing" if value is None else repr(value)[:64]
        raise LoadFault(f"The model's {key!r} must be a positive integer, found {found}.")
    return value


def int_or(fields: Mapping[str, Any], key: str, default: int) -> int:
    """A positive integer, or what it is when nothing is said. Raises: LoadFault."""
    return default if fields.get(key) is None else need_int(fields, key)
