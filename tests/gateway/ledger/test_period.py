"""Times as people write them, and the days and hours between two of them."""

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ledger.period import (
    DAY_MS,
    HOUR_MS,
    BadTime,
    day_label,
    days_of,
    hour_label,
    hour_start,
    hours_of,
    offsets_of,
    parse_since,
    parse_until,
)
from tests.gateway.ledger.made import NOON_MS, UNHURRIED

BERLIN = ZoneInfo("Europe/Berlin")
ZONES: list[tzinfo] = [
    UTC,
    BERLIN,
    ZoneInfo("America/St_Johns"),  # half an hour aside, clocks changed
    ZoneInfo("Australia/Lord_Howe"),  # changed by half an hour
    ZoneInfo("Asia/Kathmandu"),
    ZoneInfo("Pacific/Apia"),
    timezone(timedelta(hours=-9, minutes=-30)),
]


def ms(text: str, zone: Any = BERLIN) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "since"),
    [
        ("2026-03-29", ms("2026-03-29")),
        ("2026-03-29T14:00", ms("2026-03-29T14:00")),
        ("2026-03-29 14:00:05", ms("2026-03-29T14:00:05")),
        ("2026-03-29T14:00Z", ms("2026-03-29T14:00", UTC)),
        ("2026-03-29T14:00-03:30", ms("2026-03-29T17:30", UTC)),
        ("now", NOON_MS),
        ("today", ms("2026-07-31")),
        ("yesterday", ms("2026-07-30")),
        ("30m", NOON_MS - 30 * 60_000),
        ("24h", NOON_MS - DAY_MS),
        ("7d", NOON_MS - 7 * DAY_MS),
        ("2w", NOON_MS - 14 * DAY_MS),
        ("999999w", 0),
    ],
)
def test_when_a_period_begins(text: str, since: int) -> None:
    assert parse_since(text, NOON_MS, BERLIN) == since


@pytest.mark.parametrize(
    ("text", "until"),
    [
        ("2026-03-28", ms("2026-03-29")),  # the day as a whole
        ("2026-03-29", ms("2026-03-30")),  # one of 23 hours
        ("today", ms("2026-08-01")),
        ("yesterday", ms("2026-07-31")),
        ("2026-03-29T14:00", ms("2026-03-29T14:00")),
        ("24h", NOON_MS - DAY_MS),
    ],
)
def test_when_a_period_ends(text: str, until: int) -> None:
    assert parse_until(text, NOON_MS, BERLIN) == until


@pytest.mark.parametrize(
    "text", ["", "monday", "7", "7y", "2026-13-01", "2026-02-30", "12:00", "9999999d", "-1d", "NaN"]
)
def test_what_is_no_time_is_told_what_is(text: str) -> None:
    with pytest.raises(BadTime, match="2026-07-31"):
        parse_since(text, NOON_MS, BERLIN)


@UNHURRIED
@given(
    st.integers(ms("2024-01-01"), ms("2028-01-01")), st.integers(1, 500 * DAY_MS),
    st.sampled_from(ZONES), st.floats(0, 1),
)  # fmt: skip
def test_offsets_are_those_of_the_zone(since: int, length: int, zone: tzinfo, place: float) -> None:
    instant = since + round((length - 1) * place)
    offset = datetime.fromtimestamp(instant / 1000, zone).utcoffset()
    assert offset is not None
    assert offsets_of(since, since + length, zone).at(instant) == offset.total_seconds() * 1000


@UNHURRIED
@given(
    st.integers(ms("2024-01-01"), ms("2028-01-01")), st.integers(1, 40 * DAY_MS),
    st.sampled_from(ZONES), st.floats(0, 1),
)  # fmt: skip
def test_every_instant_has_its_day_and_its_hour(
    since: int, length: int, zone: tzinfo, place: float
) -> None:
    instant = since + round((length - 1) * place)
    offsets = offsets_of(since, since + length, zone)
    days = list(days_of(since, since + length, offsets))
    assert days == list(range(days[0], days[-1] + 1))
    moment = datetime.fromtimestamp(instant / 1000, zone)
    assert moment.date().isoformat() in map(day_label, days)
    hours = list(hours_of(since, since + length, offsets))
    assert hour_start(instant, offsets) in hours
    assert hours == sorted(set(hours)) and all(
        later - earlier <= HOUR_MS for earlier, later in pairwise(hours)
    )
    assert hours[0] <= since < hours[0] + HOUR_MS


def test_a_day_ends_at_its_midnight() -> None:
    since, until = ms("2026-10-25"), ms("2026-10-26")
    offsets = offsets_of(since, until, BERLIN)
    assert [day_label(day) for day in days_of(since, until, offsets)] == ["2026-10-25"]
    assert len(list(hours_of(since, until, offsets))) == 25


def test_clocks_that_change_by_half_an_hour() -> None:
    howe = ZoneInfo("Australia/Lord_Howe")
    since, until = ms("2026-04-04T12:00", howe), ms("2026-04-05T12:00", howe)
    offsets = offsets_of(since, until, howe)
    hours = list(hours_of(since, until, offsets))
    assert {hour_start(instant, offsets) for instant in range(since, until, 60_000)} == set(hours)


def test_no_time_has_no_days() -> None:
    offsets = offsets_of(NOON_MS, NOON_MS, BERLIN)
    assert list(days_of(NOON_MS, NOON_MS, offsets)) == []
    assert list(hours_of(NOON_MS, NOON_MS, offsets)) == []


def test_labels() -> None:
    assert day_label(0) == "1970-01-01"
    assert hour_label(ms("2026-07-31T14:00"), BERLIN) == "2026-07-31T14:00+02:00"
    assert hour_label(ms("2026-07-31T14:00", UTC), UTC) == "2026-07-31T14:00+00:00"
