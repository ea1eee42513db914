"""The prices that rounds are planned by: read or measured at start, measured again when they are
no longer true. Knows no tensor and no run.

Nothing is learned from single rounds, which are noise; only a median that has moved is believed.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Protocol

import structlog

from worker.price_file import PriceFile
from worker.speculation.calibration import Calibration, Scope, Trial
from worker.speculation.prices import Prices
from worker.speculation.round import Round

log = structlog.get_logger()

PRICES_CALIBRATED = "prices.calibrated"
PRICES_RECALIBRATED = "prices.recalibrated"
PRICES_NOT_MEASURED = "prices.not_measured"

WATCHED_ROUNDS = 256  # with a draft, between two looks
LEAST_RATIO, MOST_RATIO = 0.8, 1.25  # of measured over priced, as a median


class PricedEngine(Protocol):
    """What is asked of the engine."""

    def cache_bytes(self, length: int) -> int: ...
    def trials(self, length: int) -> Trial: ...
    def use_prices(self, prices: Prices) -> None: ...


class Pricing:
    """Keeps an engine's prices. Every method is called by the thread that owns the engine.

    `has_room`: whether so many bytes may be taken; asked before any are.
    """

    def __init__(
        self,
        engine: PricedEngine,
        scope: Scope,
        file: PriceFile,
        *,
        has_room: Callable[[int], bool],
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._scope = scope
        self._file = file
        self._has_room = has_room
        self._clock = clock
        self._ratios: list[float] = []
        self._drift: float | None = None  # the median that says: measure again
        self._calibration: Calibration | None = None
        self._trial: Trial | None = None  # holds memory, so only while it is its turn

    @property
    def path(self) -> Path:
        """Where the table is stored."""
        return self._file.path

    def start(self) -> None:
        """Uses the table on disk; without one, measures it now."""
        prices = self._file.read()
        if prices is None:
            self.measure()
        else:
            self._engine.use_prices(prices)

    def measure(self) -> Prices | None:
        """Measures now, uses the table and writes it; None when that cannot be done."""
        while self._advance():
            continue
        return self._finish()

    def saw_round(self, made: Round) -> None:
        """Compares what a round took with what it was to take."""
        if not made.tree.drafted or self._drift is not None:
            return
        self._ratios.append((made.verify_ms + made.commit_ms) / made.price_ms)
        if len(self._ratios) == WATCHED_ROUNDS:
            ratio = median(self._ratios)
            self._ratios.clear()
            if not LEAST_RATIO <= ratio <= MOST_RATIO:
                self._drift = ratio

    def step(self, *, is_idle: bool) -> bool:
        """At most one forward towards a new table, if one is due and nobody wants the device.

        What is half done waits, but for its memory. Returns whether anything was done.
        """
        if not is_idle:
            self._trial = None
        if not is_idle or self._drift is None:
            return False
        if not self._advance():
            self._finish()
        return True

    def _advance(self) -> bool:
        """One forward; whether there is more to do."""
        try:
            if self._trial is None and not self._take_room():
                return False
            assert self._trial is not None and self._calibration is not None
            return self._calibration.step(self._trial)
        except (RuntimeError, MemoryError) as fault:  # torch's own for memory is the first
            self._give_up(f"{type(fault).__name__}: {fault}")
            return False

    def _take_room(self) -> bool:
        """Makes the slot of the trials; the bytes are counted before they are taken."""
        if self._calibration is None:
            scope = self._scope
            contexts = tuple(
                context
                for context in scope.contexts
                if self._has_room(self._engine.cache_bytes(context + max(scope.rows)))
            )
            if contexts:
                self._calibration = Calibration(replace(scope, contexts=contexts), self._clock)
        calibration = self._calibration
        if calibration is None or not self._has_room(self._engine.cache_bytes(calibration.length)):
            self._give_up("no memory is free for it")
            return False
        self._trial = self._engine.trials(calibration.length)
        return True

    def _finish(self) -> Prices | None:
        """Uses what was measured, and writes it; the rounds before say nothing of it."""
        calibration, drift = self._calibration, self._drift
        if calibration is None:
            return None
        prices = calibration.prices()
        if prices is None:
            self._give_up("the machine is too slow for it")
            return None
        self._forget()
        self._engine.use_prices(prices)
        self._file.write(prices)
        facts = {
            "seconds": round(calibration.spent_s, 2),
            "contexts": sorted(prices.verify),
            "staircase": {rows: round(ratio, 2) for rows, ratio in prices.staircase().items()},
        }
        if drift is None:
            log.info(PRICES_CALIBRATED, **facts)
        else:
            log.info(PRICES_RECALIBRATED, ratio=round(drift, 2), **facts)
        return prices

    def _give_up(self, reason: str) -> None:
        """The prices stay as they are, until they are found untrue again."""
        log.warning(PRICES_NOT_MEASURED, reason=reason)
        self._forget()

    def _forget(self) -> None:
        self._calibration = self._trial = self._drift = None
        self._ratios.clear()
