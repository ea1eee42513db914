"""What every notebook does: in memory, in SQLite, in PostgreSQL."""

import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conductor.types import NoteRecord, Session
from gateway.notebook import keeping
from gateway.notebook.desk import Desk
from gateway.notebook.keeping import DAY_MS, Keeping, Notebook
from gateway.notebook.memory import MemoryNotebook
from gateway.notebook.rows import (
    note_of,
    place_of,
    row_of_note,
    row_of_session,
    session_of,
)
from gateway.notebook.stored import StoredNotebook
from gateway.store.db import Database
from gateway.store.migrate import migrate
from gateway.store.notebook_statements import NOTE, SESSION
from gateway.store.schema import STORE

PATIENCE_S = 60.0  # a machine that is busy is no fault
NOW_MS = 100 * DAY_MS
KINDS = ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(params=KINDS)
async def notebook(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Notebook]:
    """An empty notebook of each kind, in which a megabyte has 10 kB."""
    monkeypatch.setattr(keeping, "MIB", 10_000)
    rules = Keeping(ttl_days=30, max_mb=1)
    if request.param == "memory":
        yield MemoryNotebook(rules)
        return
    if request.param == "sqlite":
        target = str(tmp_path / "tandem.sqlite")
    else:
        target = request.getfixturevalue("postgres_url")
    database = Database.open(target, only_below=Path(tempfile.gettempdir()))
    migrate(database, STORE)
    opened = StoredNotebook(database, rules, Desk(database, wait_s=PATIENCE_S))
    opened.start()
    yield opened
    opened.close(PATIENCE_S)
    database.close()


def session(**more: object) -> Session:
    made = Session(
        "alice", "key", "chain", "coding", opening="o", created_ms=NOW_MS, used_ms=NOW_MS
    )
    return replace(made, **more)  # type: ignore[arg-type]


def note(**more: object) -> NoteRecord:
    made = NoteRecord(
        "alice", "key", "chain", "message", "user", 0, "note", "Think.", created_ms=NOW_MS,
        used_ms=NOW_MS,
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


async def all_notes(notebook: Notebook) -> list[NoteRecord]:
    """Those with the usual message."""
    return [*await notebook.notes.find("alice", [], ["message"])]


# -- sessions -------------------------------------------------------------------------------------

FULL_SESSION = session(
    task_class="debug", packages=("a", "b"), memories=("m",), lines=("l",), turns=3,
    config_rev="r",
)  # fmt: skip


async def test_a_session_comes_back_as_it_was(notebook: Notebook) -> None:
    for saved in (FULL_SESSION, session(opening="other")):
        await notebook.sessions.save(saved)
    assert {*await notebook.sessions.find("alice", "key")} == {
        FULL_SESSION,
        session(opening="other"),
    }


async def test_a_session_is_found_by_scope_and_key_alone(notebook: Notebook) -> None:
    await notebook.sessions.save(session())
    assert await notebook.sessions.find("bob", "key") == []
    assert await notebook.sessions.find("alice", "chain") == []


async def test_a_session_replaces_that_of_the_same_opening(notebook: Notebook) -> None:
    await notebook.sessions.save(session())
    later = replace(FULL_SESSION, chain="longer", created_ms=NOW_MS + 5, used_ms=NOW_MS + 5)
    await notebook.sessions.save(later)
    found = await notebook.sessions.find("alice", "key")
    assert found == [replace(later, created_ms=NOW_MS)]


async def test_sessions_of_one_key_come_last_used_first_and_not_without_end(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("memory", "stored"):
        monkeypatch.setattr(f"gateway.notebook.{module}.FOUND_SESSIONS", 2)
    for opening, ms in (("a", 2), ("b", 3), ("c", 1)):
        await notebook.sessions.save(session(opening=opening, used_ms=ms))
    found = await notebook.sessions.find("alice", "key")
    assert [one.opening for one in found] == ["b", "a"]


# -- notes ----------------------------------------------------------------------------------------

FULL_NOTE = note(
    kind="hidden", role="assistant", part=-1, offset=7, ids=(5, 6), tokenizer_hash="t",
    task_class="debug", version=2, part_hash="p", ordinal=3, text="Grüße 日本\n",
)  # fmt: skip


async def test_a_note_comes_back_as_it_was(notebook: Notebook) -> None:
    await notebook.notes.save([note(), FULL_NOTE])
    assert {*await notebook.notes.find("alice", ["chain"], [])} == {note(), FULL_NOTE}


async def test_a_note_is_found_by_chain_or_message_and_once(notebook: Notebook) -> None:
    here, there = note(chain="c1", message="m1"), note(chain="c2", message="m2")
    await notebook.notes.save([here, there])
    find = notebook.notes.find
    assert await find("alice", ["c1", "c9"], []) == [here]
    assert await find("alice", [], ["m2", "m9", "m2"]) == [there]
    assert await find("alice", ["c1"], ["m1"]) == [here]
    assert {*await find("alice", ["c1"], ["m2"])} == {here, there}
    assert await find("alice", ["m1"], ["c1"]) == []
    assert await find("bob", ["c1"], ["m2"]) == []
    assert await find("alice", [], []) == []


async def test_a_place_keeps_its_first_text(notebook: Notebook) -> None:
    await notebook.notes.save([note()])
    await notebook.notes.save([note(text="Other.", ids=(1,), used_ms=NOW_MS + 5)])
    assert await all_notes(notebook) == [note()]


async def test_equal_text_brings_ids_and_a_later_use(notebook: Notebook) -> None:
    await notebook.notes.save([note()])
    learned = note(ids=(1, 2), tokenizer_hash="t", used_ms=NOW_MS + 5)
    await notebook.notes.save([replace(learned, created_ms=NOW_MS + 5)])
    assert await all_notes(notebook) == [learned]
    await notebook.notes.save([note(used_ms=NOW_MS + 9)])
    assert await all_notes(notebook) == [replace(learned, used_ms=NOW_MS + 9)]
    other = note(ids=(3,), tokenizer_hash="u", used_ms=NOW_MS + 9)
    await notebook.notes.save([other])
    assert await all_notes(notebook) == [other]


PLACES = [
    {"scope": "bob"}, {"session": "x"}, {"chain": "x"}, {"role": "tool"}, {"ordinal": 1},
    {"kind": "hidden"}, {"part": 0}, {"offset": 0}, {"part": 0, "offset": 0}, {"message": "x"},
]  # fmt: skip


async def test_each_place_has_its_own_note(notebook: Notebook) -> None:
    notes = [note(**place) for place in PLACES]
    await notebook.notes.save([note(), *notes])
    await notebook.notes.save([note(), *notes])
    here = {one for one in (note(), *notes) if one.scope == "alice"}
    found = await notebook.notes.find("alice", ["chain", "x"], ["message", "x"])
    assert {*found} == here and len(found) == len(here)


async def test_notes_are_found_newest_first_and_not_without_end(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("memory", "stored"):
        monkeypatch.setattr(f"gateway.notebook.{module}.FOUND_NOTES", 2)
    for chain, ms in (("a", 2), ("b", 3), ("c", 1)):
        await notebook.notes.save([note(chain=chain, created_ms=ms)])
    found = await notebook.notes.find("alice", ["a"], ["message"])
    assert [one.chain for one in found] == ["b", "a"]


async def test_a_long_history_is_asked_for_at_once(notebook: Notebook) -> None:
    await notebook.notes.save([note()])
    many = [f"hash-{number}" for number in range(40_000)]
    assert await notebook.notes.find("alice", [*many, "chain"], many) == [note()]


async def test_nothing_is_saved_by_saving_nothing(notebook: Notebook) -> None:
    await notebook.notes.save([])
    assert await all_notes(notebook) == []


# -- what is kept ---------------------------------------------------------------------------------


async def test_what_was_not_used_for_long_goes(notebook: Notebook) -> None:
    expired = NOW_MS - 30 * DAY_MS
    await notebook.notes.save([note(chain="a", used_ms=expired), note(used_ms=expired + 1)])
    await notebook.sessions.save(session(used_ms=expired))
    await notebook.sessions.save(session(opening="p", used_ms=expired + 1))
    assert await notebook.prune(NOW_MS) == 2
    assert [one.chain for one in await all_notes(notebook)] == ["chain"]
    assert [one.opening for one in await notebook.sessions.find("alice", "key")] == ["p"]
    assert await notebook.prune(NOW_MS) == 0


async def test_over_the_limit_the_least_recently_used_goes(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.notebook.stored.PRUNE_ROWS", 3)
    await notebook.sessions.save(session(used_ms=NOW_MS))
    for number in range(16):
        text = "x" * 500
        await notebook.notes.save([note(chain=str(number), text=text, used_ms=NOW_MS + number)])
    await notebook.sessions.save(session(opening="late", used_ms=NOW_MS + 99))
    await notebook.prune(NOW_MS + 99)
    kept = sorted(int(one.chain) for one in await all_notes(notebook))
    assert kept == list(range(16 - len(kept), 16)) and 6 <= len(kept) <= 12
    assert [one.opening for one in await notebook.sessions.find("alice", "key")] == ["late"]
    assert await notebook.prune(NOW_MS + 99) == 0


async def test_everything_may_go_a_piece_at_a_time(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.notebook.stored.PRUNE_ROWS", 2)
    monkeypatch.setattr("gateway.notebook.stored.PRUNE_ROUNDS", 2)
    await notebook.notes.save([note(chain=str(number)) for number in range(5)])
    later_ms = NOW_MS + 31 * DAY_MS
    assert [await notebook.prune(later_ms), await notebook.prune(later_ms)] in ([4, 1], [5, 0])
    assert await all_notes(notebook) == []


async def test_below_the_limit_everything_stays(notebook: Notebook) -> None:
    await notebook.notes.save([note(text="x" * 9_000)])
    assert await notebook.prune(NOW_MS) == 0
    await notebook.notes.save([note(text="x" * 9_000)])  # counted once
    assert await notebook.prune(NOW_MS) == 0 and len(await all_notes(notebook)) == 1


def test_memory_ends_with_its_process() -> None:
    in_memory = MemoryNotebook(Keeping())
    in_memory.note_rows["place"] = note()
    in_memory.session_rows["alice", "key", "o"] = session()
    in_memory.start()
    in_memory.close(0.0)
    assert not in_memory.note_rows and not in_memory.session_rows


# -- rows -----------------------------------------------------------------------------------------


def test_rows_have_the_columns_of_their_tables() -> None:
    row = dict(zip(SESSION, row_of_session(FULL_SESSION), strict=True))
    assert (row["scope"], row["sent_lines"], row["size_bytes"] > 256) == ("alice", '["l"]', True)
    row = dict(zip(NOTE, row_of_note(FULL_NOTE), strict=True))
    assert (row["place"], row["ids"], row["char_offset"]) == (place_of(FULL_NOTE), "[5,6]", 7)


NUMBERS = st.integers(0, 2**31 - 1)
NOTES = st.builds(
    NoteRecord, st.text(), st.text(), st.text(), st.text(), st.just("user"), NUMBERS,
    st.sampled_from(["note", "hidden"]), st.text(), part=st.none() | NUMBERS,
    offset=st.none() | NUMBERS, ids=st.none() | st.lists(NUMBERS).map(tuple),
    tokenizer_hash=st.none() | st.text(), part_hash=st.none() | st.text(),
)  # fmt: skip
NAMES = st.lists(st.text()).map(tuple)
SESSIONS = st.builds(
    Session, st.text(), st.text(), st.text(), st.text(), st.none() | st.text(), NAMES, NAMES, NAMES
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(NOTES, SESSIONS)
def test_any_note_and_session_survives_its_row(one: NoteRecord, other: Session) -> None:
    assert note_of(row_of_note(one)) == one
    assert session_of(row_of_session(other)) == other
