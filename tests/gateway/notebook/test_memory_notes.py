"""Memory notes in each kind of database."""

from collections.abc import AsyncIterator
from threading import Event

import pytest
from sqlalchemy import func, select

from conductor.memory.notes import DAY_MS, Draft, MemoryEntry, MemoryKind, MemoryScope
from conductor.ports import Memory, PortFault
from gateway.notebook import memory_notes
from gateway.notebook.desk import Desk
from gateway.notebook.keeping import Keeping
from gateway.notebook.memory_notes import BLOCK_MS, MemoryStore
from gateway.notebook.stored import StoredNotebook
from gateway.store.db import Database
from gateway.store.memory_desk import delete_note, find_note, list_notes, pin_note
from gateway.store.migrate import migrate
from gateway.store.notebook_tables import memory_notes as table
from gateway.store.schema import STORE
from tests.gateway.notebook.test_notebook import PATIENCE_S, note

HERE = MemoryScope("laptop", "bakery")
NOW = 1_764_590_400_000


@pytest.fixture
async def store(database: Database) -> AsyncIterator[MemoryStore]:
    migrate(database, STORE)
    desk = Desk(database, wait_s=PATIENCE_S)
    yield MemoryStore(database, desk, search_s=PATIENCE_S)
    desk.close(PATIENCE_S)


def entry(
    text: str,
    now_ms: int = NOW,
    scope: MemoryScope = HERE,
    replaces: int | None = None,
    kind: MemoryKind = "fact",
) -> MemoryEntry:
    return MemoryEntry(scope, Draft(kind, text, replaces), "5e55", now_ms)


async def texts(store: MemoryStore, scope: MemoryScope = HERE) -> list[str]:
    return sorted(note.text for note in await store.search(scope, (), 100))


async def test_what_was_added_is_found_by_its_scope_alone(store: MemoryStore) -> None:
    await store.add([entry("it rains"), entry("it snows", kind="todo")])
    assert await texts(store) == ["it rains", "it snows"]
    assert await texts(store, MemoryScope("laptop", "other")) == []
    assert await texts(store, MemoryScope("desk", "bakery")) == []


async def test_the_best_are_found_first(store: MemoryStore) -> None:
    await store.add([entry("flour is in the cellar"), entry("the oven is hot", NOW + DAY_MS)])
    assert [note.text for note in await store.search(HERE, ("flour",), 1)] == [
        "flour is in the cellar"
    ]
    assert [note.text for note in await store.search(HERE, (), 1)] == ["the oven is hot"]


async def test_a_fact_is_kept_once(store: MemoryStore, database: Database) -> None:
    await store.add([entry("It rains."), entry("it  rains", NOW + 1)])
    (note,) = list_notes(database.reader)
    assert (note.text, note.created_ms, note.last_used_ms) == ("It rains.", NOW, NOW + 1)


async def test_other_keys_and_projects_keep_the_same_fact(store: MemoryStore) -> None:
    scopes = [HERE, MemoryScope("laptop", "other"), MemoryScope("desk", "bakery")]
    await store.add([entry("it rains", scope=scope) for scope in scopes])
    assert [await texts(store, scope) for scope in scopes] == [["it rains"]] * 3


async def test_use_is_counted(store: MemoryStore) -> None:
    await store.add([entry("it rains"), entry("it snows")])
    rain = next(note for note in await store.search(HERE, (), 9) if note.text == "it rains")
    await store.note_used(HERE, [rain.id], NOW + 5)
    await store.note_used(MemoryScope("desk", "bakery"), [rain.id], NOW + 6)
    assert {note.text: note.uses for note in await store.search(HERE, (), 9)} == {
        "it rains": 1,
        "it snows": 0,
    }


async def test_a_note_that_is_replaced_is_found_no_more(
    store: MemoryStore, database: Database
) -> None:
    await store.add([entry("it rains")])
    (old,) = await store.search(HERE, (), 9)
    await store.add([entry("it snows", replaces=old.id)])
    assert await texts(store) == ["it snows"]
    kept = find_note(database.reader, old.id)
    (new,) = await store.search(HERE, (), 9)
    assert kept is not None and kept.superseded_by == new.id
    await store.add([entry("it rains", replaces=new.id)])  # and back
    assert await texts(store) == ["it rains"]


async def test_a_note_does_not_replace_itself_or_another_scope_s(store: MemoryStore) -> None:
    await store.add([entry("it rains")])
    (note,) = await store.search(HERE, (), 9)
    await store.add([entry("it rains", replaces=note.id)])
    await store.add([entry("it snows", scope=MemoryScope("desk", "bakery"), replaces=note.id)])
    assert await texts(store) == ["it rains"]


async def test_a_pinned_note_comes_first_and_is_not_replaced(
    store: MemoryStore, database: Database
) -> None:
    await store.add([entry("it rains"), entry("it snows", NOW + DAY_MS)])
    rain = next(note for note in await store.search(HERE, (), 9) if note.text == "it rains")
    assert pin_note(database.editor, rain.id, is_pinned=True)
    assert [note.text for note in await store.search(HERE, ("snows",), 9)] == [
        "it rains",
        "it snows",
    ]
    await store.add([entry("it hails", replaces=rain.id)])
    assert await texts(store) == ["it hails", "it rains", "it snows"]
    assert pin_note(database.editor, rain.id, is_pinned=False)
    await store.add([entry("it hails", replaces=rain.id)])
    assert await texts(store) == ["it hails", "it snows"]


async def test_a_deleted_fact_stays_away_for_ninety_days(
    store: MemoryStore, database: Database
) -> None:
    await store.add([entry("it rains", replaces=None)])
    (note,) = await store.search(HERE, (), 9)
    assert delete_note(database.editor, note.id, NOW)
    await store.add([entry("It rains!", NOW + BLOCK_MS)])
    assert await texts(store) == [] and list_notes(database.reader) == []
    await store.add([entry("it rains", NOW + BLOCK_MS + 1)])
    assert await texts(store) == ["it rains"]


async def test_nothing_of_a_deleted_text_is_left(store: MemoryStore, database: Database) -> None:
    await store.add([entry("it rains")])
    (note,) = await store.search(HERE, (), 9)
    assert pin_note(database.editor, note.id, is_pinned=True)
    assert delete_note(database.editor, note.id, NOW)
    assert find_note(database.reader, note.id) is None
    with database.reader.connect() as connection:
        found = connection.execute(select(table.c.text, table.c.pinned)).all()
    assert found == [("", 0)]


async def test_a_refused_note_replaces_nothing(store: MemoryStore, database: Database) -> None:
    await store.add([entry("it rains"), entry("it snows")])
    gone, other = await store.search(HERE, (), 9)
    assert delete_note(database.editor, gone.id, NOW)
    await store.add([entry(gone.text, replaces=other.id)])
    assert await texts(store) == [other.text]


async def test_what_is_not_there_cannot_be_changed(store: MemoryStore, database: Database) -> None:
    assert not delete_note(database.editor, 7, NOW)
    assert not pin_note(database.editor, 7, is_pinned=True)
    assert find_note(database.reader, 7) is None


async def test_a_scope_keeps_so_many_beside_pinned_ones(
    store: MemoryStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_notes, "NOTES_OF_SCOPE", 3)
    await store.add([entry("number 0")])
    (first,) = await store.search(HERE, (), 9)
    assert pin_note(database.editor, first.id, is_pinned=True)
    await store.add([entry("elsewhere", scope=MemoryScope("desk"))])
    for number in range(1, 6):
        await store.add([entry(f"number {number}", NOW + number)])
    with database.reader.connect() as connection:
        assert connection.execute(select(func.count()).select_from(table)).scalar() == 5
    monkeypatch.setattr(memory_notes, "NOTES_OF_SCOPE", 100)
    assert await texts(store) == ["number 0", "number 3", "number 4", "number 5"]
    assert await texts(store, MemoryScope("desk")) == ["elsewhere"]


async def test_a_list_is_of_a_key_and_a_project(store: MemoryStore, database: Database) -> None:
    await store.add([entry("a"), entry("b", scope=MemoryScope("laptop", "")), entry("c")])
    await store.add([entry("d", scope=MemoryScope("desk", "bakery"))])

    def listed(key: str | None = None, project: str | None = None) -> list[str]:
        return [note.text for note in list_notes(database.reader, key, project)]

    assert listed() == ["a", "b", "c", "d"]
    assert listed("laptop") == ["a", "b", "c"]
    assert listed("laptop", "") == ["b"]
    assert listed(project="bakery") == ["a", "c", "d"]


# -- over the desk ---------------------------------------------------------------------------------


async def test_a_desk_is_shared_with_the_notebook(database: Database) -> None:
    migrated: list[Database] = []

    def make_tables(target: Database) -> None:
        migrated.append(target)
        migrate(target, STORE)

    desk = Desk(database, wait_s=PATIENCE_S, migrate=make_tables)
    notebook = StoredNotebook(database, Keeping(), desk)
    store: Memory = MemoryStore(database, desk, search_s=PATIENCE_S)
    await store.add([entry("it rains")])
    await notebook.notes.save([note()])
    assert [found.text for found in await store.search(HERE, (), 5)] == ["it rains"]
    assert await notebook.notes.find("alice", ["chain"], []) == [note()]
    assert migrated == [database]
    notebook.close(PATIENCE_S)


async def test_nothing_to_keep_asks_nobody(sqlite: Database) -> None:
    migrated: list[Database] = []
    desk = Desk(sqlite, wait_s=PATIENCE_S, migrate=migrated.append)
    store = MemoryStore(sqlite, desk)
    await store.add([])
    await store.note_used(HERE, (), NOW)
    desk.close(PATIENCE_S)
    assert migrated == []


async def test_entries_are_kept_together_or_not_at_all(store: MemoryStore) -> None:
    with pytest.raises(PortFault) as fault:
        await store.add([entry("it rains"), entry("\ud800")])
    assert fault.value.reason == "row"
    assert await texts(store) == []


async def test_a_database_without_the_table_is_a_port_s_fault(sqlite: Database) -> None:
    desk = Desk(sqlite, wait_s=PATIENCE_S, migrate=lambda database: None)
    with pytest.raises(PortFault) as fault:
        await MemoryStore(sqlite, desk, search_s=PATIENCE_S).search(HERE, (), 5)
    assert fault.value.reason == "database"
    desk.close(PATIENCE_S)


async def test_a_request_does_not_wait_for_a_slow_database(sqlite: Database) -> None:
    goes_on = Event()
    desk = Desk(sqlite, wait_s=PATIENCE_S, migrate=lambda database: goes_on.wait(PATIENCE_S))
    with pytest.raises(PortFault) as fault:
        await MemoryStore(sqlite, desk, search_s=0.01).search(HERE, (), 5)
    assert fault.value.reason == "timeout"
    goes_on.set()
    desk.close(PATIENCE_S)


async def test_what_is_written_may_take_longer_than_an_answer(sqlite: Database) -> None:
    migrate(sqlite, STORE)
    desk = Desk(sqlite, wait_s=0.0)
    store = MemoryStore(sqlite, desk, search_s=PATIENCE_S)
    await store.add([entry("it rains")])
    (found,) = await store.search(HERE, (), 5)
    await store.note_used(HERE, [found.id], NOW)
    with pytest.raises(PortFault):
        await desk.do(lambda cursor: None)
    desk.close(PATIENCE_S)
