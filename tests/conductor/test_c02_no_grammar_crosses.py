"""Bug class 2, its pure part: a schema of a side call stays with that call."""

import asyncio
import copy

from conductor.classify import Answers, Past, classify
from conductor.ports import Question, Reply
from conductor.profiles import Profile, Router, TaskClass
from conductor.shape import without_billing
from conductor.side import side_of
from conductor.turn import turn_of
from proto.chat import AnswerFormat
from tests.conductor.client_requests import asked_of, call_of, facts_of, said

SIDE = call_of(
    said("system", "x-anthropic-billing-header: v=1;"),
    said("user", "<session>mend it</session>"),
    fields={"title": {"type": "string"}},
)
TURN = call_of(said("system", "You are an agent."), said("user", "mend it"), tools=("read",))
CLASSES = {name: TaskClass(name, 100) for name in ("edit", "other")}


class Model:
    """Keeps the last question."""

    def __init__(self) -> None:
        self.question = Question("", "")

    async def ask(self, question: Question) -> Reply:
        self.question = question
        return Reply("edit", 1.0, 1)


def test_planning_one_leaves_the_form_of_both() -> None:
    before = copy.deepcopy((SIDE, TURN))
    side, turn = without_billing(SIDE), without_billing(TURN)
    plan = side_of(facts_of(asked_of(SIDE, tools="empty")), side, "claude-code")
    assert plan is not None
    model = Model()
    profile = Profile("coding", router=Router(classes=CLASSES))
    asyncio.run(
        classify(
            turn_of(turn), turn, facts_of(asked_of(TURN)), profile, Past(),
            ask=model, answers=Answers(),
        )
    )  # fmt: skip
    assert before == (SIDE, TURN)
    assert side.answer_format == SIDE.answer_format
    assert turn.answer_format == AnswerFormat()
    assert model.question.choices == ("edit", "other")
    assert model.question.schema is None
