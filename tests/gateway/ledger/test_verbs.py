"""What the command line prints: tables, CSV, JSON, the rows themselves."""

import csv
import io
import json
from dataclasses import replace
from datetime import UTC
from decimal import Decimal
from typing import Any

import pytest

from gateway.ledger.export import ROWS_AT_A_TIME, export
from gateway.ledger.query import Query, ReportFault
from gateway.ledger.render import as_csv, as_json, as_table
from gateway.ledger.report import Line, Report, report
from gateway.ledger.reprice import reprice
from gateway.ledger.row import COLUMNS, Columns, Row
from gateway.ledger.verbs import run_export, run_report, run_reprice
from gateway.ledger.words import ReportWords, query_of
from gateway.store.db import Database
from tests.gateway.ledger.made import NOON_MS, stored, write

ROWS = [
    Row(
        ts_ms=NOON_MS, request_id="a", model="wren", backend="attic", outcome="succeeded",
        prompt_tokens=172_000, cached_tokens=155_000, completion_tokens=3, ttft_ms=212,
        decode_tps=41.25, currency="EUR", cost_micros=166_250, kind="generation",
        stream=0, session_hash="",
    ),
    Row(ts_ms=NOON_MS + 1, request_id="b", model="wren", outcome="failed", client_id="k:1"),
    Row(
        ts_ms=NOON_MS + 2, request_id="c", model=None, outcome="succeeded", currency="USD",
        cost_micros=5, kind="side",
    ),
]  # fmt: skip


@pytest.fixture
def books(sqlite: Database) -> Database:
    write(sqlite, ROWS)
    return sqlite


def printed(books: Database, **words: Any) -> str:
    out = io.StringIO()
    run_report(ReportWords(**words), books.reader, out, NOON_MS + 10)
    return out.getvalue()


def test_a_table_for_people(books: Database) -> None:
    assert printed(books) == (
        "model  requests  intents  failed   prompt   cached  completion  reasoning  note  hidden"
        "  cost_EUR  cost_USD  unpriced  ttft_p50_ms  ttft_p95_ms  decode_tps_p50\n"
        "wren          2        2       1  172,000  155,000           3          0     0       0"
        "   0.16625         –         0          212          212            41.2\n"
        "–             1        1       0        0        0           0          0     0       0"
        "         –  0.000005         0            –            –               –\n"
        "total         3        3       1  172,000  155,000           3          0     0       0"
        "   0.16625  0.000005         0          212          212            41.2\n"
    )


def test_a_table_without_dimensions_is_its_total(books: Database) -> None:
    lines = printed(books, by="").splitlines()
    assert len(lines) == 2
    assert lines[1].split()[:3] == ["3", "3", "1"]


def test_a_table_of_two_dimensions(books: Database) -> None:
    lines = printed(books, by="client,model").splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["client", "model"], ["anon", "wren"], ["anon", "–"], ["k:1", "wren"], ["total", "3"],
    ]  # fmt: skip


def test_a_name_cannot_move_the_cursor_of_a_terminal(sqlite: Database) -> None:
    write(sqlite, [replace(ROWS[0], model="\x1b[2Jred\x07")])
    text = printed(sqlite)
    assert "\x1b" not in text and "\x07" not in text and "[2Jred" in text


def test_csv_holds_amounts_exactly_and_no_formula(books: Database) -> None:
    write(books, [replace(ROWS[0], request_id="d", model="=1+1", cost_micros=1)])
    lines = list(csv.DictReader(io.StringIO(printed(books, form="csv"))))
    assert [line["model"] for line in lines] == ["'=1+1", "wren", ""]
    assert [line["cost_EUR"] for line in lines] == ["0.000001", "0.16625", ""]
    assert (lines[1]["decode_tps_p50"], lines[1]["prompt"]) == ("41.25", "172000")


def test_json_holds_amounts_as_text(books: Database) -> None:
    body = json.loads(printed(books, form="json", by="model,day", utc=True, since="today"))
    assert body["by"] == ["model", "day"]
    assert body["lines"][0]["cost"] == {"EUR": "0.16625"}
    assert body["lines"][0]["day"] == "2026-07-31"
    assert body["lines"][1]["model"] is None
    assert body["total"]["cost"] == {"EUR": "0.16625", "USD": "0.000005"}
    assert body["total"]["ttft_p95_ms"] == 212
    assert body["since_ms"] == NOON_MS // 86_400_000 * 86_400_000
    assert body["until_ms"] == NOON_MS + 10


@pytest.mark.parametrize("amount", ["0", "1E+3", "0.000001", "123456789.123456", "10.50"])
def test_amounts_are_written_out(amount: str) -> None:
    line = Line((), cost={"EUR": Decimal(amount)})
    answer = Report(Query(), (line,), line)
    for text in (as_table(answer), as_csv(answer), as_json(answer)):
        assert "E+" not in text
    written = json.loads(as_json(answer))["total"]["cost"]["EUR"]
    assert Decimal(written) == Decimal(amount)
    assert "." not in written or not written.endswith("0")


# -- from words to a query ----------------------------------------------------------------------


def test_words_become_a_query() -> None:
    words = ReportWords(
        by="class, day", since="24h", until="now", utc=True, model="m", client="k:1", backend="b",
        profile="p", task_class="code", kind="side",
    )  # fmt: skip
    query = query_of(words, NOON_MS)
    assert (query.by, query.zone) == (("class", "day"), UTC)
    assert (query.since_ms, query.until_ms) == (NOON_MS - 86_400_000, NOON_MS)
    assert query.only == {
        "model": "m", "client": "k:1", "backend": "b", "profile": "p", "class": "code",
        "kind": "side",
    }  # fmt: skip


def test_what_is_not_said_narrows_nothing() -> None:
    query = query_of(ReportWords(), NOON_MS)
    assert query == Query(("model",), None, NOON_MS)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"by": "modell"}, "no dimension"),
        ({"since": "later"}, "no time"),
        ({"until": "later"}, "no time"),
        ({"since": "1h", "until": "2h"}, "ends before it begins"),
        ({"form": "pdf"}, "table, csv, json"),
    ],
)
def test_words_that_make_no_sense_are_answered_with_a_sentence(
    books: Database, words: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ReportFault, match=sentence):
        printed(books, **words)


def test_filters_narrow_a_report(books: Database) -> None:
    body = json.loads(printed(books, form="json", model="wren", client="k:1"))
    assert (body["total"]["requests"], body["total"]["failed"]) == (1, 1)


# -- export -------------------------------------------------------------------------------------


def exported(books: Database, **words: Any) -> str:
    out = io.StringIO()
    run_export(ReportWords(**words), books.reader, out, NOON_MS + 10)
    return out.getvalue()


def test_rows_as_csv(database: Database) -> None:
    write(database, ROWS)
    lines = list(csv.reader(io.StringIO(exported(database, form="csv"))))
    assert lines[0] == list(COLUMNS)
    first = dict(zip(lines[0], lines[1], strict=True))
    assert (first["request_id"], first["cost_micros"], first["profile"]) == ("a", "166250", "")
    assert [line[1] for line in lines[1:]] == ["a", "b", "c"]


def test_rows_as_json_lines(database: Database) -> None:
    write(database, ROWS)
    lines = [json.loads(line) for line in exported(database, form="jsonl").splitlines()]
    assert [Row(**line) for line in lines] == stored(database)


def test_an_export_is_narrowed_like_a_report(books: Database) -> None:
    lines = exported(books, form="jsonl", kind="side").splitlines()
    assert [json.loads(line)["request_id"] for line in lines] == ["c"]
    with pytest.raises(ReportFault, match="csv or jsonl"):
        exported(books, form="table")


def test_an_export_comes_in_pieces(database: Database) -> None:
    count = 2 * ROWS_AT_A_TIME + 1
    rows = [replace(ROWS[0], request_id=f"{i:05}", ts_ms=NOON_MS + i) for i in range(count)]
    write(database, rows)
    pieces = list(export(database.reader, Query(), "jsonl"))
    assert len(pieces) == 3
    ids = [json.loads(line)["request_id"] for line in "".join(pieces).splitlines()]
    assert ids == [row.request_id for row in rows]


def test_a_request_that_still_runs_is_not_exported(books: Database) -> None:
    write(books, [replace(ROWS[0], request_id="d", outcome=None)])
    assert len(exported(books, form="jsonl").splitlines()) == 3
    assert report(books.reader, Query()).total.requests == 3


# -- reprice ------------------------------------------------------------------------------------


DEAR = {"cost_micros": 2_000_000, "currency": "EUR", "cost_source": "table", "price_id": "new"}


def dearer(row: Columns) -> None:
    """A list that asks 2 euros for each row; it leaves costs that are there alone."""
    if row["cost_source"] is None:
        row.update(DEAR)


def test_repricing_says_what_it_would_change_and_then_changes_it(database: Database) -> None:
    rows = [
        replace(ROWS[0], request_id="a", cost_source="table", price_id="old", price_input=5),
        replace(ROWS[0], request_id="b", cost_source="provider", cost_micros=7),
        replace(ROWS[0], request_id="c", cost_source="none", cost_micros=None, currency=None),
        replace(ROWS[0], request_id="d", ts_ms=NOON_MS + 9 - 3_600_000),
        replace(ROWS[1], request_id="e", **DEAR),
    ]
    write(database, rows)
    words = ReportWords(since="1h")
    said = []
    for is_written in (False, True, True):
        before = stored(database)
        out = io.StringIO()
        run_reprice(words, database.editor, dearer, out, NOON_MS + 10, is_written=is_written)
        said.append(out.getvalue())
        assert (stored(database) == before) == (not is_written or len(said) == 3)
    assert said == [
        "EUR  0.16625 -> 4  (+3.83375)\n2 rows would change; nothing was written without --yes\n",
        "EUR  0.16625 -> 4  (+3.83375)\n2 rows were changed\n",
        "0 rows were changed\n",
    ]
    after = stored(database)
    assert [row.cost_micros for row in after] == [2_000_000, 7, 2_000_000, 166_250, 2_000_000]
    assert (after[0].price_id, after[0].price_input) == ("new", None)
    assert after[0] == replace(rows[0], price_input=None, **DEAR)


def test_repricing_goes_through_all_rows(sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.ledger.reprice.ROWS_AT_A_TIME", 3)
    write(sqlite, [replace(ROWS[1], request_id=f"req-{i}") for i in range(9)])
    found = reprice(sqlite.editor, Query(), dearer, is_written=True)
    assert found.row_count == 9
    assert {row.cost_micros for row in stored(sqlite)} == {2_000_000}
