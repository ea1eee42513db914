"""Reading single fields of a JSON request. Knows no surface; every error names its field."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from gateway.errors import ApiError

_SURROGATE = re.compile("[\ud800-\udfff]")
Disposition = Literal["honoured", "neutral", "refused"]


def check_dispositions(
    body: dict[str, Any],
    fields: Mapping[str, Disposition],
    off_values: Mapping[str, tuple[Any, ...]] = MappingProxyType({}),
) -> None:
    """Holds a body against a surface's table. `off_values`: what an unsupported field may say.

    Raises: ApiError 400 for a field that is refused, or that says more than that.
    """
    for name, value in body.items():
        if value is None:
            continue
        if fields.get(name) == "refused":
            raise bad_field(name, f"'{name}' is not supported by this model; leave it out.")
        if name in off_values and not any(_is_same(value, off) for off in off_values[name]):
            raise bad_field(name, f"'{name}' is not supported by this model; leave it out.")


def clean(value: Any) -> Any:
    """JSON with lone surrogates (half an emoji) replaced: no text of ours can hold them."""
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [clean(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    return value


def number(body: dict[str, Any], name: str, *, low: float, high: float) -> float | None:
    """A number in [low, high], or None when it is absent."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise bad_field(name, f"'{name}' must be a number from {low:g} to {high:g}.")
    if not low <= value <= high:
        # Not `:g`: a whole number of 400 digits has no float.
        raise bad_field(name, f"'{name}' must be from {low:g} to {high:g}; it is {value!s:.20}.")
    return float(value)


def integer(body: dict[str, Any], name: str, *, low: int, high: int) -> int | None:
    """A whole number in [low, high], or None when it is absent. A bool is no integer."""
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:
        raise bad_field(name, f"'{name}' must be a whole number from {low} to {high}.")
    return value


def flag(body: dict[str, Any], name: str, *, default: bool) -> bool:
    """A boolean, or the default when it is absent."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise bad_field(name, f"'{name}' must be true or false.")
    return value


def bad_field(name: str, message: str) -> ApiError:
    """A 400 that names the field."""
    return ApiError(400, "invalid_request", message, param=name)


def _is_same(value: Any, off: Any) -> bool:
    return bool(value == off) and isinstance(value, bool) == isinstance(off, bool)
