"""One step of one run: what the engine does for it, and what is noted and sent of that.

Knows no queue and no order of runs; the loop says whose step is next.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from proto.messages import Metric
from worker.admission import Rates
from worker.cache_answers import KeptStates
from worker.memory_gate import Verdict
from worker.metrics import Metrics
from worker.pricing import Pricing
from worker.reporter import Reporter
from worker.run import PutIn, Run
from worker.sampling.chooser import Chooser, Chosen
from worker.siblings import SharedPrompts
from worker.speculation.round import Round
from worker.speculation.walk import Take
from worker.state.ask import Ask
from worker.state.slot import FrozenSlot, Slot
from worker.types import Ending
from worker.watch import Watching


class TokenEngine(KeptStates, Protocol):
    """What loop and steps ask of the engine (`engine.Engine`, or a scripted one in tests)."""

    @property
    def free_slots(self) -> int: ...
    @property
    def kv_bytes_free(self) -> int: ...
    def room_for(self, ask: Ask) -> Verdict: ...
    def open(self, ask: Ask) -> Slot: ...
    def grow(self, slot: Slot) -> bool: ...
    def close(self, slot: Slot, *, is_sound: bool = True) -> None: ...
    def memory_samples(self) -> Iterable[Metric]: ...
    def set_aside(self, slot: Slot) -> FrozenSlot | None: ...
    def take_back(self, frozen: FrozenSlot, chooser: Chooser) -> Slot | None: ...
    def drop_aside(self, frozen: FrozenSlot) -> None: ...
    def open_ahead(
        self, prompt: tuple[int, ...], cuts: tuple[int, ...], salt: str
    ) -> Slot | None: ...
    def read_ahead(self, slot: Slot) -> bool: ...
    def read_chunk(self, slot: Slot, end: int) -> Chosen | None: ...
    def share(self, slot: Slot) -> Any: ...
    def take_shared(self, slot: Slot, state: Any) -> Chosen: ...
    def round(self, slot: Slot, room: int, take: Take) -> Round: ...
    def inject(self, slot: Slot, ids: Sequence[int]) -> None: ...
    def rewind(self, slot: Slot, length: int, ids: Sequence[int]) -> None: ...
    def file_away(self) -> bool: ...


class Steps:
    """Makes steps. One thread uses it, that of the loop."""

    def __init__(
        self,
        engine: TokenEngine,
        shared: SharedPrompts[Any],
        pricing: Pricing,
        rates: Rates,
        metrics: Metrics,
        tell: Reporter,
        clock: Callable[[], float],
        may_starve: Callable[[Run], bool],
        watching: Watching,
    ) -> None:
        self._engine = engine
        self._shared = shared
        self._pricing = pricing
        self._rates = rates
        self._metrics = metrics
        self._tell = tell
        self._clock = clock
        self._may_starve = may_starve
        self._watching = watching

    def step(self, run: Run) -> Ending | None:
        """A chunk of its prompt, a round, or tokens put in; its end where that brought one."""
        assert run.slot is not None
        if run.ending is not None:  # before anything was forwarded
            return run.ending
        if not run.is_reading and not self._engine.grow(run.slot):
            run.is_starved = self._may_starve(run)
            return None if run.is_starved else Ending("length", "memory_full")
        if (put_in := run.hidden_due) is not None:
            return self._inject(run, run.slot, put_in)
        if run.is_reading:
            chosen = self._read(run, run.slot)
            if chosen is None:
                return None
            run.take(chosen, self._clock())
        elif (chosen := run.next_of_end()) is not None:
            run.take(chosen, self._clock())
        else:
            self._round(run, run.slot)
        self._watching.review(run, run.slot)
        self._tell.delta(run.release())
        return run.ending

    def _read(self, run: Run, slot: Slot) -> Chosen | None:
        if run.shared is not None:
            state, run.shared = run.shared, None
            return self._engine.take_shared(slot, state)
        chosen = self._read_chunk(run, slot)
        if chosen is not None and self._shared.is_reader(run):
            self._shared.keep(run, self._engine.share(slot))
        return chosen

    def _read_chunk(self, run: Run, slot: Slot) -> Chosen | None:
        start, length, began_s = slot.kv_len, len(run.prompt), self._clock()
        end = slot.plan.chunk_end(start, length)
        chosen = self._engine.read_chunk(slot, end)
        seconds = self._clock() - began_s
        run.record.forwarded_tokens += end - start
        self._rates.saw_prefill(end - start, seconds)
        self._metrics.saw_chunk(seconds)
        self._tell.progress(run, end)
        return chosen

    def _round(self, run: Run, slot: Slot) -> None:
        began_s = self._clock()
        made = self._engine.round(
            slot, run.most_next, lambda chosen: run.take(chosen, self._clock())
        )
        seconds = self._clock() - began_s
        run.record.saw_round(made)
        self._rates.saw_round(len(made.tokens), seconds)
        self._metrics.saw_round(made, seconds)
        self._pricing.saw_round(made)

    def _inject(self, run: Run, slot: Slot, put_in: PutIn) -> Ending | None:
        if len(put_in.ids) >= run.room_left():
            return Ending("length", "context")
        self._engine.inject(slot, put_in.ids)
        run.take_hidden(put_in)
        self._tell.delta(run.release())
        return None
