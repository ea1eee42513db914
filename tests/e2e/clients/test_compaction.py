"""Agents whose conversation is full by what the engine counts: they have it summed up."""

import pytest

from tests.e2e.clients.engine import SUMMARY, notes, spoken
from tests.e2e.clients.played import ANSWERS, Played, played_by
from tests.e2e.clients.programs import OPENCODE, QWEN

pytestmark = pytest.mark.clients

# Tokens that leave no room: opencode knows the context of its configuration, Qwen Code guesses one.
FULL = {"opencode": 95_000, "qwen-code": 125_000}


@pytest.fixture(scope="module", params=[OPENCODE, QWEN], ids=lambda program: program.kind)
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp(request.param.command)
    return played_by(request.param, folder, FULL[request.param.kind])


def test_a_summary_is_known_by_its_kind_and_gets_no_class_and_no_new_note(played: Played) -> None:
    assert [said.status for said in played.said] == [0, 0] and ANSWERS[1] in played.said[1].out
    (row,) = [row for row in played.sides if row["side_kind"] == "compaction"]
    assert (row["profile"], row["client_kind"]) == ("coding", played.program.kind)
    assert row["task_class"] is None and not played.lines(row, "class")
    assert not played.lines(row, "note_new")


def test_the_model_is_asked_about_users_messages_alone(played: Played) -> None:
    asked = [row for row in played.rows if row["kind"] == "classifier"]
    assert len(asked) == 2, [
        question.call.messages[-1].text for question in played.engine.questions
    ]


def test_the_next_turn_begins_with_the_summary(played: Played) -> None:
    after = played.engine.turns[-1]
    assert any(SUMMARY in message.text for message in spoken(after.call))
    assert len(notes(after)) >= 1
