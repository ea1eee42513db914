"""Bug class 1: opencode asks for a title beside turn 1, under the same session header."""

import asyncio
from dataclasses import replace

import pytest

from conductor.classify import Answers, Past, classify
from conductor.ports import Question, Reply
from conductor.profiles import Profile, Router, TaskClass
from conductor.side import side_of
from conductor.turn import Turn, turn_of
from conductor.types import Classified, Facts
from tests.conductor.client_requests import SMALL, asked_of, call_of, facts_of, said

SESSION = {"x-session-id": "ses_1", "x-session-affinity": "ses_1"}
WORDS = "mend the parser, please"
CLASSES = {name: TaskClass(name, 100) for name in ("edit", "debug", "other")}
PROFILE = Profile("coding", router=Router(classes=CLASSES))
TITLE = call_of(
    said("system", "You are a title generator. One line."),
    said("user", "Generate a title for this conversation:\n"),
    said("user", WORDS),
    model=SMALL,
)
TURN = call_of(said("system", "You are an agent."), said("user", WORDS), tools=("read", "bash"))


class Model:
    """Counts the questions."""

    def __init__(self) -> None:
        self.questions = 0

    async def ask(self, question: Question) -> Reply:
        self.questions += 1
        return Reply("edit", 1.0, 1)


def facts(call_is_title: bool, is_nearby: bool) -> Facts:
    call = TITLE if call_is_title else TURN
    asked = asked_of(call, headers=SESSION, max_tokens=32_000)
    return facts_of(asked, "opencode", has_turn_nearby=is_nearby)


@pytest.mark.parametrize("is_nearby", [True, False])
@pytest.mark.parametrize("session_model", [None, "TandemLLM"])
def test_the_title_is_one_whoever_comes_first(is_nearby: bool, session_model: str | None) -> None:
    title = side_of(facts(True, is_nearby), TITLE, "opencode", session_model)
    assert title is not None
    assert (title.kind, title.most_tokens, title.replays_notes) == ("title", 64, False)
    assert side_of(facts(False, is_nearby), TURN, "opencode", session_model) is None


def test_the_turn_is_taken_as_if_there_were_no_title() -> None:
    def turn_after(*titles: bool) -> tuple[Turn, Classified, int]:
        answers, model = Answers(), Model()
        for _ in titles:
            side_of(facts(True, True), TITLE, "opencode")
        turn = turn_of(TURN)
        task = asyncio.run(
            classify(turn, TURN, facts(False, True), PROFILE, Past(), ask=model, answers=answers)
        )
        return turn, task, model.questions

    alone = turn_after()
    assert alone == (Turn("user", WORDS, 1), Classified("edit", "model", 1.0, 1), 1)
    assert turn_after(True) == turn_after(True, True) == alone


def test_the_same_title_streamed_by_a_chat_program_is_a_turn() -> None:
    plain = replace(facts(True, False), client="open-webui")
    assert side_of(plain, TITLE, "open-webui") is None
