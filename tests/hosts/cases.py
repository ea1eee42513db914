"""What a model writes, what the monitor says to it, and what the client then sees: one table for
all hosts."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conductor.monitor.policy import Monitor
from conductor.monitor.tasks import monitor_plan
from conductor.monitor.verdicts import (
    GO_ON,
    Block,
    CallForm,
    Calls,
    CloseReasoning,
    Constrain,
    Continue,
    End,
    Finding,
    Inject,
    PastCall,
    PromptFacts,
    Regenerate,
    Stop,
    Verdict,
)
from proto.chat import Tool
from proto.plan import MonitorPlan, MonitorTask
from tests.conductor.monitor.rightful import prose

PATH = {"path": {"type": "string"}, "lines": {"type": "integer"}}
TOOLS = (
    Tool("read_file", None, {"type": "object", "properties": PATH, "required": ["path"]}),
    Tool("now", None, {"type": "object", "properties": {"zone": {"type": "string"}}}),
    Tool("send_mail", None, {"type": "object", "properties": {"to": {"type": "string"}}}),
)
KEY = "ghp_" + "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY1zA2"


@dataclass(frozen=True)
class Writes:
    """What the model writes before its own end, or up to a limit (`is_cut`).

    `calls`: name and arguments as written. `is_unclosed`: the last call has no end.
    """

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""
    is_open: bool = False
    is_cut: bool = False
    is_unclosed: bool = False


@dataclass(frozen=True)
class Shown:
    """What the client has of the answer in the end."""

    text: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    finish: str = "stop"


@dataclass(frozen=True)
class Case:
    """`acts`: the verdict, as `words_of` says it. `then`: what is written behind it.

    `shadow`: what is shown where the task only looks; `act`: where it acts. `is_told`: the journal
    has a line of it. `is_cut_off`: where it acts, less is shown than that.
    """

    task: str
    writes: Writes
    acts: tuple[str, ...]
    act: Shown
    shadow: Shown
    then: Writes = Writes()
    params: Mapping[str, Any] = field(default_factory=dict)
    budget: int | None = None
    past: tuple[PastCall, ...] = ()
    is_told: bool = True
    is_cut_off: bool = False

    def plan(self, mode: str) -> MonitorPlan:
        """All tasks off but this one."""
        off: dict[str, MonitorTask] = dict.fromkeys(monitor_plan({}).tasks, MonitorTask("off"))
        own = MonitorTask(mode, dict(self.params))  # type: ignore[arg-type]
        return monitor_plan(off | {self.task: own})


class Recorded:
    """A monitor, and what it said that was not to go on. `findings`: all of them."""

    def __init__(self, plan: MonitorPlan, facts: PromptFacts) -> None:
        self._monitor = Monitor(plan, facts)
        self.said: list[str] = []
        self.findings: list[Finding] = []

    def before_prefill(self, facts: PromptFacts) -> Verdict:
        return self._kept(self._monitor.before_prefill(facts))

    def on_block(self, block: Block) -> Verdict:
        return self._kept(self._monitor.on_block(block))

    def on_calls(self, calls: Calls) -> Verdict:
        return self._kept(self._monitor.on_calls(calls))

    def on_end(self, end: End) -> Verdict:
        return self._kept(self._monitor.on_end(end))

    def horizon(self) -> int:
        return self._monitor.horizon()

    def take_findings(self) -> tuple[Finding, ...]:
        found = self._monitor.take_findings()
        self.findings += found
        return found

    def _kept(self, verdict: Verdict) -> Verdict:
        if verdict != GO_ON and (word := words_of(verdict)) not in self.said[-1:]:
            self.said.append(word)
        return verdict


def words_of(verdict: Verdict) -> str:
    """A verdict without what hosts may differ in: how much of a text it stands for."""
    match verdict:
        case Continue(_, None):
            return "text"
        case Continue(_, calls):
            assert calls is not None
            return " ".join(["calls", *(f"{one.name}{one.arguments}" for one in calls)])
        case CloseReasoning(_, by):
            return f"close {by}"
        case Stop(finish, keep):
            return f"stop {finish} {keep}"
        case Regenerate(index, spec, note):
            form = spec.tool or "any" if isinstance(spec, CallForm) else "free"
            return f"again {index} {form}" + (" noted" if note else "")
        case Inject():
            return "inject"
        case Constrain(spec, until):
            return f"constrain {spec} {until}"


def _calls(*calls: tuple[str, Any]) -> Shown:
    return Shown("", calls, "tool_calls")


def _call(name: str, **arguments: Any) -> tuple[str, str]:
    return name, json.dumps(arguments)


def _drift() -> str:
    """A few thoughts in ever other order."""
    rng = random.Random(5)
    thoughts = [
        "perhaps the answer is in the first part", "the second part says otherwise",
        "it could be that I read it wrong", "the number does not fit the question",
        "we have to look at the beginning again", "nothing in the text settles this",
    ]  # fmt: skip
    return "".join(
        f"{rng.choice(('But', 'So', 'Still'))} {rng.choice(thoughts)}, and {rng.choice(thoughts)}. "
        for _ in range(200)
    )


LOOP = prose(1, 8) + "Wait, let me reconsider whether the bridge really carries the load. " * 40
PARAGRAPH = prose(31, 24).replace("\n\n", " ").strip() + "\n\n"
ENDLESS = PARAGRAPH * 4 + prose(32, 60)
BROKEN = Shown("", (), "error")  # a call that nobody may send
SAID = Shown("It holds.")
HOLDS = Writes("It holds.")
SAME = (PastCall("now", "{}", "12:00"),) * 3
TIMES = _call("now")
READ = ("read_file", {"path": "a"})

CASES: dict[str, Case] = {
    "D1 a loop": Case(
        "D1", Writes("Well.", reasoning=LOOP), ("close D1",), SAID, Shown("Well."), then=HOLDS
    ),
    "D1b nothing new": Case(
        "D1b", Writes("Well.", reasoning=_drift()), ("close D1b",), SAID, Shown("Well."), then=HOLDS
    ),
    "D2 a spent budget": Case(
        "D2", Writes("Well.", reasoning=prose(2, 30)), ("close D2",), SAID, Shown("Well."),
        then=HOLDS, params={"line_end_tokens": 0}, budget=40,
    ),
    "D3 a paragraph": Case(
        "D3", Writes(ENDLESS), ("stop stop None",), Shown(ENDLESS), Shown(ENDLESS), is_cut_off=True,
    ),
    "E1 an empty answer": Case("E1", Writes(""), ("inject",), SAID, Shown(""), then=HOLDS),
    "E1 an open block": Case(
        "E1", Writes(reasoning="It is easy.", is_open=True), ("close E1",), SAID, Shown(""),
        then=HOLDS,
    ),
    "C1 an unclosed call": Case(
        "C1", Writes(calls=(("read_file", '{"path": "a"'),), is_unclosed=True),
        ('calls read_file{"path": "a"}',), _calls(READ), BROKEN,
    ),
    "C2 a call in the reasoning": Case(
        "C2",
        Writes(reasoning=f'I look. {json.dumps({"name": "now", "arguments": {}})}', is_open=True),
        ("close C2",), _calls(("now", {})), Shown(""), then=Writes(calls=(TIMES,)),
    ),
    "C3 a name one letter off": Case(
        "C3", Writes(calls=(_call("Read_fil", path="a"),)), ('calls read_file{"path": "a"}',),
        _calls(READ), _calls(("Read_fil", {"path": "a"})),
    ),
    "C3 a text for a number": Case(
        "C3", Writes(calls=(_call("read_file", path="a", lines="3"),)),
        ('calls read_file{"path": "a", "lines": 3}',),
        _calls(("read_file", {"path": "a", "lines": 3})),
        _calls(("read_file", {"path": "a", "lines": "3"})),
    ),
    "C3 a wrong type": Case(
        "C3", Writes(calls=(_call("read_file", path="a", lines="many"),)), ("again 0 read_file",),
        _calls(READ), _calls(("read_file", {"path": "a", "lines": "many"})),
        then=Writes(calls=(_call("read_file", path="a"),)),
    ),
    "C3 a tool that is not offered": Case(
        "C3", Writes(calls=(_call("look_up", path="a"),)), ("again 0 any",), _calls(READ),
        _calls(("look_up", {"path": "a"})), then=Writes(calls=(_call("read_file", path="a"),)),
    ),
    "C4 a call that came back the same": Case(
        "C4", Writes(calls=(TIMES,)), ("again 0 free noted",), _calls(READ), _calls(("now", {})),
        then=Writes(calls=(_call("read_file", path="a"),)), past=SAME,
    ),
    "C5 two changes": Case(
        "C5", Writes(calls=(_call("send_mail", to="a"), _call("send_mail", to="b"))),
        ("stop tool_calls 1",), _calls(("send_mail", {"to": "a"})),
        _calls(("send_mail", {"to": "a"}), ("send_mail", {"to": "b"})),
    ),
    "C6 a cut call": Case(
        "C6", Writes(calls=(("read_file", '{"path": "a'),), is_cut=True, is_unclosed=True),
        ("stop length 0",), Shown("", (), "length"), Shown("", (), "length"),
    ),
    "M1 a key of a result": Case(
        "M1", Writes(f"It is {KEY}, so."), ("text",), Shown("It is ghp_…(masked), so."),
        Shown(f"It is {KEY}, so."), past=(PastCall("now", "{}", f"token: {KEY}"),),
    ),
    "M1 what only begins like it": Case(
        "M1", Writes("It begins with ghp_"), ("text",), Shown("It begins with ghp_"),
        Shown("It begins with ghp_"), past=(PastCall("now", "{}", f"token: {KEY}"),), is_told=False,
    ),
}  # fmt: skip
