"""Bug class 2: a side call under a schema while the main turn decodes, and the other way round."""

import json

import pytest
from scripted import END, TOKENIZER, Bench, letters, submit, writer_of

from proto.chat import AnswerFormat, Call, Message, TextPart
from proto.plan import Plan
from proto.worker_settings import SideSettings

TITLE = AnswerFormat(
    "json_schema",
    {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
)
WRITTEN = json.dumps({"title": "mend it"})
LETTERS = 40  # that the free one writes


def asked(prompt: str, form: AnswerFormat = AnswerFormat()) -> Call:  # noqa: B008 - frozen
    return Call("m", (Message("user", (TextPart(prompt),)),), answer_format=form)


def script(ctx: tuple[int, ...], number: int) -> int:
    """Who is to write JSON does, and everybody else letters; each is told by its prompt."""
    if ctx[: len(PROMPT)] == PROMPT:
        ids = TOKENIZER.encode(WRITTEN)
        return ids[number - 1] if number <= len(ids) else END
    return letters(ctx, number) if number <= LETTERS else END


PROMPT = tuple(TOKENIZER.encode("json"))


@pytest.mark.parametrize("is_side_formed", [True, False], ids=["side formed", "main formed"])
@pytest.mark.parametrize("turns", [1, 3, 8, 20])
def test_no_state_of_a_grammar_crosses(is_side_formed: bool, turns: int) -> None:
    writer = writer_of("{{ messages[0].content }}")
    bench = Bench(script, side=SideSettings(prompt=40, output=60), writer=writer)
    bench.engine.is_consuming = True  # what a run's grammar does not allow ends it with an error
    bench.hello()
    calls = {"formed": asked("json", TITLE), "free": asked("go on")}
    first, second = ("free", "formed") if is_side_formed else ("formed", "free")
    for run_id, lane in ((first, "main"), (second, "side")):
        params = {"temperature": 0.0, "max_tokens": 60}
        plan = Plan(lane=lane)  # type: ignore[arg-type]
        bench.say(submit(run_id, call=calls[run_id], plan=plan, params=params))
        bench.turn(turns)
    ends = {run_id: bench.turn_until_done(run_id) for run_id in calls}
    assert {run_id: done.finish for run_id, done in ends.items()} == dict.fromkeys(calls, "stop")
    assert bench.text("formed") == WRITTEN
    assert bench.text("free") == "".join(chr(97 + n % 26) for n in range(LETTERS))
