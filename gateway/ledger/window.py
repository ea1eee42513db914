"""The windows of budgets: since when it counts what was spent. Knows no key and no clock."""

from datetime import UTC, datetime

from gateway.settings.types import Window

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
ROLLING_MS: dict[Window, int] = {"1h": HOUR_MS, "1d": DAY_MS, "30d": 30 * DAY_MS}
WORDS: dict[Window, str] = {
    "day": "a day (UTC)",
    "month": "a month (UTC)",
    "1h": "in any hour",
    "1d": "in any 24 hours",
    "30d": "in any 30 days",
}


def start_ms(window: Window, now_ms: int) -> int:
    """When the window that `now_ms` lies in began, epoch ms. Days and months are those of UTC."""
    if window == "day":
        return now_ms - now_ms % DAY_MS
    if window == "month":
        day = datetime.fromtimestamp(now_ms // 1000, UTC).day
        return now_ms - now_ms % DAY_MS - (day - 1) * DAY_MS
    return now_ms - ROLLING_MS[window]
