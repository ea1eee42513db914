"""Bug class 20: hidden text beside a stop string, log-probabilities and a limit."""

from typing import Any

import pytest
from looping import Said, said_by
from scripted import TOKENIZER
from test_watch import Scripted, once, then

from conductor.monitor.verdicts import Inject
from proto.plan import MonitorPlan

HIDDEN = "STOP. One two three four five six seven.\n"
SAID = "one two three, STOP and more"


def answered(hidden: str, written: str = SAID, **params: Any) -> Said:
    """The same answer, with hidden text before it or without. Both begin with an end."""
    watch = Scripted({"on_end": once(Inject(hidden))} if hidden else {})
    script = then("", written) if hidden else then(written)
    return said_by(
        script, monitor=MonitorPlan({}), new_watch=lambda plan, facts: watch, tools=(), **params
    )


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"stop": ("STOP",)},
        {"stop": ("three four", "One")},
        {"max_tokens": 3},
        {"max_tokens": len(TOKENIZER.encode(HIDDEN))},
        {"top_logprobs": 0},
    ],
    ids=str,
)
def test_none_of_them_moves_nor_usage_nor_finish(params: dict[str, Any]) -> None:
    alone, beside = answered("", **params), answered(HIDDEN, **params)
    assert beside.hidden == tuple(TOKENIZER.encode_literal(HIDDEN)) and not alone.hidden
    for name in ("text", "finish", "detail"):
        assert getattr(beside, name) == getattr(alone, name), name
    for name in ("prompt_tokens", "completion_tokens", "reasoning_tokens"):
        assert getattr(beside.usage, name) == getattr(alone.usage, name), name
    assert beside.usage.hidden_tokens == len(beside.hidden) + 1  # and the end that was taken back
    assert _logprobs(beside) == _logprobs(alone)


def _logprobs(said: Said) -> int:
    return sum(len(delta.logprobs or ()) for delta in said.deltas)
