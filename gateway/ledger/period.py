"""Times as people write them, and the days and hours of a period. Knows no database.

A zone of None is this machine's local time.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

SECOND_MS = 1_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
EPOCH_DAY = date(1970, 1, 1).toordinal()
AGE = re.compile(r"(\d{1,6})([mhdw])")
AGE_MS = {"m": 60 * SECOND_MS, "h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}


class BadTime(ValueError):
    """`text` is no time; the message says which forms are."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text!r} is no time: write 2026-07-31, 2026-07-31T14:00, 2026-07-31T14:00+02:00, "
            "today, yesterday, now, or an age such as 30m, 24h, 7d, 2w"
        )
        self.text = text


def parse_since(text: str, now_ms: int, zone: tzinfo | None) -> int:
    """The instant (epoch ms) a period begins at. A day begins at its midnight.

    Raises: BadTime.
    """
    instant = _instant(text, now_ms, zone)
    return instant if isinstance(instant, int) else _midnight_ms(instant, zone)


def parse_until(text: str, now_ms: int, zone: tzinfo | None) -> int:
    """The instant a period ends before. A day belongs to the period as a whole.

    Raises: BadTime.
    """
    instant = _instant(text, now_ms, zone)
    if isinstance(instant, int):
        return instant
    return _midnight_ms(instant + timedelta(days=1), zone)


def _instant(text: str, now_ms: int, zone: tzinfo | None) -> int | date:
    today = datetime.fromtimestamp(now_ms / 1000, zone).date()
    words: dict[str, int | date] = {
        "now": now_ms,
        "today": today,
        "yesterday": today - timedelta(days=1),
    }
    if text in words:
        return words[text]
    if age := AGE.fullmatch(text):
        return max(0, now_ms - int(age[1]) * AGE_MS[age[2]])
    try:
        if len(text) == len("2026-07-31"):
            return date.fromisoformat(text)
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=zone)
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError) as fault:
        raise BadTime(text) from fault


def _midnight_ms(day: date, zone: tzinfo | None) -> int:
    return round(datetime.combine(day, time(), zone).timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class Offsets:
    """How far the clocks of a zone are ahead of UTC during a period: `(from_ms, offset_ms)`, in
    order; one piece, and one more for each time the clocks are changed."""

    pieces: tuple[tuple[int, int], ...]

    def at(self, instant_ms: int) -> int:
        """The offset at an instant of the period."""
        return next(
            (offset for start, offset in reversed(self.pieces) if start <= instant_ms),
            self.pieces[0][1],
        )


def offsets_of(since_ms: int, until_ms: int, zone: tzinfo | None) -> Offsets:
    """The offsets of a zone from `since_ms` to `until_ms`."""
    pieces = [(since_ms, _offset_ms(since_ms, zone))]
    if zone is UTC:
        return Offsets(tuple(pieces))
    for day_ms in range(since_ms, until_ms, DAY_MS):
        end_ms = min(day_ms + DAY_MS, until_ms)
        if _offset_ms(end_ms, zone) != pieces[-1][1]:
            pieces.append(_change(day_ms, end_ms, zone))
    return Offsets(tuple(pieces))


def _change(before_ms: int, after_ms: int, zone: tzinfo | None) -> tuple[int, int]:
    """When, between the two, the clocks were changed, and to what."""
    old = _offset_ms(before_ms, zone)
    while after_ms - before_ms > SECOND_MS:
        middle_ms = (before_ms + after_ms) // 2 // SECOND_MS * SECOND_MS
        if middle_ms <= before_ms:
            break
        if _offset_ms(middle_ms, zone) == old:
            before_ms = middle_ms
        else:
            after_ms = middle_ms
    return after_ms // SECOND_MS * SECOND_MS, _offset_ms(after_ms, zone)


def _offset_ms(instant_ms: int, zone: tzinfo | None) -> int:
    moment = datetime.fromtimestamp(instant_ms / 1000, zone)
    offset = (moment if zone else moment.astimezone()).utcoffset()
    assert offset is not None
    return round(offset.total_seconds() * 1000)


def days_of(since_ms: int, until_ms: int, offsets: Offsets) -> Iterator[int]:
    """Every local day of a period, as days since 1970-01-01."""
    if since_ms >= until_ms:
        return
    first = (since_ms + offsets.at(since_ms)) // DAY_MS
    last = (until_ms - 1 + offsets.at(until_ms - 1)) // DAY_MS
    yield from range(first, last + 1)


def hours_of(since_ms: int, until_ms: int, offsets: Offsets) -> Iterator[int]:
    """Every hour of a period, by its beginning in epoch ms; whole hours of local clocks."""
    start_ms = hour_start(since_ms, offsets)
    while start_ms < until_ms:
        yield start_ms
        start_ms = hour_start(start_ms + HOUR_MS, offsets)


def hour_start(instant_ms: int, offsets: Offsets) -> int:
    """The beginning of the local hour around an instant."""
    return instant_ms - (instant_ms + offsets.at(instant_ms)) % HOUR_MS


def day_label(day: int) -> str:
    """A local day as a date."""
    return date.fromordinal(EPOCH_DAY + day).isoformat()


def hour_label(start_ms: int, zone: tzinfo | None) -> str:
    """An hour by its local beginning with its offset: clocks set back have two of a name."""
    moment = datetime.fromtimestamp(start_ms / 1000, zone)
    return (moment if zone else moment.astimezone()).isoformat(timespec="minutes")
