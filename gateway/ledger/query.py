"""What one may ask the ledger: dimensions, a period, filters. Knows no SQL and no output."""

from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Literal, get_args

Dimension = Literal[
    "model", "client", "client_kind", "user", "profile", "class", "side", "backend", "surface",
    "kind", "outcome", "day", "hour",
]  # fmt: skip
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)


class ReportFault(ValueError):
    """A report that cannot be made; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Query:
    """What to report. Times in epoch ms, `until_ms` is not part of the period; None: as far as
    rows reach. `only`: values by dimension. `zone` None: local days of this machine."""

    by: tuple[Dimension, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    only: dict[Dimension, str] = field(default_factory=dict)
    zone: tzinfo | None = None


def dimensions_of(text: str) -> tuple[Dimension, ...]:
    """The dimensions named in a text, with commas between them.

    Raises: ReportFault for a name that is none.
    """
    known = {str(name): name for name in DIMENSIONS}
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ReportFault(f"{name!r} is no dimension; there are {', '.join(DIMENSIONS)}")
    return tuple(known[name] for name in names)


def check(query: Query) -> None:
    """Raises: ReportFault when the query makes no sense."""
    if len(set(query.by)) < len(query.by):
        raise ReportFault("a dimension is named twice")
    if {"day", "hour"} <= set(query.by):
        raise ReportFault("take day or hour, not both")
    if {"day", "hour"} & set(query.only):
        raise ReportFault("narrow the time with since and until")
