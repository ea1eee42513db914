"""Budgets: what is held, what it becomes, and that counter and record agree."""

import asyncio
import sqlite3
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

import gateway.ledger.budget
from gateway.errors import ApiError
from gateway.ledger.account import HOLD_S, Account
from gateway.ledger.budget import OUTPUT_TOKENS, READ_AGAIN_S
from gateway.ledger.prices import PriceList, most_cost
from gateway.settings.types import EnergyPrice, PriceSettings, TokenPrices
from gateway.store.db import Database
from gateway.store.migrate import migrate
from gateway.surfaces.size import Size
from tests.gateway.ledger.budgeted import DOLLAR, KEY, STUCK_S, Desk, budget
from tests.gateway.ledger.made import NOON_MS, UNHURRIED, FakeClock, stored

MINUTE_S = 60.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def desk(sqlite: Database, tmp_path: Path, clock: FakeClock) -> Desk:
    """A budget of 30 dollars a day, with SQLite."""
    return Desk(sqlite, tmp_path, clock)


def never_wait_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a reading that does not come is stuck."""
    for name in ("FIRST_READING_WAIT_S", "READING_WAIT_S"):
        monkeypatch.setattr(gateway.ledger.budget, name, 3600.0)


def refused(desk: Desk, tokens: int | None = 10, size: Size | None = None) -> ApiError:
    """The error of a request that the budget does not cover."""
    with pytest.raises(ApiError) as fault:
        desk.admit(desk.arrive(tokens), size or Size(0, 1))
    return fault.value


# -- holding and settling -------------------------------------------------------------------------


def test_the_most_a_request_can_cost_is_held_until_it_ends(desk: Desk) -> None:
    entries = [desk.arrive(10) for _ in range(3)]
    reserves = [desk.admit(entry) for entry in entries]
    assert (desk.reserved, desk.spent) == (30, 0)
    refused(desk, 1)
    for reserve, entry in zip(reserves, entries, strict=True):
        desk.end(reserve, entry, tokens=4)
    assert (desk.reserved, desk.spent) == (0, 12)
    desk.admit(desk.arrive(18))
    refused(desk, 1)


def test_the_refusal_says_what_is_used_up_and_nothing_of_other_keys(
    sqlite: Database, tmp_path: Path, clock: FakeClock
) -> None:
    desk = Desk(sqlite, tmp_path, clock, **{KEY: budget(30), "k:other": budget(777)})
    desk.spend(555, key="k:other")
    desk.spend(20)
    desk.admit(desk.arrive(8))
    error = refused(desk, 3)
    assert (error.status, error.code) == (429, "insufficient_quota")
    assert error.headers() == [(b"x-should-retry", b"false")]
    assert "30 USD a day (UTC), 20 spent and 8 reserved by" in error.message
    assert "up to 3." in error.message
    assert "777" not in error.message and "555" not in error.message


@pytest.mark.parametrize("outcome", ["failed", "refused"])
def test_a_request_that_came_to_nothing_gives_everything_back(desk: Desk, outcome: str) -> None:
    entry = desk.arrive(10)
    reserve = desk.admit(entry)
    entry.close(1.0, outcome=outcome)  # type: ignore[arg-type]
    reserve.settle(entry)
    assert (desk.reserved, desk.spent) == (0, 0)


def test_an_aborted_request_costs_what_was_produced(desk: Desk) -> None:
    entry = desk.arrive(10)
    desk.end(desk.admit(entry), entry, tokens=3, outcome="aborted")
    assert (desk.reserved, desk.spent) == (0, 3)


def test_a_request_is_settled_once_wherever_its_cost_is_seen(desk: Desk) -> None:
    """At its end, when its row is written, and in the next reading: always one cost."""
    entry = desk.arrive(10)
    reserve = desk.admit(entry)
    desk.end(reserve, entry, tokens=7)
    reserve.settle(entry)
    assert desk.spent == 7
    desk.write()
    assert desk.spent == 7
    desk.clock.pass_s(MINUTE_S + 1)
    desk.write()  # which reads
    assert (desk.reserved, desk.spent) == (0, 7)


def test_a_row_counts_at_the_price_it_was_written_with(desk: Desk) -> None:
    """Not at the price it ended with: the list was read again between the two."""
    desk.spend(10)
    dearer = PriceList([PriceSettings("m", per_request=Decimal(12))])
    assert desk.books is not None
    desk.books.use_prices(dearer.price)
    assert desk.spent == 10
    desk.write()
    assert desk.spent == 12


@pytest.mark.parametrize("is_written", [True, False])
def test_what_is_not_billed_or_in_another_currency_is_not_spent(
    desk: Desk, is_written: bool
) -> None:
    """As the sum of the ledger leaves it out."""
    for kind, currency in (("recovery", "USD"), ("generation", "EUR"), ("generation", "USD")):
        entry = desk.arrive(10, kind=kind)
        reserve = desk.admit(entry)
        entry.book_cost("3", currency)
        desk.end(reserve, entry)
    if is_written:
        desk.write()
    assert (desk.spent, desk.reserved) == (3, 0)


def test_what_cannot_be_priced_is_released_all_the_same(desk: Desk) -> None:
    entry = desk.arrive(10)
    reserve = desk.admit(entry)
    entry.ts_ms = None  # type: ignore[assignment]
    with capture_logs() as logs:
        reserve.settle(entry)
    assert [line["event"] for line in logs] == ["budget.not_priced"]
    assert (desk.reserved, desk.spent) == (0, 0)


def test_rows_that_the_database_cannot_take_yet_are_spent(
    desk: Desk, sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is away for longer than a hold lasts, and nobody waits for it."""
    desk.write()

    def away() -> sqlite3.Connection:
        raise sqlite3.OperationalError("it is away")

    sqlite.writer.close()
    monkeypatch.setattr(sqlite.writer, "connect", away)
    desk.spend(25)
    for _ in range(3):
        desk.clock.pass_s(HOLD_S)
        desk.write()
    assert desk.spent == 25
    refused(desk, 10)
    monkeypatch.undo()
    desk.clock.pass_s(MINUTE_S)
    desk.write()
    assert (desk.spent, len(stored(sqlite))) == (25, 1)


def test_a_hold_ends_after_ten_minutes_and_its_request_still_counts(desk: Desk) -> None:
    entry = desk.arrive(30)
    reserve = desk.admit(entry)
    desk.clock.pass_s(HOLD_S - 1)
    assert desk.reserved == 30
    desk.clock.pass_s(1)
    assert desk.reserved == 0
    desk.end(reserve, entry, tokens=30)
    assert (desk.reserved, desk.spent) == (0, 30)


# -- counter and record ---------------------------------------------------------------------------


def test_a_restart_reads_back_what_was_spent(
    database: Database, tmp_path: Path, clock: FakeClock
) -> None:
    """Of this key, in this currency, billed, in this window; the rest is somebody else's."""
    before = Desk(database, tmp_path, clock, **{KEY: budget(100), "k:other": budget(100)})
    before.spend(7, key="k:other")
    for tokens, columns in (
        (20, {}), (5, {}), (50, {"kind": "recovery"}), (60, {"ts_ms": NOON_MS - 86_400_000}),
    ):  # fmt: skip
        entry = before.arrive(tokens)
        for name, value in columns.items():
            setattr(entry, name, value)
        entry.book_usage(prompt=0, completion=tokens, source="backend")
        entry.close(1.0, outcome="succeeded")
        assert before.books is not None
        before.books.close(entry)
    foreign = before.arrive(9)
    foreign.book_cost("9", "EUR")
    foreign.close(1.0, outcome="succeeded")
    before.books.close(foreign)
    before.write()
    before.books.stop(0)
    after = Desk(database, tmp_path, clock)
    refused(after, 6)
    assert after.spent == 25
    after.admit(after.arrive(5))


def test_what_other_processes_wrote_counts_from_the_next_minute(
    database: Database, tmp_path: Path, clock: FakeClock
) -> None:
    one, other = Desk(database, tmp_path, clock), Desk(database, tmp_path, clock)
    one.write()
    other.write()
    one.spend(20)
    one.write()
    assert (one.spent, other.spent) == (20, 0)
    clock.pass_s(MINUTE_S + 1)
    other.write()
    assert other.spent == 20


def test_a_reading_that_is_older_than_a_second_is_made_anew_before_a_refusal(
    sqlite: Database, tmp_path: Path, clock: FakeClock
) -> None:
    desk = Desk(sqlite, tmp_path, clock)
    desk.spend(30)
    desk.write()
    refused(desk)
    count = desk.reading_count
    refused(desk)
    assert desk.reading_count == count
    with sqlite.writer.transaction() as cursor:
        cursor.execute("DELETE FROM ledger")
    clock.pass_s(1.5)
    desk.admit(desk.arrive(10))
    assert desk.reading_count == count + 1


def test_rows_of_a_dead_process_count_when_they_are_written(
    sqlite: Database, tmp_path: Path, clock: FakeClock
) -> None:
    """They lie in its spill file, and are not in the first reading."""
    before = Desk(sqlite, tmp_path, clock)
    before.spend(20)
    assert before.books is not None
    before.books.stop(0)
    after = Desk(sqlite, tmp_path, clock)
    after.write()
    assert after.spent == 20
    clock.pass_s(MINUTE_S + 1)
    after.write()
    assert after.spent == 20


@pytest.mark.parametrize("is_recorded", [True, False])
@given(st.lists(st.sampled_from("HHESWRTX"), max_size=60), st.data())
@UNHURRIED
def test_any_order_of_events_keeps_every_cost_once(
    is_recorded: bool, steps: str, data: st.DataObject
) -> None:
    """Hold, End, Settle, Write, Read, Time, eXpire: at rest nothing is held."""
    account = Account(budget(), is_recorded=is_recorded)
    now_s, names = 0.0, iter(range(1000))
    held: dict[str, tuple[int, float]] = {}
    waiting: dict[str, int] = {}
    spent = written = 0

    def end(name: str) -> None:
        nonlocal spent
        cost = data.draw(st.integers(0, 9))
        account.end(name, name, NOON_MS, cost)
        account.end(name, name, NOON_MS, 0)  # a second end changes nothing
        del held[name]
        waiting[name] = cost
        spent += cost

    for step in steps:
        if step == "H":
            name, micros = f"r{next(names)}", data.draw(st.integers(0, 20))
            account.hold(name, micros, now_s)
            held[name] = (micros, now_s + HOLD_S)
        elif step in "ES" and held:
            end(data.draw(st.sampled_from(sorted(held))))
        elif step == "W" and waiting and is_recorded:
            name = data.draw(st.sampled_from(sorted(waiting)))
            cost = waiting.pop(name)
            written += cost
            account.note_written(name, NOON_MS, cost)
        elif step == "R" and is_recorded:
            account.take_reading(written, NOON_MS - 1, now_s)
        elif step in "TX":
            now_s += 1 if step == "T" else HOLD_S / 2
        state = account.state(NOON_MS, now_s)
        live = sum(micros for micros, until_s in held.values() if until_s > now_s)
        assert (state.reserved, state.spent) == (live, spent)
    for name in [*held]:
        end(name)
    assert account.state(NOON_MS, now_s).reserved == 0
    assert account.state(NOON_MS, now_s).spent == spent


@pytest.mark.parametrize("is_known", [True, False])
def test_a_database_that_is_away_is_not_waited_for(
    sqlite: Database, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch,
    is_known: bool,
) -> None:  # fmt: skip
    """What memory knows decides; the reading comes when the database is back."""
    never_wait_in_vain(monkeypatch)
    desk = Desk(sqlite, tmp_path, clock)
    if is_known:
        desk.write()
    calls = []

    def away() -> sqlite3.Connection:
        calls.append(1)
        raise sqlite3.OperationalError("it is away")

    sqlite.writer.close()
    monkeypatch.setattr(sqlite.writer, "connect", away)
    clock.pass_s(2)
    desk.spend(30)
    refused(desk)
    assert calls
    monkeypatch.setattr(sqlite.writer, "connect", sqlite.connect)
    clock.pass_s(MINUTE_S + READ_AGAIN_S)
    desk.write()
    desk.write()
    refused(desk)
    assert desk.spent == 30


async def test_who_waits_for_a_reading_goes_on_when_the_database_fails(
    sqlite: Database, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer finds out while the request is waiting."""
    never_wait_in_vain(monkeypatch)
    desk = Desk(sqlite, tmp_path, clock)
    asked = asyncio.Event()
    desk.budgets.read_by(asked.set)
    waiting = asyncio.create_task(desk.budgets.admit(desk.arrive(10), Size(0, 1)))
    await asked.wait()
    assert not waiting.done()
    await asyncio.to_thread(desk.budgets.note_away)
    async with asyncio.timeout(STUCK_S):
        assert await waiting is not None


def test_a_reading_that_fails_is_said_and_holds_up_no_rows(desk: Desk, sqlite: Database) -> None:
    desk.write()
    desk.spend(30)
    whole = sqlite.writer.statements
    sqlite.writer.statements = replace(whole, read_spend="SELECT ? FROM nowhere WHERE ? = ?")
    desk.clock.pass_s(2)
    with capture_logs() as logs:
        refused(desk)
        refused(desk)
    assert [line["event"] for line in logs] == ["budget.not_read"]
    assert len(stored(sqlite)) == 1
    sqlite.writer.statements = whole
    desk.clock.pass_s(READ_AGAIN_S)
    desk.write()
    assert desk.spent == 30


def test_what_a_key_spent_is_found_in_the_index_alone(sqlite: Database) -> None:
    migrate(sqlite)
    with sqlite.writer.transaction() as cursor:
        statement = f"EXPLAIN QUERY PLAN {sqlite.writer.statements.read_spend}"
        cursor.execute(statement, (KEY, "USD", 0))
        plan = cursor.fetchone()[-1]
    assert "USING COVERING INDEX ledger_spend (client_id=? AND ts_ms>?)" in plan


# -- what a request can cost ----------------------------------------------------------------------


def test_an_answer_without_a_limit_is_taken_to_be_as_long_as_the_longest_before(
    sqlite: Database, tmp_path: Path, clock: FakeClock
) -> None:
    """And never shorter than the floor."""
    desk = Desk(sqlite, tmp_path, clock, **{KEY: budget(1_000_000)})
    entry = desk.arrive(None)
    desk.admit(entry)
    assert desk.reserved == OUTPUT_TOKENS
    desk.spend(9_000)
    desk.spend(100)
    entry = desk.arrive(None)
    desk.admit(entry, Size(0, 2))
    assert desk.reserved == OUTPUT_TOKENS + 2 * 9_000


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (PriceSettings("m", per_mtok=TokenPrices(Decimal(3), output=Decimal(15))), 6_300),
        (PriceSettings("m", per_mtok=TokenPrices(Decimal(3), cache_write=Decimal(4),
                                                 output=Decimal(15))), 6_400),
        (PriceSettings("m", per_mtok=TokenPrices(Decimal(3), output=Decimal(15),
                                                 reasoning=Decimal(20))), 8_300),
        (PriceSettings("m", per_mtok=TokenPrices(Decimal("0.001"), output=Decimal(0))), 1),
        (PriceSettings("m", per_request=Decimal("0.5")), 500_000),
        (PriceSettings("m", per_mtok=TokenPrices(Decimal(3))), None),
        (PriceSettings("m", per_mtok=TokenPrices()), None),
        (PriceSettings("m", energy=EnergyPrice(Decimal(350), Decimal(1))), 0),
    ],
)  # fmt: skip
def test_the_worst_case_takes_the_dearest_of_each_kind(
    entry: PriceSettings, expected: int | None
) -> None:
    """100 tokens of prompt, 400 of an answer; rounded up."""
    price = PriceList([entry]).find("b", "m", 0)
    assert price is not None
    assert most_cost(price, 100, 400) == expected


def test_a_model_without_a_price_is_named_once_and_costs_nothing(
    sqlite: Database, tmp_path: Path, clock: FakeClock
) -> None:
    desk = Desk(sqlite, tmp_path, clock, prices=PriceList(()))
    with capture_logs() as logs:
        desk.spend(1_000)
        desk.spend(1_000)
    assert [(line["event"], line["backend"], line["model"]) for line in logs] == [
        ("budget.price_unknown", "b", "m")
    ]
    assert (desk.spent, desk.reserved) == (0, 0)


def test_a_cost_that_the_provider_states_counts_without_a_price(
    sqlite: Database, tmp_path: Path, clock: FakeClock
) -> None:
    desk = Desk(sqlite, tmp_path, clock, prices=PriceList(()))
    entry = desk.arrive()
    reserve = desk.admit(entry)
    entry.book_cost("30.5")
    desk.end(reserve, entry)
    assert desk.state().spent == 30_500_000
    refused(desk)


def test_counting_tokens_is_free(desk: Desk) -> None:
    desk.spend(30)
    entry = desk.arrive(10, kind="count")
    assert asyncio.run(desk.budgets.admit(entry, Size(10**9, 1))) is None


# -- without books, and read again ----------------------------------------------------------------


def test_without_books_budgets_live_in_memory_and_say_so(tmp_path: Path, clock: FakeClock) -> None:
    with capture_logs() as logs:
        desk = Desk(None, tmp_path, clock)
    assert [line["event"] for line in logs] == ["budget.unrecorded"]
    desk.spend(30)
    refused(desk)
    clock.pass_s(12 * 3600)  # midnight
    assert desk.spent == 0


def test_another_limit_keeps_what_was_spent_and_another_window_reads_anew(
    sqlite: Database, tmp_path: Path, clock: FakeClock
) -> None:
    desk = Desk(sqlite, tmp_path, clock)
    desk.spend(20)
    held = desk.arrive(5)
    reserve = desk.admit(held)
    prices = desk.budgets._prices
    desk.budgets.use({KEY: budget(40)}, prices)
    assert (desk.spent, desk.reserved) == (20, 5)
    desk.clock.pass_s(2 * 3600)
    desk.write()
    assert (desk.spent, desk.reserved) == (20, 0)  # the hold has expired
    desk.budgets.use({KEY: budget(40, "1h")}, prices)
    desk.write()
    assert desk.spent == 0
    desk.end(reserve, held, 5)
    desk.budgets.use({}, prices)
    assert desk.budgets.state(KEY) is None
    desk.write()


def test_the_limit_is_exact_to_the_millionth(sqlite: Database, tmp_path: Path) -> None:
    clock = FakeClock()
    exact = replace(budget(), limit=Decimal("10.000001"))
    desk = Desk(sqlite, tmp_path, clock, **{KEY: exact})
    assert desk.state().limit == 10 * DOLLAR + 1
