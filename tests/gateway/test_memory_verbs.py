"""`tandem memory`: what it prints and changes."""

import asyncio
import json
from pathlib import Path

import pytest

from conductor.memory.notes import Draft, MemoryEntry, MemoryScope
from gateway.cli import main
from gateway.notebook.desk import Desk
from gateway.notebook.memory_notes import MemoryStore
from gateway.store.db import Database
from gateway.store.memory_desk import list_notes
from gateway.store.migrate import migrate
from gateway.store.schema import STORE

NOW = 1_764_590_400_000
LONG = "the oven " * 30


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "tandem.yaml"
    file.write_text(f"worker: {{}}\nserver: {{state_dir: {tmp_path}/state}}\n")
    return file


@pytest.fixture
def database(config: Path) -> Database:
    """The store with three notes."""
    made = Database.open(config.parent / "state" / "tandem.sqlite", only_below=config.parent)
    migrate(made, STORE)
    desk = Desk(made)
    bakery, none = MemoryScope("laptop", "bakery"), MemoryScope("desk")
    entries = [
        MemoryEntry(bakery, Draft("fact", "flour is in the cellar"), "5e55", NOW),
        MemoryEntry(none, Draft("todo", LONG), "7a11", NOW),
        MemoryEntry(bakery, Draft("fact", "flour is upstairs", replaces=1), "5e55", NOW),
    ]
    asyncio.run(MemoryStore(made, desk).add(entries))
    desk.close(60)
    return made


def run(config: Path, *words: str) -> int:
    return main(["memory", *words, "--config", str(config)])


@pytest.mark.usefixtures("database")
def test_notes_are_listed_a_line_each(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, "pin", "2") == 0
    assert run(config, "list") == 0
    assert capsys.readouterr().out.splitlines() == [
        "     1 - laptop  bakery  fact: flour is in the cellar",
        f"     2 * desk  (none)  todo: {LONG[:99]}…",
        "     3   laptop  bakery  fact: flour is upstairs",
    ]
    assert run(config, "pin", "2", "--off") == 0
    assert run(config, "list", "--key", "desk", "--project", "", "--json") == 0
    (note,) = json.loads(capsys.readouterr().out)
    assert (note["id"], note["text"], note["pinned"]) == (2, LONG, 0)


@pytest.mark.usefixtures("database")
def test_one_note_is_shown_whole(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, "show", "2") == 0
    shown = capsys.readouterr().out
    assert f"text          {LONG}\n" in shown
    assert "created       2025-12-01T12:00:00Z\n" in shown
    assert "superseded" not in shown
    assert run(config, "show", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["superseded_by"] == 3


def test_notes_are_removed(
    config: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config, "rm", "1", "9", "3", "8") == 1
    assert capsys.readouterr().err == "tandem: there is no memory note 9, 8\n"
    assert [note.id for note in list_notes(database.reader)] == [2]
    assert run(config, "rm", "2") == 0
    assert list_notes(database.reader) == []


@pytest.mark.usefixtures("database")
def test_notes_are_exported_as_json_lines(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, "export", "--project", "bakery") == 0
    notes = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [note["id"] for note in notes] == [1, 3]


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("words", [["show", "9"], ["pin", "9"], ["rm", "9"]])
def test_a_note_that_is_not_there_is_one_sentence(
    config: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert run(config, *words) == 1
    assert capsys.readouterr().err == "tandem: there is no memory note 9\n"


def test_where_serve_has_not_been_nothing_is_made(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(config, "list") == 1
    assert "there is no store at" in capsys.readouterr().err
    assert not (config.parent / "state").exists()


def test_notes_are_those_of_the_database_that_the_store_names(
    config: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = config.parent / "elsewhere" / "notes.sqlite"
    with config.open("a") as file:
        file.write(f"store: {{url: 'sqlite:///{elsewhere}'}}\n")
    assert run(config, "list") == 1
    assert f"there is no store at {elsewhere}" in capsys.readouterr().err
    assert not elsewhere.parent.exists()
    elsewhere.parent.mkdir()
    assert database.path is not None
    database.writer.close()
    database.path.rename(elsewhere)
    assert run(config, "show", "3") == 0
    assert "flour is upstairs" in capsys.readouterr().out


def test_a_store_that_cannot_be_opened_is_one_sentence(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with config.open("a") as file:
        file.write("store: {url: 'sqlite://host/notes'}\n")
    assert run(config, "list") == 1
    assert "the store cannot be opened: A database address begins" in capsys.readouterr().err


@pytest.mark.postgres
def test_notes_may_stand_in_postgresql(
    config: Path, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with config.open("a") as file:
        file.write(f"store: {{url: 'file:{config.parent}/url'}}\n")
    (config.parent / "url").write_text(postgres_url)
    (config.parent / "url").chmod(0o600)
    assert run(config, "list") == 0
    assert capsys.readouterr().out == ""
    assert run(config, "rm", "1") == 1


def test_a_database_of_before_gets_its_tables(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Database.open(config.parent / "state" / "tandem.sqlite", only_below=config.parent).close()
    assert run(config, "list") == 0
    assert capsys.readouterr().out == ""


def test_tables_that_cannot_be_made_are_one_sentence(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Database.open(config.parent / "state" / "tandem.sqlite", only_below=config.parent)
    with made.writer.transaction() as cursor:
        cursor.execute("CREATE TABLE memory_notes (somebody_elses INTEGER)")
    made.close()
    assert run(config, "list") == 1
    assert "could not be brought to the newest version" in capsys.readouterr().err
