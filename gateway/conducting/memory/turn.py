"""Memory notes of one planned request: what is read of them, and what becomes of what was written.

Knows no stream and no table.
"""

from collections.abc import Sequence

from conductor.memory.background import said_by_user
from conductor.memory.block import HiddenBlock
from conductor.memory.block import drafts_of as block_drafts
from conductor.memory.notes import Draft
from conductor.memory.tool import answer_to, draft_of
from conductor.memory.writing import (
    Wish,
    entries_of,
    lines_of,
    results_in,
    wish_of,
)
from conductor.ports import PortFault
from conductor.types import JournalLine, TurnPlan
from gateway.backends.run import Host
from gateway.conducting.ask import Answering, HostAsk
from gateway.conducting.memory.host import MemoryHost
from gateway.conducting.memory.memories import Memories
from gateway.conducting.memory.writer import Key, Watched
from gateway.journal import Journal, JournalHead
from gateway.ledger.books import Books
from gateway.ledger.entry import Entry
from proto.chat import ToolCall


class MemoryTurn:
    """`memories` None: there is no store. `scope`: the client's key; `now_ms`: of its plan."""

    def __init__(
        self,
        plan: TurnPlan,
        head: JournalHead,
        journal: Journal,
        memories: Memories | None,
        *,
        scope: str,
        now_ms: int,
    ) -> None:
        self._plan = plan
        self._head = head
        self._journal = journal
        self._memories = memories
        self._now_ms = now_ms
        self._key: Key = (scope, plan.session_key)
        self._results = results_in(plan.call.messages) if plan.memory.keeps else ()
        self._wishes: list[Wish] = []
        self._unclosed = self._unkept = 0  # blocks
        self._ask: HostAsk | None = None
        self._is_engine = self._asks_engine = False

    @property
    def has_tool(self) -> bool:
        """Whether the model has our tool."""
        return self._plan.memory.has_tool

    @property
    def continuations(self) -> int:
        """How often an answer may go on behind calls of it."""
        return self._plan.profile.monitor.continuations

    def over(self, host: Host, answering: Answering, books: Books, entry: Entry, salt: str) -> Host:
        """Who answers the request: its host, or one before it that keeps blocks from the client.
        `answering`: who is asked about its conversation when that is quiet."""
        self._is_engine = host.target.kind == "engine"
        if self._plan.memory.is_looked_at and self._plan.session is not None:
            self._ask = HostAsk(answering, books, entry, salt=salt, kind="memory")
            self._asks_engine = answering.host.target.kind == "engine"
        return MemoryHost(host, books, self) if self._plan.memory.cuts else host

    def begin(self) -> None:
        """The request goes to its host."""
        memories, plan = self._memories, self._plan
        if memories is None:
            return
        memories.writer.began(self._key, is_engine=self._is_engine)
        if plan.memories:
            used = memories.store.note_used
            memories.write(self._head, lambda: used(plan.memory.scope, plan.memories, self._now_ms))

    def answer_to(self, call: ToolCall) -> str:
        """See `Taker`."""
        draft = draft_of(call.arguments)
        if draft is None:
            return answer_to(None, None)
        wish = wish_of(draft, "tool", self._results)
        self._wishes.append(wish)
        return answer_to(draft, wish.refusal)

    def take(self, blocks: Sequence[HiddenBlock]) -> None:
        """See `Taker`."""
        closed = [block for block in blocks if block.is_closed]
        self._unclosed += len(blocks) - len(closed)
        if not self._plan.memory.keeps:
            self._unkept += len(closed)
            return
        drafts = [draft for block in closed for draft in block_drafts(block)]
        self._wishes += [wish_of(draft, "block", self._results) for draft in drafts]

    def end(self) -> None:
        """The request is over, in whatever way."""
        memories = self._memories
        if memories is None:
            return
        self._emit(lines_of(self._wishes, unclosed=self._unclosed, unkept=self._unkept))
        self._write(memories, self._wishes)
        if self._ask is not None:
            self._watch(memories, self._ask)
        memories.writer.ended(self._key)

    def _watch(self, memories: Memories, ask: HostAsk) -> None:
        plan = self._plan
        said = said_by_user(plan.call.messages)
        if plan.session is None or not said:
            return

        def keep(drafts: tuple[Draft, ...]) -> None:
            # Of users' words alone: no result can stand in them.
            wishes = [wish_of(draft, "background", ()) for draft in drafts]
            nothing = JournalLine("memory_write", "nothing", task="background")
            self._emit(lines_of(wishes) or [nothing])
            self._write(memories, wishes)

        def fail(fault: PortFault) -> None:
            self._emit([JournalLine("error", fault.reason, task="memory")])

        tail, turns = plan.session.chain, plan.session.turns
        memories.writer.watch(
            self._key, Watched(said, tail, turns, ask, self._asks_engine, keep, fail)
        )

    def _write(self, memories: Memories, wishes: Sequence[Wish]) -> None:
        session, memory = self._head.session, self._plan.memory
        entries = entries_of(wishes, memory, session=session, now_ms=self._now_ms)
        if entries:
            memories.write(self._head, lambda: memories.store.add(entries))

    def _emit(self, lines: Sequence[JournalLine]) -> None:
        for line in lines:
            self._journal.emit(self._head, line)
