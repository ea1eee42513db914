"""The clocks of relayed requests. Knows what they end, and nothing of sockets.

They are the settings of the backend, by name. One timer looks at all of them, so that setting and
moving a deadline costs nothing; one that ran out is seen within TICK_S.
"""

import asyncio
from collections.abc import Callable

from gateway.exchange import Exchange
from gateway.relay.connection import Clock, UpstreamTimeout

TICK_S = 0.1


class Clocks:
    """The clocks of one request. `now` in seconds, of the event loop."""

    __slots__ = (
        "_cap",
        "_cap_at",
        "_clock",
        "_deadline",
        "_exchange",
        "_left_s",
        "_limit_s",
        "_now",
    )

    def __init__(
        self, exchange: Exchange, now: Callable[[], float], clock: Clock, limit_s: float
    ) -> None:
        self._exchange = exchange
        self._now = now
        self._clock = clock
        self._limit_s = limit_s
        self._deadline = now() + limit_s if limit_s > 0 else None
        self._left_s: float | None = None
        self._cap: UpstreamTimeout | None = None
        self._cap_at = 0.0

    def limit(self, clock: Clock, seconds: float) -> None:
        """From now on this clock runs, for so many seconds (0: none does)."""
        self._clock, self._limit_s = clock, seconds
        if self._left_s is not None:  # on hold: it starts when it goes on
            self._left_s = seconds
        else:
            self._deadline = self._now() + seconds if seconds > 0 else None

    def cap(self, clock: Clock, seconds: float) -> None:
        """Sets a deadline that nothing moves."""
        self._cap, self._cap_at = UpstreamTimeout(clock, seconds), self._now() + seconds

    def hold(self) -> None:
        """Stops the clock of `limit`."""
        if self._left_s is None:
            deadline, self._deadline = self._deadline, None
            self._left_s = 0.0 if deadline is None else max(deadline - self._now(), 0.001)

    def go_on(self) -> None:
        """Lets it run on with what was left."""
        left_s, self._left_s = self._left_s, None
        if left_s:
            self._deadline = self._now() + left_s

    def look(self, now_s: float) -> None:
        """Ends the exchange when one of its clocks has run out."""
        if self._cap is not None and now_s >= self._cap_at:
            self._exchange.end(self._cap)
        elif self._deadline is not None and now_s >= self._deadline:
            self._exchange.end(UpstreamTimeout(self._clock, self._limit_s))


class ClockTower:
    """Looks at the clocks of every running request, as long as there are any."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = loop.time
        self._running: set[Clocks] = set()
        self._watching: dict[Clocks, Callable[[float], None]] = {}  # at most one a running request
        self._timer: asyncio.TimerHandle | None = None

    def start(self, exchange: Exchange, clock: Clock, limit_s: float) -> Clocks:
        """Clocks for a request, the first of them running; `stop` them when it is over."""
        clocks = Clocks(exchange, self._loop.time, clock, limit_s)
        self._running.add(clocks)
        if self._timer is None:
            self._timer = self._loop.call_later(TICK_S, self._tick)
        return clocks

    def stop(self, clocks: Clocks) -> None:
        """These end nothing any more."""
        self._running.discard(clocks)

    def watch(self, clocks: Clocks, look: Callable[[float], None]) -> None:
        """Calls `look` with every tick until these clocks are stopped."""
        self._watching[clocks] = look

    def _tick(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        for clocks in [*self._running]:
            clocks.look(now_s)
        for clocks, look in [*self._watching.items()]:
            if clocks in self._running:
                look(now_s)
            else:
                del self._watching[clocks]
        if self._running:
            self._timer = self._loop.call_later(TICK_S, self._tick)
