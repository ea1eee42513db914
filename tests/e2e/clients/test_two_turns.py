"""Coding agents that speak chat, before the conductor: two turns with a tool, and what was seen.

`make clients` runs this; it is not in the gate because the programs take 500 MB.
"""

from itertools import pairwise

import pytest

from proto.messages import Submit
from tests.e2e.clients.engine import CLASS, notes
from tests.e2e.clients.played import ANSWERS, PROMPTS, Played, played_by
from tests.e2e.clients.programs import PROGRAMS

pytestmark = pytest.mark.clients

SIDES: dict[str, list[str]] = {"opencode": ["title"], "qwen-code": [], "continue": []}


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda program: program.kind)
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return played_by(request.param, tmp_path_factory.mktemp(request.param.command))


def test_it_prints_what_its_tool_found(played: Played) -> None:
    for said, answer in zip(played.said, ANSWERS, strict=True):
        assert said.status == 0 and answer in said.out, said


def test_every_request_has_a_row_that_names_client_profile_and_session(played: Played) -> None:
    kinds = sorted(row["kind"] for row in played.rows)
    sides = SIDES[played.program.kind]
    assert kinds == ["classifier"] * 2 + ["generation"] * 4 + ["side"] * len(sides)
    assert {row["outcome"] for row in played.rows} == {"succeeded"}
    assert {row["client_kind"] for row in played.rows} == {played.program.kind}
    asked = played.turns + played.sides
    assert {(row["profile"], row["path"], row["status"]) for row in asked} == {
        ("coding", "managed", 200)
    }
    (session,) = {row["session_hash"] for row in asked}
    assert session


def test_the_journal_names_profile_and_session_of_every_request(played: Played) -> None:
    for row in played.turns + played.sides:
        (line,) = played.lines(row, "profile")
        assert (line["reason"], line["profile"]) == ("coding", "coding")
        assert line["session"] == row["session_hash"]
    assert not [line for line in played.journal if line["event"] == "error"]


def test_helper_calls_are_known_by_their_kind_and_turns_are_none(played: Played) -> None:
    assert [row["side_kind"] for row in played.sides] == SIDES[played.program.kind]
    for row in played.sides:
        (line,) = played.lines(row, "side")
        assert line["reason"] == row["side_kind"]
        assert not played.lines(row, "class") and not played.lines(row, "note_new")
        assert row["task_class"] is None
    for row in played.turns:
        assert row["side_kind"] is None and not played.lines(row, "side")
    for run in played.engine.sides:
        assert not notes(run) and not run.plan.thinking.on
        assert (run.plan.cap, run.plan.lane, run.params.stop) == (64, "side", ("\n",))


def test_the_model_is_asked_once_about_each_new_message_of_the_user(played: Played) -> None:
    lines = [line for row in played.turns for line in played.lines(row, "class")]
    assert [line["reason"] for line in lines] == ["model", "kept", "model", "kept"]
    assert {row["task_class"] for row in played.turns} == {CLASS}
    parents = [row["parent_request_id"] for row in played.rows if row["kind"] == "classifier"]
    assert parents == [played.turns[0]["request_id"], played.turns[2]["request_id"]]
    asked = [question.call.messages[-1].text for question in played.engine.questions]
    assert len(asked) == 2
    assert all(prompt in text for prompt, text in zip(PROMPTS, asked, strict=True)), asked


def test_a_note_stands_where_it_stood_in_every_later_prompt(played: Played) -> None:
    first, second, third, fourth = (notes(run) for run in played.engine.turns)
    assert len(first) == 1 and second == first
    assert len(third) == 2 and third[0] == first[0] and fourth == third
    placed = [len(played.lines(row, "note_new")) for row in played.turns]
    again = [
        line["numbers"]["count"]
        for row in played.turns
        for line in played.lines(row, "note_replay")
    ]
    assert (placed, again) == ([1, 0, 1, 0], [1, 1, 2])
    assert not [line for line in played.journal if line["event"] == "note_lost"]


def test_each_prompt_begins_with_the_one_before(played: Played) -> None:
    runs: list[Submit] = played.engine.turns
    for before, after in pairwise(runs):
        assert after.call.messages[: len(before.call.messages)] == before.call.messages


def test_no_client_sees_what_the_conductor_adds(played: Played) -> None:
    shown = "".join(said.out + said.err for said in played.said)
    assert "tandem_note" not in shown and CLASS not in shown.split()
