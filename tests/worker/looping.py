"""A run of the scripted loop as its client has it: what was said, of what kind, and its end."""

from dataclasses import dataclass
from typing import Any

from scripted import COMPILER, TOKENIZER, Bench, submit, writer_of

from conductor.monitor.policy import Monitor
from conductor.monitor.verdicts import PromptFacts, Watch
from proto.chat import Call, Message, TextPart, Tool
from proto.events import Usage
from proto.messages import Delta, Done
from proto.plan import MonitorPlan, Plan, Thinking
from worker.hosting import Hosting

# Templates: what a model may do by itself, what the prompt begins for it.
MAY_REASON = "{{ messages[0].content }}{# tools </think> #}"
BEGINS_TO_REASON = "{{ messages[0].content }}\n<think>\n{# tools </think> #}"
NO_THINKING = Thinking()
TOOLS = (
    Tool("now"),
    Tool("get_weather", None, {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    }),
)  # fmt: skip


@dataclass(frozen=True)
class Said:
    """What a client has of a run. `hidden`: ids that it does not see."""

    reasoning: str
    text: str
    calls: tuple[tuple[str, str], ...]
    finish: str
    detail: str
    usage: Usage
    closed_by: str | None
    hidden: tuple[int, ...]
    acts: tuple[tuple[str, str], ...]
    deltas: tuple[Delta, ...]
    reasoned_chars: int


def said_by(
    script: Any,
    *,
    template: str = MAY_REASON,
    thinking: Thinking = NO_THINKING,
    monitor: MonitorPlan | None = None,
    new_watch: Any = Monitor,
    stream: str = "held",
    tools: tuple[Tool, ...] = TOOLS,
    is_consuming: bool = False,
    **params: Any,
) -> Said:
    """Runs a script to its end."""

    def watch(plan: MonitorPlan, facts: PromptFacts) -> Watch:
        made: Watch = new_watch(plan, facts)
        return made

    hosting = Hosting(watch, TOKENIZER.encode_literal, COMPILER, "hermes", is_strict=True)
    bench = Bench(script, writer=writer_of(template), max_len=12_000, hosting=hosting)
    bench.engine.is_consuming = is_consuming
    bench.hello()
    plan = Plan(thinking=thinking, monitor=monitor, tool_stream=stream)  # type: ignore[arg-type]
    call = Call("m", (Message("user", (TextPart("hello"),)),), tools)
    bench.say(
        submit(
            call=call, plan=plan, credit=12_000,
            params={"temperature": 0.0, "max_tokens": 10_000, **params},
        )
    )  # fmt: skip
    done = bench.turn_until_done("r1", limit=30_000)
    return _said(bench.messages(Delta), done)


def _said(deltas: list[Delta], done: Done) -> Said:
    texts = {"reasoning": "", "text": "", "call": ""}
    hidden: list[int] = []
    calls: dict[int, list[str]] = {}
    for delta in deltas:
        tokens = zip(delta.ids, delta.pieces, delta.kinds, delta.hidden, strict=True)
        for token, piece, kind, is_hidden in tokens:
            if is_hidden:
                hidden.append(token)
            else:
                texts[kind] += piece
        for part in delta.calls or ():
            made = calls.setdefault(part.index, [part.name or "", ""])
            made[1] += part.args or ""
    acts = [event for delta in deltas for event in delta.events or () if event.mode == "act"]
    return Said(
        texts["reasoning"], texts["text"], tuple((name, args) for name, args in calls.values()),
        done.finish, done.detail, done.usage, done.thinking_closed_by, tuple(hidden),
        tuple((event.task, event.reason) for event in acts), tuple(deltas), done.reasoned_chars,
    )  # fmt: skip
