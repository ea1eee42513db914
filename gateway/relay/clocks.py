"""The clocks of one relayed request. Knows what they end, and nothing of sockets.

A deadline that is moved costs nothing: its timer fires where it stood, looks, and goes on.
"""

import asyncio

from gateway.exchange import Exchange


class Clocks:
    """Ends an exchange with the fault that belongs to the clock that ran out."""

    __slots__ = ("_cap", "_deadline", "_exchange", "_fault", "_left_s", "_loop", "_timer")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._loop = asyncio.get_running_loop()
        self._fault: Exception | None = None
        self._deadline: float | None = None
        self._left_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._cap: asyncio.TimerHandle | None = None

    def limit(self, seconds: float, fault: Exception) -> None:
        """Sets the deadline `seconds` from now (0: none) and what it ends the exchange with."""
        self._fault = fault
        if self._left_s is not None:  # on hold: it starts when it goes on
            self._left_s = seconds
            return
        self._deadline = self._loop.time() + seconds if seconds > 0 else None
        if self._deadline is None or (self._timer and self._timer.when() <= self._deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._deadline, self._look)

    def cap(self, seconds: float, fault: Exception) -> None:
        """Sets a deadline (0: none) that nothing moves."""
        if seconds > 0:
            self._cap = self._loop.call_later(seconds, self._exchange.end, fault)

    def hold(self) -> None:
        """Stops the clock of `limit`."""
        if self._left_s is None:
            deadline, self._deadline = self._deadline, None
            self._left_s = 0.0 if deadline is None else max(deadline - self._loop.time(), 0.001)

    def go_on(self) -> None:
        """Lets it run on with what was left."""
        left_s, self._left_s = self._left_s, None
        if left_s and self._fault is not None:
            self.limit(left_s, self._fault)

    def stop(self) -> None:
        """Nothing ends the exchange any more."""
        for timer in (self._timer, self._cap):
            if timer is not None:
                timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._deadline is None or self._fault is None:
            return
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._look)
        else:
            self._exchange.end(self._fault)
