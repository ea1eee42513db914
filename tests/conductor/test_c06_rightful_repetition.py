"""Bug class 6: what repeats rightly. No task acts on it, wherever in an answer it stands."""

import json
from pathlib import Path

import pytest

from conductor.monitor.policy import Monitor
from conductor.monitor.tasks import TASKS
from conductor.monitor.verdicts import GO_ON, Block, Calls, End, MadeCall, Phase
from proto.chat import Tool
from tests.conductor.monitor.rightful import EQUAL_TOKENS, prose, rightful_texts
from tests.conductor.monitor.watched import facts, plan_with, tokens_of

TEXTS = {name: tokens_of(text) for name, text in rightful_texts()} | {
    f"256 times {token!r}": [*tokens_of(prose(14, 20)), *[token] * 256] for token in EQUAL_TOKENS
}
ALL = {name: "act" if task.can_act else "shadow" for name, task in TASKS.items()}
ROOT = Path(__file__).parents[2]
FILES = sorted(
    path
    for pattern in ("LICENSE", "*.md", "docs/**/*.md", "conductor/**/*.py", "worker/text/*.py")
    for path in ROOT.glob(pattern)
    if path.stat().st_size > 8_000
)
WRITE = Tool("write_file", None, {"type": "object", "properties": {"text": {"type": "string"}}})


def found(*parts: tuple[Phase, list[str]], calls: tuple[MadeCall, ...] = ()) -> list[str]:
    """What a monitor with every task at work says to an answer of these parts."""
    monitor = Monitor(plan_with(ALL), facts(tools=(WRITE,)))
    for phase, tokens in parts:
        for token in tokens:
            assert monitor.on_block(Block(phase, token, 1, 1000)) == GO_ON
    if calls:
        assert monitor.on_calls(Calls(calls)) == GO_ON
    finish = "tool_calls" if calls else "stop"
    end = End(finish, "eos", has_text=not calls, calls=len(calls), is_open=False, room=1000)
    assert monitor.on_end(end) == GO_ON
    return [finding.task for finding in monitor.take_findings()]


@pytest.mark.parametrize("name", TEXTS)
def test_in_reasoning_and_answer(name: str) -> None:
    assert found(("reasoning", TEXTS[name]), ("answer", TEXTS[name])) == []


@pytest.mark.parametrize("name", TEXTS)
def test_in_the_arguments_of_a_call(name: str) -> None:
    text = "".join(TEXTS[name])
    arguments = json.dumps({"text": text}, ensure_ascii=False)
    raw = f'<tool_call>\n{{"name": "write_file", "arguments": {arguments}}}\n</tool_call>'
    tagged = f"<function=write_file>\n<parameter=text>\n{text}\n</parameter>\n</function>"
    for written in (raw, tagged):
        calls = (MadeCall(0, "write_file", arguments),)
        assert found(("call", tokens_of(written)), calls=calls) == []


def test_texts_and_programs_of_this_project() -> None:
    assert len(FILES) >= 15
    for path in FILES:
        tokens = tokens_of(path.read_text())
        assert found(("reasoning", tokens), ("answer", tokens)) == [], path.name
