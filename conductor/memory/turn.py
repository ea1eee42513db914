"""What memory notes have to do with one request, and what its prompt is told of earlier sessions.

Knows no table and no answer.
"""

from collections.abc import Sequence
from dataclasses import replace

from conductor.memory.notes import MemoryNote, chosen, scope_of, words_of
from conductor.memory.tool import NAME, offered
from conductor.ports import Memory, PortFault
from conductor.profiles import FOR_TOOLS, Profile
from conductor.turn import Turn
from conductor.types import NO_MEMORY, Facts, JournalLine, MemoryPlan, SidePlan
from proto.chat import Call

PROJECT = "x-tandem-project"
NO_MEMORY_HEADER = ("x-tandem-memory", "off")
SEARCHED = 50  # notes, of which a prompt takes what fits


def memory_plan(call: Call, facts: Facts, profile: Profile, side: SidePlan | None) -> MemoryPlan:
    """What is read and written. `call`: without lines and blocks of ours."""
    rules, asked = profile.memory, facts.asked
    if profile.name == FOR_TOOLS or not call.messages:
        return NO_MEMORY
    name, word = NO_MEMORY_HEADER
    is_kept = side is None and asked.headers.get(name, "").lower() != word
    cuts = rules.write and call.answer_format.kind == "text" and not asked.has_logprobs
    keeps = cuts and is_kept and asked.choices == 1
    return MemoryPlan(
        scope=scope_of(facts.scope, rules, asked.headers.get(PROJECT), call.messages),
        reads=rules.read and is_kept,
        cuts=cuts,
        keeps=keeps,
        has_tool=keeps and _takes_tool(call, profile),
        is_looked_at=rules.background and is_kept,
    )


def with_tool(call: Call, memory: MemoryPlan) -> Call:
    """The call with the tool that the model writes notes by, where it is to have it."""
    return replace(call, tools=offered(call.tools)) if memory.has_tool else call


async def recalled(
    memory: MemoryPlan,
    turn: Turn,
    profile: Profile,
    store: Memory | None,
    journal: list[JournalLine],
    *,
    is_new: bool,
) -> Sequence[MemoryNote]:
    """What a new session (`is_new`) is told of earlier ones."""
    if store is None or not memory.reads or not is_new or turn.kind != "user":
        return ()
    words = words_of(turn.text)
    try:
        found = await store.search(memory.scope, words, SEARCHED)
    except PortFault as fault:
        journal.append(JournalLine("error", fault.reason, task="memory"))
        return ()
    notes = chosen(found, words, profile.memory.budget_tokens)
    if notes:
        journal.append(JournalLine("memory_read", numbers={"count": len(notes)}))
    return notes


def _takes_tool(call: Call, profile: Profile) -> bool:
    """Only beside tools of the client's own, where it forces none, and where its call can be
    answered: that is a continuation."""
    return (
        bool(call.tools)
        and call.tool_choice.mode in ("auto", "none")
        and profile.monitor.continuations > 0
        and all(tool.name != NAME for tool in call.tools)
    )
