"""What one asks the ledger, in words, and the query that they mean. Knows no SQL and no clock."""

from dataclasses import dataclass
from datetime import UTC, tzinfo

from gateway.ledger.period import BadTime, parse_since, parse_until
from gateway.ledger.query import Dimension, Query, ReportFault, dimensions_of


@dataclass(frozen=True, slots=True)
class ReportWords:
    """What was asked, as it was written. None: not narrowed. `by`: names with commas between."""

    by: str = "model"
    form: str = "table"
    since: str | None = None
    until: str | None = None
    utc: bool = False
    model: str | None = None
    client: str | None = None
    backend: str | None = None
    profile: str | None = None
    task_class: str | None = None
    kind: str | None = None


def query_of(words: ReportWords, now_ms: int, zone: tzinfo | None = None) -> Query:
    """The query that the words ask. `zone` None: this machine's local time; `utc` goes before it.

    A period that has a beginning and no end reaches to now.

    Raises: ReportFault.
    """
    if words.utc:
        zone = UTC
    only: dict[Dimension, str | None] = {
        "model": words.model,
        "client": words.client,
        "backend": words.backend,
        "profile": words.profile,
        "class": words.task_class,
        "kind": words.kind,
    }
    try:
        since_ms = None if words.since is None else parse_since(words.since, now_ms, zone)
        until_ms = parse_until(words.until or "now", now_ms, zone)
    except BadTime as fault:
        raise ReportFault(str(fault)) from fault
    if since_ms is not None and since_ms >= until_ms:
        raise ReportFault("the period ends before it begins")
    return Query(
        by=dimensions_of(words.by),
        since_ms=since_ms,
        until_ms=until_ms,
        only={name: value for name, value in only.items() if value is not None},
        zone=zone,
    )
