"""Memory notes of earlier sessions in the prompts of new ones, through the gateway, over SQLite."""

from dataclasses import replace
from pathlib import Path

from conductor.memory.notes import MemoryScope
from conductor.profiles import MemoryRules
from gateway.conducting.rooms import Rooms
from gateway.settings.types import (
    ConductorSettings,
    LedgerSettings,
    NotesSettings,
    ServerSettings,
    Settings,
)
from tests.gateway.harness import SHIPPED
from tests.gateway.remembering import HERE, planning, remembering, saying

READS = MemoryRules(read=True)
FLOUR = "the flour is in the cellar"
ASKED = "Where is the flour kept?"
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


async def test_a_new_session_is_told_of_earlier_ones_and_the_notes_count_as_used(
    tmp_path: Path,
) -> None:
    async with remembering(tmp_path, saying("There."), READS) as on:
        await on.add(FLOUR)
        await on.add("a secret of another project", MemoryScope("anon", "other"))
        await on.add("a secret of another key", MemoryScope("k:other", HERE.project))
        await on.ask(ASKED)
        (segment,) = (await on.submit()).plan.segments
        await on.memories.finish()
        used = next(note for note in on.kept() if note.text == FLOUR)
        (row,) = [await on.running.row()]
    assert f"- [{used.id}] fact: {FLOUR}" in segment.text and "secret" not in segment.text
    assert "<tandem_memory>" not in segment.text
    assert segment.message == 0
    assert used.uses == 1 and used.last_used_ms > 1
    assert row.outcome == "succeeded"
    lines = [line for line in on.journal() if line["event"] == "memory_read"]
    assert [line["numbers"] for line in lines] == [{"count": 1}]


async def test_it_stands_there_again_in_later_turns_and_is_not_read_again(tmp_path: Path) -> None:
    async with remembering(tmp_path, saying("There."), READS) as on:
        await on.add(FLOUR)
        await on.ask(ASKED)
        first = (await on.submit()).plan.segments
        await on.running.row()
        await on.add("the oven is upstairs")
        await on.ask(ASKED, "There.", "And the flour for rye?")
        second = (await on.submit(2)).plan.segments
        await on.memories.finish()
        uses = {note.text: note.uses for note in on.kept()}
    assert [(one.message, one.text) for one in second] == [(one.message, one.text) for one in first]
    assert uses == {FLOUR: 1, "the oven is upstairs": 0}


async def test_a_request_without_memory_is_told_nothing(tmp_path: Path) -> None:
    async with remembering(tmp_path, saying("There."), READS) as on:
        await on.add(FLOUR)
        await on.ask(ASKED, headers={"X-Tandem-Memory": "off"})
        assert (await on.submit()).plan.segments == ()


async def test_the_profile_for_tools_never_reads_or_writes(tmp_path: Path) -> None:
    memory = MemoryRules(read=True, write=True, background=True)
    note = SHIPPED.profiles["chat"].note
    async with remembering(
        tmp_path, saying("There."), memory, name="tools", note=note, quiet_s=0.0
    ) as on:
        await on.add(FLOUR)
        await on.ask(ASKED, tools=[LOOK])
        await on.ask(ASKED, "There.", "And the rye?", tools=[LOOK])
        run, second = await on.submit(), await on.submit(2)
    assert "rye" in second.call.messages[-1].text  # and no question about it in between
    assert run.plan.segments == () and [tool.name for tool in run.call.tools] == ["look"]


async def test_without_a_database_there_are_no_memory_notes(tmp_path: Path) -> None:
    settings = Settings(
        server=ServerSettings(state_dir=tmp_path), ledger=LedgerSettings(), rev="r",
        planning=planning(READS), conductor=ConductorSettings(notes=NotesSettings(store="memory")),
    )  # fmt: skip
    rooms = Rooms(settings, b"key")
    assert rooms.memories is None
    rooms.close()
    sql = replace(settings, conductor=ConductorSettings())
    with_sql = Rooms(sql, b"key")
    assert with_sql.memories is not None
    with_sql.close()
