"""Memory notes in each kind of database."""

from collections.abc import Iterator
from threading import Event

import pytest
from sqlalchemy import func, select

from conductor.memory.notes import DAY_MS, Draft, MemoryEntry, MemoryKind, MemoryScope
from conductor.ports import Memory, PortFault
from gateway.store import memory
from gateway.store.db import Database
from gateway.store.memory import BLOCK_MS, MemoryStore, MemoryTable
from gateway.store.memory_desk import delete_note, find_note, list_notes, pin_note
from gateway.store.migrate import migrate
from gateway.store.notebook_tables import memory_notes
from gateway.store.schema import STORE

HERE = MemoryScope("laptop", "bakery")
NOW = 1_764_590_400_000


@pytest.fixture
def table(database: Database) -> Iterator[MemoryTable]:
    migrate(database, STORE)
    made = MemoryTable.of(database)
    yield made
    made.close()


def entry(
    text: str,
    now_ms: int = NOW,
    scope: MemoryScope = HERE,
    replaces: int | None = None,
    kind: MemoryKind = "fact",
) -> MemoryEntry:
    return MemoryEntry(scope, Draft(kind, text, replaces), "5e55", now_ms)


def texts(table: MemoryTable, scope: MemoryScope = HERE) -> list[str]:
    return sorted(note.text for note in table.search(scope, (), 100))


def test_what_was_added_is_found_by_its_scope_alone(table: MemoryTable) -> None:
    table.add([entry("it rains"), entry("it snows", kind="todo")])
    assert texts(table) == ["it rains", "it snows"]
    assert texts(table, MemoryScope("laptop", "other")) == []
    assert texts(table, MemoryScope("desk", "bakery")) == []


def test_the_best_are_found_first(table: MemoryTable) -> None:
    table.add([entry("flour is in the cellar"), entry("the oven is hot", NOW + DAY_MS)])
    assert [note.text for note in table.search(HERE, ("flour",), 1)] == ["flour is in the cellar"]
    assert [note.text for note in table.search(HERE, (), 1)] == ["the oven is hot"]


def test_a_fact_is_kept_once(table: MemoryTable, database: Database) -> None:
    table.add([entry("It rains."), entry("it  rains", NOW + 1)])
    (note,) = list_notes(database.reader)
    assert (note.text, note.created_ms, note.last_used_ms) == ("It rains.", NOW, NOW + 1)


def test_other_keys_and_projects_keep_the_same_fact(table: MemoryTable) -> None:
    scopes = [HERE, MemoryScope("laptop", "other"), MemoryScope("desk", "bakery")]
    table.add([entry("it rains", scope=scope) for scope in scopes])
    assert [texts(table, scope) for scope in scopes] == [["it rains"]] * 3


def test_use_is_counted(table: MemoryTable) -> None:
    table.add([entry("it rains"), entry("it snows")])
    rain = next(note for note in table.search(HERE, (), 9) if note.text == "it rains")
    table.note_used(HERE, [rain.id], NOW + 5)
    table.note_used(MemoryScope("desk", "bakery"), [rain.id], NOW + 6)
    assert {note.text: note.uses for note in table.search(HERE, (), 9)} == {
        "it rains": 1,
        "it snows": 0,
    }


def test_a_note_that_is_replaced_is_found_no_more(table: MemoryTable, database: Database) -> None:
    table.add([entry("it rains")])
    (old,) = table.search(HERE, (), 9)
    table.add([entry("it snows", replaces=old.id)])
    assert texts(table) == ["it snows"]
    kept = find_note(database.reader, old.id)
    (new,) = table.search(HERE, (), 9)
    assert kept is not None and kept.superseded_by == new.id
    table.add([entry("it rains", replaces=new.id)])  # and back
    assert texts(table) == ["it rains"]


def test_a_note_does_not_replace_itself_or_another_scope_s(table: MemoryTable) -> None:
    table.add([entry("it rains")])
    (note,) = table.search(HERE, (), 9)
    table.add([entry("it rains", replaces=note.id)])
    table.add([entry("it snows", scope=MemoryScope("desk", "bakery"), replaces=note.id)])
    assert texts(table) == ["it rains"]


def test_a_pinned_note_comes_first_and_is_not_replaced(
    table: MemoryTable, database: Database
) -> None:
    table.add([entry("it rains"), entry("it snows", NOW + DAY_MS)])
    rain = next(note for note in table.search(HERE, (), 9) if note.text == "it rains")
    assert pin_note(database.editor, rain.id, is_pinned=True)
    assert [note.text for note in table.search(HERE, ("snows",), 9)] == ["it rains", "it snows"]
    table.add([entry("it hails", replaces=rain.id)])
    assert texts(table) == ["it hails", "it rains", "it snows"]
    assert pin_note(database.editor, rain.id, is_pinned=False)
    table.add([entry("it hails", replaces=rain.id)])
    assert texts(table) == ["it hails", "it snows"]


def test_a_deleted_fact_stays_away_for_ninety_days(table: MemoryTable, database: Database) -> None:
    table.add([entry("it rains", replaces=None)])
    (note,) = table.search(HERE, (), 9)
    assert delete_note(database.editor, note.id, NOW)
    table.add([entry("It rains!", NOW + BLOCK_MS)])
    assert texts(table) == [] and list_notes(database.reader) == []
    table.add([entry("it rains", NOW + BLOCK_MS + 1)])
    assert texts(table) == ["it rains"]


def test_nothing_of_a_deleted_text_is_left(table: MemoryTable, database: Database) -> None:
    table.add([entry("it rains")])
    (note,) = table.search(HERE, (), 9)
    assert pin_note(database.editor, note.id, is_pinned=True)
    assert delete_note(database.editor, note.id, NOW)
    assert find_note(database.reader, note.id) is None
    with database.reader.connect() as connection:
        found = connection.execute(select(memory_notes.c.text, memory_notes.c.pinned)).all()
    assert found == [("", 0)]


def test_a_refused_note_replaces_nothing(table: MemoryTable, database: Database) -> None:
    table.add([entry("it rains"), entry("it snows")])
    gone, other = table.search(HERE, (), 9)
    assert delete_note(database.editor, gone.id, NOW)
    table.add([entry(gone.text, replaces=other.id)])
    assert texts(table) == [other.text]


def test_what_is_not_there_cannot_be_changed(table: MemoryTable, database: Database) -> None:
    assert not delete_note(database.editor, 7, NOW)
    assert not pin_note(database.editor, 7, is_pinned=True)
    assert find_note(database.reader, 7) is None


def test_a_scope_keeps_so_many_beside_pinned_ones(
    table: MemoryTable, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "NOTES_OF_SCOPE", 3)
    table.add([entry("number 0")])
    (first,) = table.search(HERE, (), 9)
    assert pin_note(database.editor, first.id, is_pinned=True)
    table.add([entry("elsewhere", scope=MemoryScope("desk"))])
    for number in range(1, 6):
        table.add([entry(f"number {number}", NOW + number)])
    with database.reader.connect() as connection:
        assert connection.execute(select(func.count()).select_from(memory_notes)).scalar() == 5
    monkeypatch.setattr(memory, "NOTES_OF_SCOPE", 100)
    assert texts(table) == ["number 0", "number 3", "number 4", "number 5"]
    assert texts(table, MemoryScope("desk")) == ["elsewhere"]


def test_a_list_is_of_a_key_and_a_project(table: MemoryTable, database: Database) -> None:
    table.add([entry("a"), entry("b", scope=MemoryScope("laptop", "")), entry("c")])
    table.add([entry("d", scope=MemoryScope("desk", "bakery"))])

    def listed(key: str | None = None, project: str | None = None) -> list[str]:
        return [note.text for note in list_notes(database.reader, key, project)]

    assert listed() == ["a", "b", "c", "d"]
    assert listed("laptop") == ["a", "b", "c"]
    assert listed("laptop", "") == ["b"]
    assert listed(project="bakery") == ["a", "c", "d"]


# -- for an event loop -----------------------------------------------------------------------------


async def test_the_port_does_the_same(database: Database) -> None:
    migrate(database, STORE)
    store = MemoryStore(MemoryTable.of(database), search_s=60)
    port: Memory = store
    await port.add([])
    await port.add([entry("it rains")])
    (note,) = await port.search(HERE, ("rains",), 5)
    await port.note_used(HERE, (), NOW)
    await port.note_used(HERE, [note.id], NOW)
    (again,) = await port.search(HERE, ("rains",), 5)
    assert (again.text, again.uses) == ("it rains", 1)
    store.close()


async def test_a_database_without_the_table_is_a_port_s_fault(database: Database) -> None:
    store = MemoryStore(MemoryTable.of(database), search_s=60)
    with pytest.raises(PortFault) as fault:
        await store.search(HERE, (), 5)
    assert fault.value.reason == "database"
    store.close()


async def test_a_request_does_not_wait_for_a_slow_database(sqlite: Database) -> None:
    class Stuck(MemoryTable):
        def search(self, *_: object) -> tuple[()]:
            goes_on.wait(60)
            return ()

    goes_on = Event()
    made = MemoryTable.of(sqlite)
    store = MemoryStore(Stuck(made._writer, made._sql), search_s=0.01)
    with pytest.raises(PortFault) as fault:
        await store.search(HERE, (), 5)
    assert fault.value.reason == "timeout"
    goes_on.set()
    store.close()
