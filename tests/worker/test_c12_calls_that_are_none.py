"""Bug class 12: calls in the reasoning, calls in bare text, split markers, brackets in code."""

import pytest
from looping import BEGINS_TO_REASON, said_by
from scripted import END, TOKENIZER, saying
from test_watch import then

from conductor.monitor.tasks import monitor_plan
from proto.plan import MonitorPlan, MonitorTask, Thinking

CALL = '{"name": "now", "arguments": {}}'
TAGGED = f"<tool_call>\n{CALL}\n</tool_call>"
BRACKETS = 'if (a < b) { run({"name": "now"}); } // <tool, <function f, [[tool_call]]'
SHIPPED = monitor_plan({})
ACTS = monitor_plan({"C2": MonitorTask("act")})


@pytest.mark.parametrize(("plan", "task"), [(SHIPPED, "E1"), (ACTS, "C2")])
def test_a_call_that_stays_in_the_reasoning_is_made_behind_it(plan: MonitorPlan, task: str) -> None:
    """As shipped the answer is an empty one; where C2 acts it is the call that is missing."""
    said = said_by(
        then(f"I need the time: {CALL}", TAGGED), template=BEGINS_TO_REASON,
        thinking=Thinking(on=True), monitor=plan,
    )  # fmt: skip
    assert [one for one, _ in said.acts] == [task]
    assert (said.calls, said.finish) == ((("now", "{}"),), "tool_calls")


@pytest.mark.parametrize("written", [CALL, f"```json\n{CALL}\n```", f"\n{CALL}\n"])
def test_a_whole_answer_that_is_a_call_is_one(written: str) -> None:
    said = said_by(saying(written), monitor=SHIPPED)
    assert (said.text, said.calls, said.finish) == ("", (("now", "{}"),), "tool_calls")


def test_a_marker_may_be_cut_anywhere() -> None:
    ids = [one for char in TAGGED for one in TOKENIZER.encode_literal(char)]
    said = said_by(lambda _, number: [*ids, END][min(number, len(ids) + 1) - 1], monitor=SHIPPED)
    assert (said.text, said.calls) == ("", (("now", "{}"),))


@pytest.mark.parametrize(
    "written",
    [
        BRACKETS,
        f"```js\n{BRACKETS}\n```\n",
        f'It is written {{"name": "now"}}, so: {CALL} is a call.',
        "Behind <tool_call> stands the call, before </tool_call> it ends.",
        f"```\n<tool_call>\n{CALL.replace('now', 'your_tool')}\n</tool_call>\n```\nis the form.",
    ],
)
@pytest.mark.parametrize("stream", ["live", "held"])
def test_code_and_talk_about_calls_stay_as_they_are(written: str, stream: str) -> None:
    said = said_by(saying(written), monitor=SHIPPED, stream=stream)
    assert (said.text, said.calls, said.acts, said.finish) == (written, (), (), "stop")
