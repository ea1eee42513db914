"""How the gateway uses the conductor: a plan before a managed run, and what is kept of it.

Knows no surface and no link: what is to be run goes out as `Work`.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from conductor import status
from conductor.classify import Answers
from conductor.conductor import close, plan
from conductor.monitor.secrets import masked
from conductor.ports import Ask, PortFault, Ports
from conductor.profiles import ProfileNotAllowed, UnknownProfile
from conductor.session import session_ids
from conductor.status import StatusLines
from conductor.transcript import PastTurn, block_of, results_of
from conductor.types import Asked, Facts, JournalLine, Outcome, Settings, Target, TurnPlan
from gateway.backends.run import Run, Silence
from gateway.conducting.memory.turn import MemoryTurn
from gateway.conducting.nearby import Nearby
from gateway.conducting.rooms import Rooms
from gateway.conducting.telling import Telling
from gateway.errors import ApiError
from gateway.journal import JournalHead
from gateway.ledger.entry import Entry
from proto.chat import Call, Params
from proto.events import Event
from proto.limits import STOP_STRINGS_USED
from proto.plan import Plan

# Words of the ledger for where a class came from; what is not here was never asked for.
_SOURCES = {
    "header": "hint", "rules": "rule", "cache": "cache", "model": "model", "recorded": "kept",
    "kept": "kept", "default": "default",
}  # fmt: skip
_FOUND = frozenset({"header", "rules", "cache", "model"})  # for this turn, not an earlier one


class Conducting:
    """Plans requests under one configuration, which is replaced when it is read again."""

    def __init__(
        self,
        planning: Settings,
        rooms: Rooms,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.planning = planning
        self._rooms = rooms
        self._answers = Answers()
        self._nearby = Nearby()
        self._wall = wall

    async def plan(
        self,
        call: Call,
        asked: Asked,
        target: Target,
        entry: Entry,
        ask: Ask,
        allowed: tuple[str, ...] | None = None,
    ) -> "Turn":
        """What is to be done with a request. `allowed`: profiles of its key, None for all.

        Raises: ApiError for a profile that there is not, or that the key may not use.
        """
        now_ms = int(self._wall() * 1000)
        rooms, scope = self._rooms, entry.client_id
        ids = session_ids(asked)
        beside: tuple[str, ...] = (scope, "", str(entry.client_kind))
        whose: list[tuple[str, ...]] = [(scope, name) for name in ids] or [beside]
        facts = Facts(
            settings=self.planning,
            client=entry.client_kind or "other",  # type: ignore[arg-type]
            asked=asked,
            target=target,
            scope=scope,
            now_ms=now_ms,
            allowed=allowed,
            has_turn_nearby=self._nearby.is_near(whose, now_ms),
        )
        store = None if rooms.memories is None else rooms.memories.store
        ports = Ports(ask, rooms.notebook.sessions, rooms.notebook.notes, store)
        try:
            made = await plan(call, facts, ports, self._answers)
        except UnknownProfile as fault:
            known = ", ".join(fault.names)
            message = f"'X-Tandem-Profile' names no profile; known: {known}."
            raise ApiError(400, "unknown_profile", message, param="X-Tandem-Profile") from fault
        except ProfileNotAllowed as fault:
            message = f"This API key may not use the profile {fault.asked!r}."
            raise ApiError(403, "profile_not_allowed", message, param="X-Tandem-Profile") from fault
        if asked.tools == "some":
            self._nearby.saw([*whose, beside], now_ms)
        session = hashlib.blake2b(
            made.session_key.encode(), key=rooms.hash_key, digest_size=8
        ).hexdigest()
        head = JournalHead(entry.request_id, session, made.profile.name, facts.settings.config_rev)
        memory = MemoryTurn(made, head, rooms.journal, rooms.memories, scope=scope, now_ms=now_ms)
        turn = Turn(made, memory, asked, rooms, head)
        turn.book(entry)
        for line in made.journal:
            rooms.journal.emit(head, line)
        return turn


@dataclass(slots=True)
class Turn:
    """A planned request, until it is over."""

    plan: TurnPlan
    memory: MemoryTurn
    _asked: Asked
    _rooms: Rooms
    _head: JournalHead
    _keeping: asyncio.Task[None] | None = field(default=None)
    _tellings: list[Telling] = field(default_factory=list)
    _is_answer_kept: bool = False

    def work(self, salt: str) -> tuple[Call, Plan]:
        """What the host is given: the call, and the decisions about it."""
        made = self.plan
        return made.call, Plan(
            segments=made.segments,
            thinking=made.thinking,
            monitor=made.monitor,
            tool_stream=made.profile.tool_stream,
            cap=made.cap,
            lane=made.lane,
            session=f"{salt}:{made.session_key}",
        )

    def params(self, params: Params, fields: dict[str, Any]) -> Params:
        """The client's parameters, with the profile's for fields that it left out."""
        given = {
            name: value for name, value in self.plan.sampling.items() if fields.get(name) is None
        }
        side = self.plan.side
        stop = params.stop
        if side is not None and side.ends_at_line:
            stop = (*stop[: STOP_STRINGS_USED - 1], "\n")
        return replace(params, stop=stop, **given)  # type: ignore[arg-type]

    def book(self, entry: Entry) -> None:
        """Writes the plan into the request's row."""
        made, head = self.plan, self._head
        entry.profile, entry.session_hash = made.profile.name, head.session
        entry.config_rev, entry.client_kind = head.config_rev, made.client
        entry.thinking = made.thinking.on
        if made.side is not None:
            entry.kind, entry.side_kind = "side", made.side.kind
        if made.task is not None and made.task.source in _SOURCES:
            entry.task_class = made.task.name
            entry.class_source = _SOURCES[made.task.source]
            entry.classify_ms = made.task.ms

    def begin(self) -> None:
        """The request goes to its host: what later turns build on is stored while it runs."""
        self._keeping = asyncio.create_task(self._keep(Outcome()))
        self.memory.begin()

    def tell(self, run: Run) -> AsyncIterator[Event | Silence]:
        """What the client is told of a run."""
        rules, asked, task = self.plan.profile.status, self._asked, self.plan.task
        may_show = asked.choices == 1 and status.may_show(
            rules,
            is_streamed=asked.is_stream,
            is_side=self.plan.side is not None,
            has_form=self.plan.call.answer_format.kind != "text",
        )
        telling = Telling(
            run,
            StatusLines(rules, now_ms()) if may_show else None,
            rules.channel,
            status.Classed(task.name) if task is not None and task.source in _FOUND else None,
            now_ms,
            before_end=(lambda told: self._keep_answer(run, told)) if asked.choices == 1 else None,
        )
        self._tellings.append(telling)
        return telling.events()

    async def end(self, runs: Sequence[Run], finish: str | None) -> None:
        """The request is over, in whatever way. `finish` None: it broke off."""
        self.memory.end()
        journal = self._rooms.journal
        for finding in (finding for run in runs for finding in run.findings):
            event = "monitor_act" if finding.mode == "act" else "monitor_shadow"
            numbers = dict(finding.numbers or {})
            line = JournalLine(event, finding.reason, finding.task, finding.mode, numbers)
            journal.emit(self._head, line)
        if runs and not self._is_answer_kept:
            told = self._tellings
            await self._keep_answer(runs[0], told[0] if len(told) == len(runs) == 1 else None)
        elif self._keeping is not None:
            await self._keeping
        self._write_down(finish or "broken off")

    async def _keep_answer(self, run: Run, telling: Telling | None) -> None:
        """Stores what the next turn needs of an answer, before its client can ask that turn.
        `telling` None: there are several answers, and what was put into one is not told again."""
        self._is_answer_kept = True
        if self._keeping is not None:
            await self._keeping
        outcome = Outcome()
        if run.note_ids and run.tokenizer_hash:
            outcome = Outcome(run.note_ids, run.tokenizer_hash)
        if telling is not None and telling.sent_lines:
            line = JournalLine("status", numbers={"count": len(telling.sent_lines)})
            self._rooms.journal.emit(self._head, line)
            outcome = replace(outcome, lines=telling.sent_lines)
        if telling is not None and run.hidden:
            outcome = replace(outcome, answer=telling.answer, hidden=tuple(run.hidden))
        if outcome != Outcome():
            # The session is there already; without lines there is no news of it.
            await self._keep(outcome, is_session_new=bool(outcome.lines))

    def _write_down(self, finish: str) -> None:
        """The block of its session's transcript, where the profile has one."""
        made, head, rules = self.plan, self._head, self.plan.profile.transcript
        if not rules.enabled or self._asked.tools != "some" or made.side is not None:
            return
        past = PastTurn(
            request_id=head.request_id,
            ended_ms=int(time.time() * 1000),
            client=made.client,
            model=made.call.model,
            profile=head.profile,
            task_class=None if made.task is None else made.task.name,
            results=results_of(made.call.messages),
            calls=tuple(call for telling in self._tellings for call in telling.answer.calls),
            finish=finish,
        )
        self._rooms.transcripts.add(
            profile=head.profile, session=head.session, block=block_of(past, masked),
            days=rules.days,
        )  # fmt: skip

    async def _keep(self, outcome: Outcome, *, is_session_new: bool = True) -> None:
        kept = close(self.plan, outcome)
        notebook = self._rooms.notebook
        try:
            if kept.session is not None and is_session_new:
                await notebook.sessions.save(kept.session)
            if kept.notes:
                await notebook.notes.save(kept.notes)
        except PortFault as fault:
            self._rooms.journal.emit(self._head, JournalLine("error", fault.reason, "notes"))


def now_ms() -> int:
    """Of a clock that only goes on."""
    return int(time.monotonic() * 1000)
