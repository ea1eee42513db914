"""JSON at C speed, as it comes from strangers. Knows no field.

Python refuses to read an integer of more than 4,300 digits, with a fault that is none of JSON's.
Who meets it reads again with the patient scanner, where such a number becomes a float.
"""

import json
from collections.abc import Callable
from json.scanner import make_scanner
from typing import Any

from gateway.lean import msgspec

Scan = Callable[[str, int], tuple[Any, int]]  # text and where to begin → value and where it ends
INTEGER_CHARS = 1_000  # longer ones are read as floats, and by the patient scanner only


def scanners(refuse: Callable[[str], Any] | None = None) -> tuple[Scan, Scan]:
    """A quick scanner and a patient one. `refuse`: raises for NaN and Infinity.

    They raise StopIteration where no value begins, JSONDecodeError for what is not JSON, and the
    quick one ValueError for a number that is too long for it.
    """
    quick = json.JSONDecoder(parse_constant=refuse)
    patient = json.JSONDecoder(parse_constant=refuse, parse_int=_integer)
    return make_scanner(quick), make_scanner(patient)  # type: ignore[arg-type]


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= INTEGER_CHARS else float(digits)


_decode = msgspec.json.Decoder().decode
_, _scan = scanners()


def json_value(data: bytes) -> Any:
    """The one JSON value in these bytes, of a backend. Raises: ValueError."""
    try:
        return _decode(data)
    except msgspec.DecodeError:  # it is strict: half a character, NaN, a number of 5,000 digits
        return _one_value(data.decode())


def _one_value(text: str) -> Any:
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        value, end = None, -1
    if end != len(text):  # there are blanks around it, or it is no JSON
        bare = text.strip(" \t\r\n")
        if len(bare) == len(text):
            raise json.JSONDecodeError("Expecting one value", text, max(end, 0))
        return _one_value(bare)
    return value
