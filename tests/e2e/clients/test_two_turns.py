"""Coding agents that speak chat, before the conductor: two turns with a tool, and what was seen.

`make clients` runs this; it is not in the gate because the programs take 500 MB.
"""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from proto.messages import Submit
from tests.e2e.clients.engine import CLASS, ScriptedEngine, notes
from tests.e2e.clients.programs import PROGRAMS, Desk, Program, Said
from tests.e2e.server import serving

pytestmark = pytest.mark.clients

INSTALLED = Path(os.environ.get("TANDEM_CLIENTS", ".clients")).absolute()
CONFIG = """
server: {{state_dir: STATE_DIR}}
worker: {{endpoint: '{endpoint}', spawn: false, conductor: true}}
"""
# The words of a turn say nothing about their kind: only the model can tell it.
PROMPTS = ("Which word does first.txt hold?", "And which word does second.txt hold?")
ANSWERS = ("It says word-first.", "It says word-second.")
SIDES: dict[str, list[str]] = {"opencode": ["title"], "qwen-code": [], "continue": []}


@dataclass(frozen=True, slots=True)
class Played:
    """What a client did, and what was written of it: rows and journal lines, oldest first."""

    program: Program
    said: tuple[Said, ...]
    engine: ScriptedEngine
    rows: list[dict[str, Any]]
    journal: list[dict[str, Any]]

    @property
    def turns(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["kind"] == "generation"]

    @property
    def sides(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["kind"] == "side"]

    def lines(self, row: dict[str, Any], event: str) -> list[dict[str, Any]]:
        """What the journal says of one request."""
        of_request = [line for line in self.journal if line["request_id"] == row["request_id"]]
        return [line for line in of_request if line["event"] == event]


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda program: program.kind)
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    program: Program = request.param
    path = program.path(INSTALLED)
    if not path.exists():
        pytest.skip(f"not run: {path} is not there (make clients)")
    return asyncio.run(play(program, path, tmp_path_factory.mktemp(program.command)))


async def play(program: Program, path: Path, folder: Path) -> Played:
    """Both turns, in one session."""
    with ExitStack() as stack:
        engine = ScriptedEngine(str(folder / "desk" / "workspace"))
        async with engine.worker().listening(folder) as endpoint:
            config = CONFIG.format(endpoint=endpoint)
            server = await asyncio.to_thread(stack.enter_context, serving(folder, config))
            await asyncio.to_thread(server.wait_until, True)
            desk = Desk(program, path, folder / "desk", server.base)
            await desk.set_up()
            for name in ("first", "second"):
                (desk.workspace / f"{name}.txt").write_text(f"Here stands word-{name}, alone.\n")
            said = [await desk.ask(PROMPTS[0]), await desk.ask(PROMPTS[1], goes_on=True)]
            await asyncio.to_thread(server.stop)
    rows = list(booked(server.state_dir))
    return Played(program, tuple(said), engine, rows, journal(folder / "tandem.yaml"))


def booked(state_dir: Path) -> Iterator[dict[str, Any]]:
    with closing(sqlite3.connect(state_dir / "ledger.sqlite")) as database:
        database.row_factory = sqlite3.Row
        for row in database.execute("SELECT * FROM ledger ORDER BY ts_ms, request_id"):
            yield dict(row)


def journal(config: Path) -> list[dict[str, Any]]:
    """What `tandem journal` shows."""
    words = ["journal", "grep", ".", "--json", "--config", str(config)]
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", *words], capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


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
