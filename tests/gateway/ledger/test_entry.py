"""One request: its times, its tokens, its one end."""

from dataclasses import asdict, replace
from decimal import Decimal
from math import isfinite, nan
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import CHAR, BigInteger, Column, Double, Integer, SmallInteger, Text

from gateway.ledger.entry import (
    ENTRY_COLUMNS,
    HASHED_HEAD_CHARS,
    HASHED_TAIL_CHARS,
    Entry,
    body_hash,
)
from gateway.ledger.row import (
    BIG_COLUMNS,
    BLANK,
    COLUMNS,
    INT_MAX,
    REQUEST_ID,
    SMALL_COLUMNS,
    TEXT_CHARS,
    UNBILLED_KINDS,
    UNSAID,
    NoRow,
    Row,
    bound,
    fitted,
    head_from,
    is_brief,
    row_from,
    unbound,
)
from gateway.store.statements import BRIEF, HEAD
from gateway.store.tables import ledger
from proto.events import Speculation, Timings, Usage
from tests.gateway.ledger.made import UNHURRIED, closed, opened

COUNTS = st.none() | st.integers(-5, 200) | st.integers(INT_MAX - 2, INT_MAX + 2)
SMALL = st.integers(0, 500)
TIMES = st.integers(0, 10**9).map(lambda microseconds: microseconds / 1000)


def row_of(entry: Entry) -> Row:
    return row_from(entry.columns())


def test_an_entry_ends_once() -> None:
    entry = closed("req-a")
    with pytest.raises(AssertionError, match="req-a"):
        entry.close(2.0, outcome="failed")
    assert row_of(entry).outcome == "succeeded"


def test_times_come_from_one_clock() -> None:
    entry = opened(arrived_s=10.0)
    entry.saw_delta(10.25)
    entry.saw_delta(11.0)
    entry.saw_delta(12.25)
    entry.book_usage(prompt=7, completion=21, source="backend")
    entry.close(12.5, outcome="succeeded")
    row = row_of(entry)
    assert (row.ttft_ms, row.decode_ms, row.total_ms) == (250, 2000, 2500)
    assert row.decode_tps == 10.0  # twenty tokens after the first, in two seconds


@pytest.mark.parametrize(("completion", "last_s"), [(1, 2.0), (0, 2.0), (None, 2.0), (50, 1.0)])
def test_a_rate_needs_two_tokens_and_some_time(completion: int | None, last_s: float) -> None:
    entry = opened()
    entry.saw_delta(1.0)
    entry.saw_delta(last_s)
    entry.book_usage(prompt=1, completion=completion, source="backend")
    entry.close(3.0, outcome="succeeded")
    assert row_of(entry).decode_tps is None


@UNHURRIED
@given(TIMES, TIMES, TIMES, st.integers(0, 10_000))
def test_the_engines_first_token_came_after_queue_and_prompt(
    queue_ms: float, prompt_ms: float, decode_ms: float, forwarded: int
) -> None:
    entry = opened()
    entry.saw_delta(0.7)  # what the gateway saw counts less than what the engine measured
    entry.book_timings(Timings(queue_ms, prompt_ms, 0.0, decode_ms, 0.0, forwarded))
    entry.close(1.0, outcome="succeeded")
    row = row_of(entry)
    assert row.queue_ms is not None and row.prompt_ms is not None
    assert row.ttft_ms == row.queue_ms + row.prompt_ms
    assert row.decode_ms == round(decode_ms)
    assert (row.prefill_tps is None) == (forwarded == 0 or prompt_ms == 0)


def test_a_time_too_short_to_divide_by_gives_no_rate() -> None:
    entry = opened()
    entry.book_usage(prompt=9, completion=9, source="backend")
    entry.book_timings(Timings(0.0, 5e-324, 0.0, 5e-324, 0.0, forwarded_tokens=9))
    entry.close(1.0, outcome="succeeded")
    assert (row_of(entry).prefill_tps, row_of(entry).decode_tps) == (None, None)


def test_the_engines_rates() -> None:
    entry = opened()
    usage = Usage(prompt_tokens=300, completion_tokens=101, upstream_output_tokens=101)
    entry.book_engine(usage)
    entry.book_timings(Timings(5.0, 100.0, 105.0, 2000.0, 2105.0, forwarded_tokens=250))
    entry.book_speculation(Speculation(rounds=40, plain=3, draft_tokens=90, draft_accepted=61))
    entry.close(2.2, outcome="succeeded")
    row = row_of(entry)
    assert (row.decode_tps, row.prefill_tps) == (50.0, 2500.0)
    assert (row.blocks, row.draft_tokens, row.draft_accepted) == (40, 90, 61)


def test_usage_replaces_usage() -> None:
    entry = opened()
    entry.book_usage(prompt=10, completion=1, cached=4, source="estimated")
    entry.book_usage(prompt=12, completion=9, source="backend")
    entry.close(1.0, outcome="succeeded")
    row = row_of(entry)
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (12, None, 9)
    assert row.usage_source == "backend"


@UNHURRIED
@given(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, SMALL, SMALL, st.booleans())
def test_shown_and_hidden_add_up_to_what_was_processed(
    prompt: int | None,
    completion: int | None,
    cached: int | None,
    cache_write: int | None,
    reasoning: int | None,
    note: int,
    hidden: int,
    hides: bool,
) -> None:
    entry = opened()
    entry.book_usage(
        prompt=prompt, completion=completion, cached=cached, cache_write=cache_write,
        reasoning=reasoning, source="backend",
    )  # fmt: skip
    if hides:
        entry.book_hidden(note=note, hidden=hidden, is_estimated=True)
    entry.close(1.0, outcome="succeeded")
    check_sums(row_of(entry), [])


@UNHURRIED
@given(
    st.lists(st.tuples(SMALL, SMALL, SMALL), min_size=1, max_size=4), SMALL, st.integers(0, 2000)
)
def test_continuations_add_up_with_their_row(
    calls: list[tuple[int, int, int]], note: int, hidden: int
) -> None:
    entry = opened()
    children = [
        entry.child(request_id=f"c{i}", ts_ms=1, arrived_s=0.0, kind="continuation", attempt=i)
        for i in range(1, len(calls))
    ]
    for call, (prompt, completion, reasoning) in zip([entry, *children], calls, strict=True):
        call.book_usage(prompt=prompt, completion=completion, reasoning=reasoning, source="backend")
    entry.book_hidden(note=note, hidden=hidden, is_estimated=False, children=children)
    for call in (entry, *children):
        call.close(1.0, outcome="succeeded")
    check_sums(row_of(entry), [row_of(child) for child in children])


def check_sums(row: Row, children: list[Row]) -> None:
    """The invariants between the token columns."""
    if row.prompt_tokens is not None:
        assert row.upstream_input_tokens == row.prompt_tokens + (row.note_tokens or 0)
    outputs = [part.upstream_output_tokens for part in (row, *children)]
    if row.completion_tokens is not None:
        assert sum(filter(None, outputs)) == row.completion_tokens + (row.hidden_tokens or 0)
    for part, whole in (
        (row.cached_tokens, row.prompt_tokens),
        (row.cache_write_tokens, row.prompt_tokens),
        (row.reasoning_tokens, row.completion_tokens),
        (row.upstream_cached_tokens, row.upstream_input_tokens),
        (row.upstream_reasoning_tokens, row.upstream_output_tokens),
    ):
        assert part is None or (whole is not None and 0 <= part <= whole)
    written = (row.cached_tokens or 0) + (row.cache_write_tokens or 0)
    assert written <= (row.prompt_tokens or 0)
    for child in children:
        assert child.prompt_tokens is child.completion_tokens is child.reasoning_tokens is None


def test_what_is_not_known_is_not_zero() -> None:
    entry = opened()
    entry.book_usage(prompt=5, completion=None, source="backend")
    entry.close(1.0, outcome="failed")
    row = row_of(entry)
    assert (row.prompt_tokens, row.completion_tokens, row.reasoning_tokens) == (5, None, None)
    assert (row.cached_tokens, row.upstream_cached_tokens, row.note_tokens) == (None, None, None)


def test_a_refused_request_has_neither_tokens_nor_speed() -> None:
    entry = opened()
    entry.saw_delta(0.1)
    entry.saw_delta(0.2)
    entry.book_usage(prompt=5, completion=5, cached=1, reasoning=1, source="estimated")
    entry.book_hidden(note=1, hidden=1, is_estimated=True)
    entry.book_timings(Timings(1, 2, 3, 4, 5, 6))
    entry.close(1.0, outcome="refused", status=429, error_type="queue_full")
    row = row_of(entry)
    named = [name for name in COLUMNS if name.endswith(("_tokens", "_tps"))]
    named += ["ttft_ms", "decode_ms", "prompt_ms"]
    assert {name: getattr(row, name) for name in named} == dict.fromkeys(named)
    assert (row.usage_source, row.status, row.total_ms) == ("none", 429, 1000)


def test_a_further_call_belongs_to_its_request_and_shows_nothing() -> None:
    entry = opened(
        "req-a", client_id="k:abc", user_id="ann", model="m", session_hash="s", profile="chat",
        backend="b", upstream_key="team", upstream_model="m-1", run_id="run-1",
    )  # fmt: skip
    child = entry.child(request_id="req-b", ts_ms=5, arrived_s=0.5, kind="attempt", attempt=2)
    child.book_usage(prompt=5, completion=6, source="backend")
    child.close(1.0, outcome="failed")
    row = row_of(child)
    assert (row.parent_request_id, row.kind, row.attempt) == ("req-a", "attempt", 2)
    assert (row.client_id, row.user_id, row.model) == ("k:abc", "ann", "m")
    assert (row.backend, row.upstream_key, row.upstream_model) == ("b", "team", "m-1")
    assert row.run_id is None  # that run is the other call's
    assert (row.prompt_tokens, row.upstream_input_tokens) == (None, 5)


def test_a_call_made_for_a_call_belongs_to_the_same_request() -> None:
    entry = Entry(request_id="req-a", ts_ms=1, arrived_s=0.0)
    child = entry.child(request_id="req-b", ts_ms=1, arrived_s=0.0, kind="continuation")
    of_child = child.child(request_id="req-c", ts_ms=1, arrived_s=0.0, kind="regeneration")
    assert child.parent_request_id == of_child.parent_request_id == "req-a"


@pytest.mark.parametrize(
    ("kind", "billed"),
    [("generation", 1), ("classifier", 1), ("replay", 0), ("cache", 0), ("recovery", 0),
     ("attempt", 0)],
)  # fmt: skip
def test_what_is_billed_follows_from_the_kind(kind: str, billed: int) -> None:
    assert row_of(closed(kind=kind)).billed == billed


@pytest.mark.parametrize(
    ("cost", "micros"),
    [
        ("0.00123", 1230),
        ("0.0000005", 1),
        ("0.00000049", 0),
        ("1e-05", 10),
        (Decimal(2), 2_000_000),
    ],
)
def test_a_stated_cost_is_taken_exactly(cost: str | Decimal, micros: int) -> None:
    entry = opened()
    entry.book_cost(cost, "EUR")
    entry.close(1.0, outcome="succeeded")
    row = row_of(entry)
    assert (row.cost_micros, row.currency, row.cost_source) == (micros, "EUR", "provider")


@pytest.mark.parametrize("cost", ["-1", "NaN", "Infinity", "free", "1e30"])
def test_a_stated_cost_that_is_no_amount_is_not_known(cost: str) -> None:
    entry = opened()
    entry.book_cost(cost)
    entry.close(1.0, outcome="succeeded")
    assert (entry.cost_micros, entry.cost_source) == (None, None)


def test_an_entry_handed_over_without_an_end_is_lost() -> None:
    assert row_of(opened()).outcome == "lost"


# -- columns ------------------------------------------------------------------------------------


def test_row_entry_and_table_have_the_same_columns() -> None:
    table = [column.name for column in ledger.columns if column.name != "id"]
    assert list(COLUMNS) == table
    by_the_writer = {"price_id", "billed"} | {name for name in table if name.startswith("price_")}
    assert set(table) - ENTRY_COLUMNS == by_the_writer
    assert set(HEAD) - ENTRY_COLUMNS == {"billed"}


def test_integers_are_held_to_what_their_columns_hold() -> None:
    kinds = {column.name: type(column.type) for column in ledger.columns if column.name != "id"}
    assert {name for name, kind in kinds.items() if kind is SmallInteger} == SMALL_COLUMNS
    assert {name for name, kind in kinds.items() if kind is BigInteger} == BIG_COLUMNS
    assert kinds["prompt_tokens"] is Integer


@pytest.mark.parametrize(
    ("column", "value", "kept"),
    [
        ("model", "a\0b", "a\ufffdb"),
        ("model", "a\ud800b", "a?b"),
        ("model", "模型 é", "模型 é"),
        ("model", "x" * 5000, "x" * 4096),
        ("max_tokens", 10**30, None),
        ("max_tokens", -(10**30), None),
        ("status", 70_000, None),
        ("stream", True, 1),
        ("thinking", False, 0),
        ("ttft_ms", "12", None),
        ("decode_tps", float("nan"), None),
        ("decode_tps", 3, 3.0),
        ("decode_tps", 10**400, None),
        ("model", 7, "7"),
        ("decode_ms", -5, -5),
        ("backend", None, None),
    ],
)
def test_no_value_is_one_that_a_database_refuses(column: str, value: object, kept: object) -> None:
    row = row_from({"ts_ms": 1, "request_id": "a", column: value})
    assert getattr(row, column) == kept
    assert type(getattr(row, column)) is type(kept)


def test_a_text_that_must_be_mended_changes_no_other() -> None:
    known = {"ts_ms": 1, "request_id": "a", "outcome": "failed", "backend": "b", "user_id": "é"}
    mended = row_from({**known, "model": "m\0"})
    assert mended == replace(row_from(known), model="m\ufffd")
    assert (mended.backend, mended.user_id, mended.profile, mended.surface) == (
        "b",
        "é",
        None,
        None,
    )


def kept(column: Column[Any], value: Any) -> Any:
    """What a column keeps of a value, None: nothing."""
    if value is None:
        return None
    if isinstance(column.type, (Text, CHAR)):
        return str(value).encode(errors="replace").decode().replace("\0", "\ufffd")[:TEXT_CHARS]
    if isinstance(column.type, Double):
        if isinstance(value, float):
            return value if isfinite(value) else None
        return float(value) if isinstance(value, int) and abs(value) < 2**63 else None
    most = 2 ** {SmallInteger: 15, Integer: 31, BigInteger: 63}[type(column.type)]
    return int(value) if isinstance(value, int) and -most < value < most else None


ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.integers(-(2**70), 2**70) | st.floats()
    | st.text(st.characters(exclude_categories=())) | st.binary()
)  # fmt: skip


@UNHURRIED
@given(st.dictionaries(st.sampled_from([*COLUMNS, "unknown"]), ANYTHING), st.booleans())
@example({"model": "a\0b"}, True)
@example({"model": "\ud800"}, True)
@example({"model": "a" * (TEXT_CHARS + 1)}, True)
@example({"status": 2**15, "prompt_tokens": 2**31, "cost_micros": 2**63}, True)
@example({"status": -1, "stream": True, "decode_tps": 5}, True)
@example({"decode_tps": nan}, True)
@example({"decode_tps": 5}, True)
@example({"kind": None}, True)
@example({"run_id": "a\0b"}, True)
def test_whatever_comes_fits_its_column_and_is_bound_in_its_place(
    values: dict[str, Any], is_whole: bool
) -> None:
    """`is_whole`: every column of `BRIEF` is there, as in what an entry hands over."""
    if is_whole:
        values = BLANK | values
    values |= {"ts_ms": 1, "request_id": "a"}
    columns = fitted(values)
    table = [column for column in ledger.columns if column.name != "id"]
    found = {column.name: kept(column, values.get(column.name)) for column in table}
    expected = {**UNSAID, "outcome": "lost"} | {n: v for n, v in found.items() if v is not None}
    expected["billed"] = int(expected["kind"] not in UNBILLED_KINDS)
    row = bound(columns)
    assert unbound(row) == expected
    for name, value in unbound(row).items():
        assert type(value) is type(expected[name]) or (name, type(value)) == ("decode_tps", int)
    assert is_brief(row) == (expected.keys() <= set(BRIEF))
    assert row[REQUEST_ID] == "a"


@pytest.mark.parametrize("missing", ["ts_ms", "request_id"])
def test_without_a_time_and_an_id_there_is_no_row(missing: str) -> None:
    with pytest.raises(NoRow, match=missing):
        fitted({"ts_ms": 1, "request_id": "a", missing: None})


def test_a_relayed_request_makes_a_brief_row() -> None:
    """The shorter statement is for these: what it lacks must not be known of most requests."""
    assert is_brief(bound(fitted(closed(model="m", stream=True, body_hash="h").values())))
    assert not is_brief(bound(fitted(closed(run_id="r").values())))


def test_an_entry_has_no_other_columns_than_the_table() -> None:
    with pytest.raises(TypeError, match="modell"):
        opened(modell="m")


def test_what_is_set_of_one_entry_is_not_said_of_another() -> None:
    one, other = opened(model="m"), opened()
    one.kind = "side"
    assert (one.model, one.kind, other.model, other.kind) == ("m", "side", None, "generation")
    assert other.columns().keys() == {"request_id", "ts_ms", "surface", *UNSAID}


def test_a_row_comes_back_from_its_values() -> None:
    row = row_of(closed(model="m", stream=True))
    assert row_from(asdict(row)) == row


def test_a_head_says_what_is_known_at_admission_and_is_not_billed() -> None:
    entry = opened("req-a", model="m", run_id="run-a")
    entry.book_usage(prompt=1, completion=1, source="backend")
    head = dict(zip(HEAD, head_from(entry.columns()), strict=True))
    assert (head["request_id"], head["model"], head["billed"]) == ("req-a", "m", 0)


# -- body hash ----------------------------------------------------------------------------------


def spans_of(fields_: dict[str, str]) -> tuple[str, dict[str, tuple[int, int]]]:
    text, spans = "{", {}
    for name, value in fields_.items():
        text += f'"{name}": '
        spans[name] = (len(text), len(text) + len(value))
        text += value + ", "
    return text, spans


def hashed(key: bytes = b"installation", **fields_: str) -> str:
    return body_hash(key, *spans_of(fields_))


BODY = {"model": '"m"', "messages": '[{"role": "user", "content": "hé"}]'}


def test_a_retry_without_streaming_is_the_same_body() -> None:
    streamed = hashed(**BODY, stream="true", stream_options='{"include_usage": true}')
    assert streamed == hashed(**BODY, stream="false") == hashed(**BODY)
    assert len(streamed) == 16 and int(streamed, 16) >= 0


def test_the_order_of_fields_does_not_count() -> None:
    assert hashed(**dict(reversed(BODY.items()))) == hashed(**BODY)


@pytest.mark.parametrize(
    "other",
    [
        {**BODY, "model": '"n"'},
        {**BODY, "messages": "[]"},
        {**BODY, "temperature": "0"},
        {"model": '"m"'},
        {"mode": 'l"m"', "messages": BODY["messages"]},
    ],
)
def test_another_body_has_another_hash(other: dict[str, str]) -> None:
    assert hashed(**other) != hashed(**BODY)


def test_another_installation_has_another_hash() -> None:
    assert hashed(b"one", **BODY) != hashed(b"two", **BODY)


def test_a_field_name_no_encoding_knows_is_hashed_all_the_same() -> None:
    assert body_hash(b"k", "{1}", {"\ud800": (1, 2)})


def test_of_a_long_value_both_ends_and_the_length_count() -> None:
    size = HASHED_HEAD_CHARS + HASHED_TAIL_CHARS + 1000
    long = "x" * size
    assert hashed(messages=long) != hashed(messages="y" + long[1:])
    assert hashed(messages=long) != hashed(messages=long[:-1] + "y")
    assert hashed(messages=long) != hashed(messages=long + "x")
    middle = long[: HASHED_HEAD_CHARS + 500] + "y" + long[HASHED_HEAD_CHARS + 501 :]
    assert hashed(messages=long) == hashed(messages=middle)  # the price of a bounded cost
