"""Our own engine as the host of a request's runs: what it is sent, and what it takes.

Knows no socket and no surface.
"""

from collections.abc import Sequence
from secrets import randbits

from conductor.types import Target
from gateway.backends.engine import EngineLink
from gateway.backends.engine_run import EngineRun
from gateway.backends.run import Run, Work
from gateway.ledger.entry import Entry
from proto.events import Finished


class EngineHost:
    """The host of one request."""

    def __init__(self, engine: EngineLink, *, is_planned: bool) -> None:
        self.is_planned = is_planned
        self._engine = engine
        self._seed = randbits(63)  # one for all answers of a request that gives none

    @property
    def target(self) -> Target:
        """See `Host`."""
        ready = self._engine.ready
        if ready is None:
            return Target("engine")
        return Target(
            "engine",
            context_tokens=ready.max_len,
            tokenizer_hash=ready.tokenizer_hash,
            can_reason=ready.caps.reasoning,
        )

    def saw_no_choice(self) -> None:
        """See `Host`. A grammar held it: it was cut, and there is no other way to ask."""

    async def start(self, work: Work, entry: Entry, choice: int) -> EngineRun:
        """See `Host`. Raises: EngineLost; CodecFault for what no message can hold."""
        seed = self._seed if work.seed is None else work.seed
        run = await self._engine.submit(
            work.call, work.plan, work.params, seed, work.salt, choice, work.choices
        )
        entry.run_id = entry.run_id or run.run_id
        return run

    def book(self, entry: Entry, runs: Sequence[Run], finished: Finished | None) -> None:
        """See `Host`."""
        if finished is None:
            _book_broken(entry, runs)
            return
        entry.book_engine(finished.usage)
        entry.book_timings(finished.timings)
        entry.book_speculation(finished.speculation)
        entry.cache_source = finished.cache_source
        entry.thinking_closed_by = finished.thinking_closed_by
        entry.served_model = self._engine.ready.model if self._engine.ready else None
        entry.tool_calls = sum(run.calls for run in runs) or None
        found = [finding for run in runs for finding in run.findings]
        entry.monitor_acts = sum(finding.mode == "act" for finding in found)
        entry.monitor_shadows = len(found) - entry.monitor_acts


def _book_broken(entry: Entry, runs: Sequence[Run]) -> None:
    """What runs took that never ended, as far as it was heard of."""
    shown = sum(run.completion_tokens for run in runs)
    hidden = sum(run.hidden_tokens for run in runs)
    if shown or hidden:
        prompt = runs[0].prompt_tokens
        entry.book_usage(prompt=prompt, completion=shown + hidden, source="counted")
        entry.book_hidden(note=runs[0].note_tokens, hidden=hidden, is_estimated=False)
