"""Agents whose conversation is full by what the engine counts: they have it summed up."""

from pathlib import Path

import pytest

from tests.e2e.clients.engine import SUMMARY, notes, spoken
from tests.e2e.clients.played import ANSWERS, PROMPTS, Played, played_by
from tests.e2e.clients.programs import NARROW_CONTINUE, OPENCODE, QWEN

pytestmark = pytest.mark.clients

# Tokens that leave no room: opencode knows the context of its configuration, Qwen Code guesses one.
FULL = {"opencode": 95_000, "qwen-code": 125_000}


@pytest.fixture(scope="module", params=[OPENCODE, QWEN], ids=lambda program: program.kind)
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp(request.param.command)
    return played_by(request.param, folder, full_tokens=FULL[request.param.kind])


def test_a_summary_is_known_by_its_kind_and_gets_no_class_and_no_new_note(played: Played) -> None:
    assert [said.status for said in played.said] == [0, 0] and ANSWERS[1] in played.said[1].out
    (row,) = [row for row in played.sides if row["side_kind"] == "compaction"]
    assert (row["profile"], row["client_kind"]) == ("coding", played.program.kind)
    assert row["task_class"] is None and not played.lines(row, "class")
    assert not played.lines(row, "note_new")


def test_the_model_is_asked_about_users_messages_alone(played: Played) -> None:
    asked = [row for row in played.rows if row["kind"] == "classifier"]
    texts = [question.call.messages[-1].text for question in played.engine.questions]
    assert len(asked) == len(texts) == 2, texts
    assert all(prompt in text for prompt, text in zip(PROMPTS, texts, strict=True)), texts


def test_the_next_turn_begins_with_the_summary(played: Played) -> None:
    after = played.engine.turns[-1]
    assert any(SUMMARY in message.text for message in spoken(after.call))
    assert len(notes(after)) >= 1


def test_who_sums_up_in_the_conversation_itself_asks_nobody_about_it(tmp_path: Path) -> None:
    """Continue keeps its tools in that request, and goes on by a word: a machine's, both."""
    played = played_by(NARROW_CONTINUE, tmp_path, lines=500)
    assert [said.status for said in played.said] == [0, 0], played.said
    texts = [question.call.messages[-1].text for question in played.engine.questions]
    assert len(texts) == 2
    assert all(prompt in text for prompt, text in zip(PROMPTS, texts, strict=True)), texts
    last = [run.call.messages[-1].text for run in played.engine.turns]
    assert any(text.startswith("Please provide a concise summary") for text in last), last
    new = [len(played.lines(row, "note_new")) for row in played.turns]
    assert sum(new) == 2 and not played.sides
