"""Reports against a plain sum over the raw rows, on each kind of database."""

import math
import random
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gateway.ledger.query import Dimension, Query, ReportFault, dimensions_of
from gateway.ledger.report import Line, report
from gateway.ledger.row import Row
from gateway.store.db import Database
from tests.gateway.ledger.made import NOON_MS, write

BERLIN = ZoneInfo("Europe/Berlin")
KATHMANDU = ZoneInfo("Asia/Kathmandu")  # 5:45 ahead
COLUMN = {
    "model": "model", "client": "client_id", "client_kind": "client_kind", "user": "user_id",
    "profile": "profile", "class": "task_class", "side": "side_kind", "backend": "backend",
    "surface": "surface", "kind": "kind", "outcome": "outcome",
}  # fmt: skip
TOKENS = ("prompt", "cached", "completion", "reasoning", "note", "hidden")
BEGIN = datetime(2026, 10, 24, 20, tzinfo=UTC)  # clocks are set back in the night of the 25th
HOURS = 40


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def random_rows(seed: int, count: int = 300) -> list[Row]:
    """Rows of every sort, over two days in which the clocks are changed."""
    rng = random.Random(seed)

    def maybe(value: Any, share: float = 0.7) -> Any:
        return value if rng.random() < share else None

    rows = []
    for number in range(count):
        rows.append(
            Row(
                ts_ms=ms(BEGIN) + rng.randrange(HOURS * 3_600_000),
                request_id=f"req-{seed}-{number:04}",
                parent_request_id=maybe("parent", 0.2),
                kind=rng.choice(["generation", "side", "attempt"]),
                body_hash=maybe(rng.choice("abc") * 16),
                client_id=rng.choice(["k:1", "k:2", "anon"]),
                user_id=maybe(rng.choice(["ann", "bob"])),
                client_kind=maybe(rng.choice(["codex", "curl"])),
                surface=rng.choice(["chat", "messages"]),
                model=maybe(rng.choice(["m", "n", "Ünicode", "=x"]), 0.9),
                backend=maybe(rng.choice(["attic", "skyline"])),
                profile=maybe("chat", 0.3),
                task_class=maybe("code", 0.3),
                side_kind=maybe("title", 0.2),
                session_hash=maybe("s" * 16, 0.3),
                outcome=maybe(rng.choice(["succeeded", "failed", "aborted", "refused"]), 0.95),
                prompt_tokens=maybe(rng.randrange(100_000)),
                cached_tokens=maybe(rng.randrange(1000)),
                completion_tokens=maybe(rng.randrange(1000)),
                reasoning_tokens=maybe(rng.randrange(100)),
                note_tokens=maybe(rng.randrange(100)),
                hidden_tokens=maybe(rng.randrange(100)),
                upstream_input_tokens=maybe(5, 0.4),
                upstream_output_tokens=maybe(5, 0.4),
                ttft_ms=maybe(rng.randrange(3000)),
                decode_tps=maybe(rng.random() * 100),
                currency=rng.choice(["EUR", "USD"]),
                cost_micros=maybe(rng.randrange(10**9)),
            )
        )
    return rows


def local(row_ms: int, zone: Any) -> datetime:
    return datetime.fromtimestamp(row_ms / 1000, zone)


def key_of(row: Row, by: tuple[str, ...], zone: Any) -> tuple[str | None, ...]:
    key = []
    for name in by:
        moment = local(row.ts_ms, zone)
        if name == "day":
            key.append(moment.date().isoformat())
        elif name == "hour":
            start = moment.replace(minute=0, second=0, microsecond=0)
            key.append(start.isoformat(timespec="minutes"))
        else:
            key.append(getattr(row, COLUMN[name]))
    return tuple(key)


def repeats_of(rows: list[Row]) -> set[str]:
    """Requests that say again what the one before them said."""
    last: dict[tuple[Any, ...], Row] = {}
    found = set()
    for row in sorted(rows, key=lambda row: row.ts_ms):
        if row.parent_request_id is not None or row.body_hash is None or row.outcome is None:
            continue
        alike = (row.client_id, row.session_hash, row.body_hash)
        before = last.get(alike)
        if before is not None:
            gap = row.ts_ms - before.ts_ms
            if gap <= 2_000 or (gap <= 600_000 and before.outcome != "succeeded"):
                found.add(row.request_id)
        last[alike] = row
    return found


def nearest_rank(values: list[Any], percent: int) -> Any:
    ordered = sorted(value for value in values if value is not None)
    return ordered[math.ceil(percent / 100 * len(ordered)) - 1] if ordered else None


def plain_line(key: tuple[str | None, ...], rows: list[Row], repeats: set[str]) -> Line:
    requests = [row for row in rows if row.parent_request_id is None]
    cost: dict[str, Decimal] = defaultdict(Decimal)
    for row in rows:
        if row.cost_micros is not None and row.currency is not None:
            cost[row.currency] += Decimal(row.cost_micros) / 1_000_000
    tokens = {name: sum(getattr(row, f"{name}_tokens") or 0 for row in rows) for name in TOKENS}
    called = [
        row for row in rows
        if row.outcome == "succeeded"
        or row.upstream_input_tokens is not None
        or row.upstream_output_tokens is not None
    ]  # fmt: skip
    return Line(
        key,
        requests=len(requests),
        intents=len([row for row in requests if row.request_id not in repeats]),
        failed=len([row for row in requests if row.outcome == "failed"]),
        unpriced=len([row for row in called if row.cost_micros is None]),
        cost=dict(cost),
        ttft_p50_ms=nearest_rank([row.ttft_ms for row in rows], 50),
        ttft_p95_ms=nearest_rank([row.ttft_ms for row in rows], 95),
        decode_tps_p50=nearest_rank([row.decode_tps for row in rows], 50),
        **tokens,
    )


def plain_report(rows: list[Row], query: Query) -> tuple[dict[Any, Line], Line]:
    """The same answer, by the plainest means."""
    repeats = repeats_of(rows)
    chosen = [
        row for row in rows
        if row.outcome is not None
        and (query.since_ms is None or row.ts_ms >= query.since_ms)
        and (query.until_ms is None or row.ts_ms < query.until_ms)
        and all(getattr(row, COLUMN[name]) == value for name, value in query.only.items())
    ]  # fmt: skip
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in chosen:
        groups[key_of(row, query.by, query.zone)].append(row)
    lines = {key: plain_line(key, some, repeats) for key, some in groups.items()}
    return lines, plain_line((), chosen, repeats)


QUERIES: list[tuple[tuple[Dimension, ...], dict[Any, Any]]] = [
    ((), {}),
    (("model",), {}),
    (("client", "outcome"), {"only": {"backend": "attic"}}),
    (("client_kind", "user", "profile", "class", "side", "surface", "kind", "backend"), {}),
    (("kind",), {"only": {"kind": "attempt", "client": "k:1", "model": "m"}}),
    (("day",), {"zone": BERLIN}),
    (("day", "model"), {"zone": UTC}),
    (("model", "day"), {"zone": KATHMANDU}),
    (("hour",), {"zone": BERLIN}),
    (("hour",), {"zone": UTC}),
    (("hour", "client"), {"zone": KATHMANDU}),
    (("outcome",), {"since_ms": ms(BEGIN) + 7_000_000, "until_ms": ms(BEGIN) + 90_000_000}),
    (("day",), {"zone": timezone(timedelta(hours=-9, minutes=-30))}),
]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_report_is_the_plain_sum_of_the_rows(database: Database, seed: int) -> None:
    rows = random_rows(seed)
    write(database, rows)
    for by, options in QUERIES:
        query = Query(by=by, **options)
        expected, total = plain_report(rows, query)
        answer = report(database.reader, query)
        found = {line.key: line for line in answer.lines}
        assert len(found) == len(answer.lines)
        for key, line in expected.items():
            assert found.pop(key) == line, (by, options)
        # What is left are days and hours in which nothing happened.
        assert all(line == Line(line.key) for line in found.values()), (by, options)
        assert answer.total == (total if by else answer.lines[0])
        assert answer.total == total


def test_days_and_hours_without_requests_have_lines(database: Database) -> None:
    noon = datetime(2026, 10, 24, 12, tzinfo=BERLIN)
    write(database, [Row(ts_ms=ms(noon), request_id="a", model="m", outcome="succeeded")])
    days = report(
        database.reader,
        Query(("day",), ms(noon - timedelta(days=2)), ms(noon + timedelta(days=2)), zone=BERLIN),
    )
    assert [line.key for line in days.lines] == [
        ("2026-10-22",), ("2026-10-23",), ("2026-10-24",), ("2026-10-25",), ("2026-10-26",),
    ]  # fmt: skip
    assert [line.requests for line in days.lines] == [0, 0, 1, 0, 0]
    night = datetime(2026, 10, 25, tzinfo=BERLIN)
    hours = report(
        database.reader,
        Query(("hour",), ms(night), ms(night.replace(hour=5)), zone=BERLIN),
    )
    assert [line.key[0] for line in hours.lines] == [
        "2026-10-25T00:00+02:00", "2026-10-25T01:00+02:00", "2026-10-25T02:00+02:00",
        "2026-10-25T02:00+01:00", "2026-10-25T03:00+01:00", "2026-10-25T04:00+01:00",
    ]  # fmt: skip


def test_each_model_has_a_line_for_each_day(sqlite: Database) -> None:
    rows = [
        Row(ts_ms=NOON_MS + day * 86_400_000, request_id=str(day), model=model, outcome="failed")
        for day, model in [(0, "m"), (3, "n")]
    ]
    write(sqlite, rows)
    answer = report(sqlite.reader, Query(("model", "day"), zone=UTC))
    assert [line.key for line in answer.lines] == [
        (model, f"2026-{day}")
        for model in ("m", "n")
        for day in ("07-31", "08-01", "08-02", "08-03")
    ]
    assert [line.failed for line in answer.lines] == [1, 0, 0, 0, 0, 0, 0, 1]


def test_an_empty_ledger_has_an_empty_report(database: Database) -> None:
    write(database, [])
    assert report(database.reader, Query(("model",))).lines == ()
    assert report(database.reader, Query(("day",), until_ms=NOON_MS)).lines == ()
    assert report(database.reader, Query()).lines == (Line(()),)
    days = report(database.reader, Query(("day",), NOON_MS - 1, NOON_MS, zone=UTC))
    assert days.lines == (Line(("2026-07-31",)),)


def test_lines_are_in_order_and_those_without_a_name_come_last(sqlite: Database) -> None:
    rows = [
        Row(ts_ms=NOON_MS, request_id=str(model), model=model, outcome="failed")
        for model in (None, "b", "a", "")
    ]
    write(sqlite, rows)
    answer = report(sqlite.reader, Query(("model",)))
    assert [line.key for line in answer.lines] == [("",), ("a",), ("b",), (None,)]


def requests_at(*moments: tuple[float, str], **columns: Any) -> list[Row]:
    return [
        Row(
            ts_ms=NOON_MS + round(second * 1000), request_id=f"req-{second}", outcome=outcome,
            body_hash="b" * 16, **columns,
        )
        for second, outcome in moments
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("moments", "intents"),
    [
        ([(0, "failed"), (600, "succeeded")], 1),
        ([(0, "failed"), (600.001, "succeeded")], 2),
        ([(0, "failed"), (500, "failed"), (1000, "succeeded")], 1),  # one after another
        ([(0, "aborted"), (1, "refused"), (9, "lost"), (99, "succeeded")], 1),
        ([(0, "succeeded"), (2, "succeeded")], 1),
        ([(0, "succeeded"), (2.001, "succeeded")], 2),
    ],
)
def test_what_a_client_says_again_is_one_intent(
    sqlite: Database, moments: list[tuple[float, str]], intents: int
) -> None:
    write(sqlite, requests_at(*moments))
    total = report(sqlite.reader, Query()).total
    assert (total.requests, total.intents) == (len(moments), intents)


def test_another_client_session_or_body_is_another_intent(sqlite: Database) -> None:
    rows = [
        Row(ts_ms=NOON_MS, request_id=str(number), outcome="failed", **columns)
        for number, columns in enumerate(
            [
                {"body_hash": "b", "client_id": "k:1"},
                {"body_hash": "b", "client_id": "k:2"},
                {"body_hash": "b", "client_id": "k:1", "session_hash": "s"},
                {"body_hash": "c", "client_id": "k:1"},
                {"client_id": "k:1"},
                {"client_id": "k:1"},
                {"body_hash": "b", "client_id": "k:1", "parent_request_id": "0"},
            ]
        )
    ]
    write(sqlite, rows)
    assert report(sqlite.reader, Query()).total.intents == 6


def test_a_repeat_is_known_by_a_request_outside_the_period(sqlite: Database) -> None:
    write(sqlite, requests_at((0, "failed"), (300, "succeeded")))
    total = report(sqlite.reader, Query(since_ms=NOON_MS + 1000)).total
    assert (total.requests, total.intents) == (1, 0)


def test_a_period_ends_before_its_end(database: Database) -> None:
    write(database, requests_at((0, "failed"), (10, "failed"), (20, "failed")))
    period = Query(since_ms=NOON_MS, until_ms=NOON_MS + 20_000)
    assert report(database.reader, period).total.failed == 2


def test_a_request_that_still_runs_is_in_no_report(database: Database) -> None:
    write(database, [Row(ts_ms=NOON_MS, request_id="a", prompt_tokens=5)])
    assert report(database.reader, Query()).total == Line(())


def test_large_sums_are_exact(database: Database) -> None:
    rows = [
        Row(
            ts_ms=NOON_MS, request_id=str(number), outcome="succeeded", currency="EUR",
            prompt_tokens=2**31 - 1, cost_micros=10**17 + 1,
        )
        for number in range(5)
    ]  # fmt: skip
    write(database, rows)
    total = report(database.reader, Query()).total
    assert total.prompt == 5 * (2**31 - 1)
    assert total.cost == {"EUR": Decimal("500000000000.000005")}


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        (Query(("model", "model")), "twice"),
        (Query(("day", "hour")), "not both"),
        (Query(only={"day": "2026-07-31"}), "since and until"),
        (Query(("hour",), NOON_MS, NOON_MS + 32 * 86_400_000), "31 days"),
        (Query(("day",), 0, 36_526 * 86_400_000), "36,525 days"),
    ],
)
def test_a_report_that_makes_no_sense_is_refused(
    sqlite: Database, query: Query, sentence: str
) -> None:
    write(sqlite, [])
    with pytest.raises(ReportFault, match=sentence):
        report(sqlite.reader, query)


def test_thirty_one_days_by_the_hour_may_have_an_hour_more(sqlite: Database) -> None:
    write(sqlite, [])
    october = datetime(2026, 10, 1, tzinfo=BERLIN)
    query = Query(("hour",), ms(october), ms(october.replace(month=11)), zone=BERLIN)
    assert len(report(sqlite.reader, query).lines) == 31 * 24 + 1


def test_a_report_has_a_bound(sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("report", "facts"):
        monkeypatch.setattr(f"gateway.ledger.{module}.REPORT_ROWS", 3)
    rows = [Row(ts_ms=NOON_MS, request_id=i, model=i, outcome="failed") for i in "abcd"]
    write(sqlite, rows[:3])
    assert len(report(sqlite.reader, Query(("model",))).lines) == 3
    write(sqlite, rows[3:])
    with pytest.raises(ReportFault, match="more than 3 lines"):
        report(sqlite.reader, Query(("model",)))
    with pytest.raises(ReportFault, match="more than 3 lines"):
        report(sqlite.reader, Query(("day",), NOON_MS, NOON_MS + 4 * 86_400_000))


def test_dimensions_by_name() -> None:
    assert dimensions_of(" model, day ,") == ("model", "day")
    with pytest.raises(ReportFault, match="modell"):
        dimensions_of("modell")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine is in Berlin."""
    import time

    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_no_zone_is_the_time_of_this_machine(sqlite: Database, here: None) -> None:
    write(sqlite, random_rows(3))
    for by in (("day",), ("hour",)):
        there = report(sqlite.reader, Query(by, zone=BERLIN))  # type: ignore[arg-type]
        ours = report(sqlite.reader, Query(by))  # type: ignore[arg-type]
        assert ours.lines == there.lines


def test_reports_read_while_a_gateway_writes(sqlite: Database, tmp_path: Path) -> None:
    write(sqlite, random_rows(4, 10))
    with sqlite.editor.begin() as writing:
        writing.exec_driver_sql("DELETE FROM ledger")
        assert report(sqlite.reader, Query()).total.requests > 0
