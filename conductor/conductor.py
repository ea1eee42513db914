"""How a request is planned, and what is kept of it. Read this first; every step has its own room.

Knows no store and no backend: what it needs of them it asks through `Ports`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from conductor import profiles
from conductor.classify import Answers, Past, class_line, classify
from conductor.memory.block import without_blocks
from conductor.memory.notes import MemoryNote, body_of, chosen, scope_of, words_of
from conductor.monitor.tasks import monitor_plan
from conductor.notes.place import Placed, is_seen, new_note, room_left
from conductor.notes.place import Turn as NoteTurn
from conductor.notes.render import Say
from conductor.notes.replay import Replay, hidden_record, learned, replay, segment_key
from conductor.packages import choose_packages
from conductor.ports import PortFault, Ports
from conductor.profiles import FOR_TOOLS, Profile, Rule
from conductor.session import Choice, History, choose, content_key, moved_on, session_ids
from conductor.shape import Detected, detect_shape, without_billing
from conductor.side import lane_of, side_line, side_of
from conductor.status import remembered, without_lines
from conductor.thinking import OFF, thinking_of
from conductor.turn import Turn, turn_of
from conductor.types import (
    Classified,
    Facts,
    JournalLine,
    Kept,
    NoteRecord,
    Outcome,
    Session,
    SidePlan,
    TurnPlan,
)
from proto.chat import Call, Message, TextPart
from proto.plan import MonitorPlan, Thinking

PROFILE, PROJECT = "x-tandem-profile", "x-tandem-project"
NO_MEMORY = ("x-tandem-memory", "off")
MEMORIES = "memories"  # the name of their one piece in a note
SEARCHED_MEMORIES = 50  # of which a note takes what fits


async def plan(call: Call, facts: Facts, ports: Ports, answers: Answers) -> TurnPlan:
    """Decides everything about one request: profile → side request? → session → kind of turn and
    task → reasoning → old notes → new note → monitor.

    Raises: UnknownProfile, ProfileNotAllowed. No fault of a port does.
    """
    call = without_billing(call)
    client = detect_shape(facts.client, facts.asked, call)
    profile = _profile(call, facts, client)
    journal = [JournalLine("profile", profile.name)]
    if client.is_misnamed:
        journal.append(JournalLine("profile", "unknown_client"))
    known = await _recognised(call, facts, ports, journal)
    side = side_of(facts, known.call, client.kind, rules=profile.side)
    if (line := side_line(side, facts, known.call)) is not None:
        journal.append(line)
    stands = Replay()
    if profile.note.replay and (side is None or side.replays_notes):
        stands = await _replayed(known, facts, ports, journal)
    if side is None:
        made = await _turn(known, facts, profile, stands, ports, answers, journal)
    else:
        made = _beside(known, facts, profile, stands, side)
    made = replace(made, client=client.kind, journal=tuple(journal) + made.journal)
    return _with_system(made, profile.system_prompt)


def close(plan: TurnPlan, outcome: Outcome) -> Kept:
    """What is to be stored when a planned request is over. A side request leaves nothing."""
    if plan.session is None:
        return Kept()
    notes = {segment_key(record): record for record in plan.changed}
    if outcome.tokenizer_hash is not None:
        told = learned(plan.standing, outcome.note_ids, outcome.tokenizer_hash)
        notes |= {segment_key(record): record for record in told}
    session = replace(plan.session, lines=remembered(plan.session.lines, outcome.lines))
    return Kept(session, (*notes.values(), *_hidden(plan.call, session, outcome)))


def _hidden(call: Call, session: Session, outcome: Outcome) -> tuple[NoteRecord, ...]:
    """What was put into the answer stands there again when the client brings it back."""
    if outcome.answer is None or not outcome.hidden:
        return ()
    history, answer = History(call.messages), outcome.answer
    return tuple(
        hidden_record(
            history, answer, one.text, scope=session.scope, session=session.key, part=one.part,
            offset=one.offset, now_ms=session.used_ms,
        )
        for one in outcome.hidden
    )  # fmt: skip


# -- whose request it is --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Known:
    """A request and the conversation it belongs to. `call`: without lines and blocks of ours."""

    call: Call
    history: History
    choice: Choice


def _profile(call: Call, facts: Facts, client: Detected) -> Profile:
    headers = facts.asked.headers
    return profiles.choose(
        facts.settings.profiles,
        facts.settings.default_profile,
        asked=headers.get(PROFILE),
        client="other" if client.is_weak else client.kind,
        user_agent=headers.get("user-agent", ""),
        headers=headers,
        offers_function_tool=bool(call.tools),
        allowed=facts.allowed,
    )


async def _recognised(call: Call, facts: Facts, ports: Ports, journal: list[JournalLine]) -> _Known:
    ids = session_ids(facts.asked)
    key = ids[0] if ids else content_key(facts.scope, call.messages, call.tools)
    candidates: Sequence[Session] = ()
    try:
        candidates = await ports.sessions.find(facts.scope, key)
    except PortFault as fault:
        journal.append(_failed("sessions", fault))
    sent = {line for session in candidates for line in session.lines}
    messages = without_lines(call.messages, sent if candidates else None)
    call = replace(call, messages=without_blocks(messages))
    history = History(call.messages)
    choice = choose(key, candidates, history, scope=facts.scope, is_id=bool(ids))
    return _Known(call, history, choice)


async def _replayed(
    known: _Known, facts: Facts, ports: Ports, journal: list[JournalLine]
) -> Replay:
    history = known.history
    try:
        records = await ports.notes.find(facts.scope, history.chains, history.hashes)
    except PortFault as fault:
        journal.append(_failed("notes", fault))
        return Replay()
    made = replay(
        history,
        records,
        known.choice,
        scope=facts.scope,
        tokenizer_hash=facts.target.tokenizer_hash,
        now_ms=facts.now_ms,
    )
    journal += made.journal
    return made


# -- a client's own helper call -------------------------------------------------------------------


def _beside(
    known: _Known, facts: Facts, profile: Profile, stands: Replay, side: SidePlan
) -> TurnPlan:
    cap = _least(side.most_tokens, profile.max_output)
    thinking = OFF
    if side.is_thinking:
        most = _least(cap, facts.asked.max_tokens)
        wish, rules = facts.asked.wish, replace(profile.thinking, mode="client")
        thinking = thinking_of(wish, most, rules, most_thinking=side.thinking_tokens)
    return TurnPlan(
        call=known.call,
        client="other",
        profile=profile,
        turn="side",
        session_key=known.choice.key,
        side=side,
        thinking=thinking,
        segments=stands.segments,
        cap=cap,
        sampling=profile.sampling,
        lane=lane_of(side, known.call),
    )


# -- a turn ---------------------------------------------------------------------------------------


async def _turn(
    known: _Known,
    facts: Facts,
    profile: Profile,
    stands: Replay,
    ports: Ports,
    answers: Answers,
    journal: list[JournalLine],
) -> TurnPlan:
    history, choice = known.history, known.choice
    turn = turn_of(known.call)
    past = Past(choice.task_class, is_seen(history, stands, choice), _recorded(known, stands))
    task = await classify(turn, known.call, facts, profile, past, ask=ports.ask, answers=answers)
    if task.source != "off":
        journal.append(class_line(task))
    cap = profile.max_output
    thinking = _thinking(facts, profile, task, _least(cap, facts.asked.max_tokens))
    journal.append(_thinking_line(thinking))
    memories = await _memories(known, facts, profile, turn, ports, journal)
    say = _say(known, facts, profile, task, turn, memories)
    room = _room(known, facts, stands)
    placed = new_note(
        history,
        stands,
        say,
        NoteTurn(turn.kind, facts.asked.choices, task.name, room),
        profile.note,
        scope=facts.scope,
        choice=choice,
        now_ms=facts.now_ms,
    )
    new = () if placed.segment is None else (placed.segment,)
    record = () if placed.record is None else (placed.record,)
    taken = tuple(note.id for note in memories) if placed.said.memories else ()
    return TurnPlan(
        call=known.call,
        client="other",
        profile=profile,
        turn=turn.kind,
        session_key=choice.key,
        task=task,
        thinking=thinking,
        segments=(*stands.segments, *new),
        session=_session(known, facts, profile, task, placed, taken),
        standing=(*stands.standing, *record),
        changed=(*stands.saved, *record),
        memories=taken,
        monitor=_monitor(profile),
        cap=cap,
        sampling=profile.sampling,
        journal=placed.journal,
    )


def _recorded(known: _Known, stands: Replay) -> str | None:
    """The kind of task that this very message was taken for, when it came before."""
    record = stands.at(known.history) if known.history.messages else None
    return known.choice.task_class if record is None else record.task_class


def _thinking(
    facts: Facts, profile: Profile, task: Classified, most_tokens: int | None
) -> Thinking:
    known = None if task.source == "off" else profile.router.classes.get(task.name)
    budget = None if known is None else known.budget
    return thinking_of(facts.asked.wish, most_tokens, profile.thinking, class_budget=budget)


def _say(
    known: _Known,
    facts: Facts,
    profile: Profile,
    task: Classified,
    turn: Turn,
    memories: Sequence[MemoryNote],
) -> Say:
    """Everything that would be said to this turn; what of it is said is the note's to decide."""
    tools = [tool.name for tool in known.call.tools]
    task_class = None if task.source == "off" else task.name
    effort = ""
    # It is about reasoning: a model without any takes it for a part of the question.
    if profile.effort == "on" and task_class is not None and facts.target.can_reason:
        found = profile.router.classes.get(task_class)
        effort = found.effort if found else ""
    before = known.choice.session.packages if known.choice.session else ()
    body = body_of(memories, may_write=False)
    return Say(
        effort=effort,
        rules=tuple(r for r in profile.rules if _fires(r, task_class, tools, turn.text)),
        packages=choose_packages(
            profile, facts.settings.packages, task_class, turn.text, tools, before
        ),
        memories=((MEMORIES, body),) if body else (),
    )


def _fires(rule: Rule, task_class: str | None, tools: Sequence[str], text: str) -> bool:
    """Whether every condition that a rule has holds. A pattern is looked for in a user's words."""
    return (
        (not rule.classes or task_class in rule.classes)
        and (not rule.tools or any(name in rule.tools for name in tools))
        and (rule.regex is None or re.search(rule.regex, text) is not None)
    )


async def _memories(
    known: _Known,
    facts: Facts,
    profile: Profile,
    turn: Turn,
    ports: Ports,
    journal: list[JournalLine],
) -> Sequence[MemoryNote]:
    """What a new session is told of earlier ones."""
    name, word = NO_MEMORY
    is_off = facts.asked.headers.get(name, "").lower() == word or profile.name == FOR_TOOLS
    is_wanted = profile.memory.read and not is_off
    if not is_wanted or ports.memory is None or not known.choice.is_new or turn.kind != "user":
        return ()
    project = facts.asked.headers.get(PROJECT)
    scope = scope_of(facts.scope, profile.memory, project, known.call.messages)
    words = words_of(turn.text)
    try:
        found = await ports.memory.search(scope, words, SEARCHED_MEMORIES)
    except PortFault as fault:
        journal.append(_failed("memory", fault))
        return ()
    notes = chosen(found, words, profile.memory.budget_tokens)
    if notes:
        journal.append(JournalLine("memory_read", numbers={"count": len(notes)}))
    return notes


def _room(known: _Known, facts: Facts, stands: Replay) -> int | None:
    if facts.target.context_tokens is None:
        return None
    return room_left(
        known.call.messages,
        known.call.tools,
        stands,
        context_tokens=facts.target.context_tokens,
        answer_tokens=facts.asked.max_tokens or 0,
    )


def _session(
    known: _Known,
    facts: Facts,
    profile: Profile,
    task: Classified,
    placed: Placed,
    memories: tuple[int, ...],
) -> Session | None:
    if not known.history.messages:
        return None  # a raw prompt is no conversation
    session = moved_on(known.choice, known.history, scope=facts.scope, now_ms=facts.now_ms)
    return replace(
        session,
        profile=profile.name,
        task_class=session.task_class if task.source == "off" else task.name,
        packages=tuple(dict.fromkeys((*session.packages, *placed.said.packages))),
        memories=tuple(dict.fromkeys((*session.memories, *map(str, memories)))),
        config_rev=facts.settings.config_rev,
    )


def _monitor(profile: Profile) -> MonitorPlan:
    rules = profile.monitor
    return monitor_plan(
        rules.tasks,
        continuations=rules.continuations,
        regenerations=rules.regenerations,
        hidden_tokens=rules.hidden_tokens,
    )


# -- small things ---------------------------------------------------------------------------------


def _with_system(made: TurnPlan, text: str | None) -> TurnPlan:
    """The plan with a profile's own text placed first, in the system message where there is one."""
    messages = made.call.messages
    if text is None or not messages:
        return made
    first = messages[0]
    if first.role in ("system", "developer"):
        joined = replace(first, content=(TextPart(f"{text}\n\n"), *first.content))
        return replace(made, call=replace(made.call, messages=(joined, *messages[1:])))
    call = replace(made.call, messages=(Message("system", (TextPart(text),)), *messages))
    shifted = (replace(segment, message=segment.message + 1) for segment in made.segments)
    return replace(made, call=call, segments=tuple(shifted))


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _thinking_line(thinking: Thinking) -> JournalLine:
    word = "on" if thinking.on else "off"
    return JournalLine("thinking", word, numbers={"budget": thinking.budget})


def _failed(port: str, fault: PortFault) -> JournalLine:
    return JournalLine("error", fault.reason, task=port)
