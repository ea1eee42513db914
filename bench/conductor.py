"""`make bench-conductor`: what planning a turn costs, in processor time. Knows no gateway.

A coding session of so many messages, with tools, notes replayed at every user message, and the
class of the new one decided by rules, so that no model is waited for.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any

from conductor.classes import CLASSES
from conductor.classify import Answers
from conductor.conductor import close, plan
from conductor.ports import PortFault, Ports, Question, Reply
from conductor.profiles import Match, Profile, Router
from conductor.types import Asked, Facts, NoteRecord, Outcome, Session, Settings, Target
from proto.chat import Call, Message, TextPart, Tool, ToolCall

TURN_MESSAGES = 4  # a question, a call, its result, an answer
RESULT_CHARS = 2_000  # of a tool's result, about 500 tokens
MOST_MS = 2.0  # asked of 200 messages
ROUNDS = 50

_PROFILE = Profile("own", match=Match(has_tools=True), router=Router(classes=CLASSES))
# The class by a header: what it says of effort is the note.
_HEADERS = {"user-agent": "opencode/1", "x-session-id": "one", "x-tandem-task-type": "chat"}
_NOTHING = Outcome()
_SETTINGS = Settings({"own": _PROFILE}, "own", {}, "rev")
_TOOLS = tuple(
    Tool(f"tool_{number}", "Does something.", {"type": "object"}) for number in range(12)
)


class Kept:
    """Sessions and notes in memory, found by what they are asked for."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.notes: list[NoteRecord] = []

    async def ask(self, question: Question) -> Reply:
        """Nobody answers: the rules decide."""
        raise PortFault("not_asked")


class _Sessions:
    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    async def find(self, scope: str, key: str) -> Sequence[Session]:
        return self._kept.sessions[-1:]

    async def save(self, session: Session) -> None:
        self._kept.sessions.append(session)


class _Notes:
    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    async def find(self, *words: Any) -> Sequence[NoteRecord]:
        return self._kept.notes

    async def save(self, records: Sequence[NoteRecord]) -> None:
        self._kept.notes += records


def main() -> int:
    """Measures and prints. 0 for a finished run, whatever it found."""
    options = argparse.ArgumentParser(prog="make bench-conductor")
    options.add_argument("--rounds", type=int, default=ROUNDS)
    args = options.parse_args()
    print("| messages | notes | plan, ms: median | least | most |\n|---|---|---|---|---|")
    for count in (1, 50, 200, 800):
        times, notes = asyncio.run(_measured(count, args.rounds))
        median = statistics.median(times)
        verdict = f" (asked: at most {MOST_MS:g})" if count == 200 else ""
        print(
            f"| {count} | {notes} | {median:.2f}{verdict} | {min(times):.2f} | {max(times):.2f} |"
        )
    return 0


async def _measured(count: int, rounds: int) -> tuple[list[float], int]:
    kept = Kept()
    ports = Ports(kept, _Sessions(kept), _Notes(kept))
    history = _history(count)
    for end in range(1, count, TURN_MESSAGES):  # so that every question has its note
        await _keep(history[:end], ports, kept)
    times = []
    for _ in range(rounds):
        began_s = time.process_time()
        made = await _plan(history, ports)
        times.append((time.process_time() - began_s) * 1000)
    return times, len(made.segments)


async def _keep(messages: tuple[Message, ...], ports: Ports, kept: Kept) -> None:
    found = close(await _plan(messages, ports), _NOTHING)
    if found.session is not None:
        await ports.sessions.save(found.session)
    await ports.notes.save(found.notes)


async def _plan(messages: tuple[Message, ...], ports: Ports) -> Any:
    asked = Asked("chat", _HEADERS, True, tools="some")
    facts = Facts(_SETTINGS, "opencode", asked, Target("engine", context_tokens=10**6), "k:1", 1)
    return await plan(Call("m", messages, _TOOLS), facts, ports, Answers())


def _history(count: int) -> tuple[Message, ...]:
    made: list[Message] = []
    while len(made) < count:
        number = len(made)
        call = ToolCall(f"c{number}", "tool_1", f'{{"path": "src/file_{number}.py"}}')
        result = f"line {number}\n" * (RESULT_CHARS // 8)
        made += [
            Message("user", (TextPart(f"Now change function {number} of the module, please."),)),
            Message("assistant", calls=(call,)),
            Message("tool", (TextPart(result),), call_id=call.id),
            Message("assistant", (TextPart(f"Function {number} is changed. " * 8),)),
        ]
    last = count - count % TURN_MESSAGES + 1 if count > 1 else 1
    return tuple(made[: last if last <= count else last - TURN_MESSAGES])


if __name__ == "__main__":
    raise SystemExit(main())
