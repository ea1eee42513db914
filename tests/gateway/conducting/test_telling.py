"""An answer on its way: lines of status between its events, and what is noted of it."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from conductor.profiles import StatusRules
from conductor.status import Classed, StatusLines, Step, hash_of
from gateway.backends.run import Silence
from gateway.conducting.telling import Telling
from proto.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    Reading,
    ReasoningDelta,
    TextDelta,
    Waiting,
)
from proto.messages import MonitorEvent

Said = Event | Silence | MonitorEvent  # of the last, that it was found by then


class ScriptedRun:
    """Says these, one after the other; a second passes before each."""

    def __init__(self, said: Sequence[Said]) -> None:
        self.findings: list[MonitorEvent] = []
        self.now_ms = 0
        self._said = said

    async def events(self) -> AsyncIterator[Event | Silence]:
        for one in self._said:
            self.now_ms += 1000
            if isinstance(one, MonitorEvent):
                self.findings.append(one)
            else:
                yield one


async def told(
    *said: Said, first: Step | None = None, rules: StatusRules | None = None, has_lines: bool = True
) -> tuple[list[str], Telling]:
    """What the client is shown, with a letter for its kind, and the telling."""
    run: Any = ScriptedRun(said)
    rules = rules or StatusRules(min_wait_s=0.5, min_interval_s=0)
    lines = StatusLines(rules, 0) if has_lines else None
    telling = Telling(run, lines, rules.channel, first, lambda: run.now_ms)
    shown = []
    async for event in telling.events():
        match event:
            case ReasoningDelta(text):
                shown.append(f"r {text}")
            case TextDelta(text):
                shown.append(f"t {text}")
    return shown, telling


def act(task: str, mode: str = "act") -> MonitorEvent:
    return MonitorEvent(1, task, mode, "why")  # type: ignore[arg-type]


async def test_a_class_stands_first_and_a_wait_is_told_by_its_place_and_time() -> None:
    shown, telling = await told(
        Waiting(1, 40_000), Silence(), TextDelta("So."), first=Classed("debug")
    )
    assert shown == ["r › taking this as debug\n", "r › waiting, position 2, about 40 s\n", "t So."]
    assert telling.sent_lines == (
        hash_of("› taking this as debug"), hash_of("› waiting, position 2, about 40 s"),
    )  # fmt: skip


async def test_a_run_that_has_said_nothing_has_no_lines_yet() -> None:
    shown, telling = await told(Silence(), Silence(), first=Classed("debug"))
    assert shown == [] and telling.sent_lines == ()


async def test_the_time_that_is_left_follows_from_what_was_read_since_the_first_look() -> None:
    shown, _ = await told(
        Reading("memory_wait", 0, 20_000, 0),
        Reading("prefill", 2_000, 20_000, 2_000),
        Reading("prefill", 5_000, 20_000, 2_000),
        TextDelta("So."),
    )
    assert shown == [
        "r › reading 20,000 tokens\n", "r › reading 20,000 tokens, about 5 s left\n", "t So.",
    ]  # fmt: skip


async def test_a_loop_is_told_behind_its_last_words_and_a_repair_before_the_call() -> None:
    shown, _ = await told(
        ReasoningDelta("Round and round"),
        act("D1"),
        act("C3"),
        CallStart(0, "c", "find"),
        CallArguments(0, "{}"),
        CallEnd(0),
        rules=StatusRules(min_interval_s=0),
    )
    assert shown == [
        "r Round and round",
        "r \n› reasoning went in circles, closed it\n",
        "r › repairing a tool call\n",
    ]


async def test_what_only_happened_in_the_shadow_is_not_told() -> None:
    shown, telling = await told(act("D1", "shadow"), act("E1"), TextDelta("So."), act("D1"))
    assert shown == ["r › answer was empty, asking again\n", "t So."]
    assert len(telling.sent_lines) == 1


async def test_lines_may_stand_in_the_content_and_never_behind_its_first_text() -> None:
    shown, telling = await told(
        Waiting(0, 9_000), TextDelta("So."), act("E1"), Silence(),
        rules=StatusRules(channel="content", min_interval_s=0),
    )  # fmt: skip
    assert shown == ["t › waiting, position 1, about 9 s\n", "t So."]
    assert telling.answer.text == "So."


async def test_an_answer_without_lines_is_what_was_said_of_it() -> None:
    shown, telling = await told(
        Waiting(3, 90_000), ReasoningDelta("Hm"), ReasoningDelta("m."), act("D1"),
        CallStart(0, "c", "find"), CallArguments(0, '{"a"'), CallArguments(0, ": 1}"), CallEnd(0),
        first=Classed("debug"), has_lines=False,
    )  # fmt: skip
    assert shown == ["r Hm", "r m."] and telling.sent_lines == ()
    answer = telling.answer
    assert answer.reasoning == "Hmm." and answer.calls[0].arguments == '{"a": 1}'
