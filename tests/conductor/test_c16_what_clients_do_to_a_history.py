"""Bug class 16: a history is pruned, edited, forked, written anew or summed up."""

import pytest

from conductor.types import TurnPlan
from proto.chat import Message, ToolCall
from tests.conductor.planned import World, planned, said

ID = {"x-session-id": "one"}
OTHER = {"x-session-id": "two"}
LOOKS = Message("assistant", calls=(ToolCall("c1", "read", '{"path": "a"}'),))
FIRST, SECOND, THIRD = (
    said("user", f"Why does the {name} test of them fail?") for name in ("first", "second", "third")
)
FOUND, NEXT = said("assistant", "A bracket is missing."), said("assistant", "A comma is.")
RESULT = Message("tool", said("tool", "x = (\n" * 9).content, call_id="c1")
CLEARED = Message("tool", said("tool", "[cleared]").content, call_id="c1")
TALK = (FIRST, LOOKS, RESULT, FOUND, SECOND, NEXT, THIRD)


async def ask(
    world: World, *messages: Message, headers: dict[str, str] = ID, **how: object
) -> TurnPlan:
    made = await planned(world, *messages, headers=headers, **how)  # type: ignore[arg-type]
    world.keep(made)
    return made


async def talked(headers: dict[str, str] = ID, answer: str = "debug") -> tuple[World, TurnPlan]:
    """A conversation of four requests, and what was decided about the last one."""
    world = World(answer=answer)
    for end in (1, 3, 5):
        await ask(world, *TALK[:end], headers=headers)
    return world, await ask(world, *TALK, headers=headers)


def places(made: TurnPlan) -> list[int]:
    return [segment.message for segment in made.segments]


def texts(made: TurnPlan) -> list[str]:
    return [segment.text for segment in made.segments]


async def test_an_edit_gets_its_own_note_and_the_old_way_works_again() -> None:
    world, whole = await talked()
    world.answer = "math"
    edited = await ask(world, *TALK[:4], said("user", "How many tests are there in all?"))
    assert places(edited) == [0, 4] and texts(edited)[0] == texts(whole)[0]
    assert texts(edited)[1] != texts(whole)[1] and len(world.questions) == 4
    assert edited.task is not None and edited.task.name == "math"
    back = await ask(world, *TALK)
    assert back.segments == whole.segments and len(world.questions) == 4
    assert back.task is not None and (back.task.name, back.task.source) == ("debug", "recorded")


async def test_an_answer_written_anew_is_the_same_prompt_and_asks_nobody() -> None:
    world, whole = await talked()
    again = await ask(world, *TALK)
    assert (again.call, again.segments) == (whole.call, whole.segments)
    earlier = await ask(world, *TALK[:5])
    assert places(earlier) == [0, 4] and earlier.segments == whole.segments[:2]
    assert len(world.questions) == 3


async def test_both_ways_of_a_fork_have_what_they_share() -> None:
    for headers in (ID, OTHER):
        world, whole = await talked()
        world.answer = "plan"
        forked = await ask(world, *TALK[:6], said("user", "Which one first?"), headers=headers)
        assert texts(forked)[:2] == texts(whole)[:2] and places(forked) == [0, 4, 6]
        on = (said("assistant", "The first."), said("user", "And which one after that one?"))
        then = await ask(world, *forked.call.messages, *on, headers=headers)
        assert texts(then)[:3] == texts(forked)
        assert (await ask(world, *TALK, headers=ID)).segments == whole.segments


async def test_notes_behind_a_pruned_result_stand_again_once_and_stay() -> None:
    world, whole = await talked()
    pruned = (*TALK[:2], CLEARED, *TALK[3:])
    more = (said("assistant", "A colon is."), said("user", "And the fourth of them, why?"))
    once = await ask(world, *pruned, *more)
    assert texts(once)[:3] == texts(whole) and places(once) == [0, 4, 6, 8]
    moved = [line.numbers for line in once.journal if line.event == "note_replay"]
    assert moved == [{"count": 3, "moved": 2, "adopted": 0}]
    on = (said("assistant", "A quote is."), said("user", "And the fifth of them, why?"))
    then = await ask(world, *pruned, *more, *on)
    assert texts(then)[:4] == texts(once)
    moved = [line.numbers for line in then.journal if line.event == "note_replay"]
    assert moved == [{"count": 4, "moved": 0, "adopted": 0}]


@pytest.mark.parametrize("lead", [(), (FIRST,)], ids=["summary", "first words kept"])
async def test_a_compaction_begins_anew_and_keeps_the_class_where_an_id_names_it(
    lead: tuple[Message, ...],
) -> None:
    told = said("user", "Another language model started to solve this problem: tests fail.")
    for headers, expected in ((ID, "math"), (OTHER, "other"), ({}, "other")):
        world, _ = await talked(answer="math")
        asked = len(world.questions)
        compacted = await ask(world, *lead, told, headers=headers)
        assert compacted.turn == "machine" and len(compacted.segments) <= len(lead)
        assert compacted.task is not None and compacted.task.name == expected
        more = (said("assistant", "I go on."), THIRD)
        fresh = await ask(world, *lead, told, *more, headers=headers)
        assert places(fresh)[-1] == len(lead) + 2 and len(fresh.segments) <= len(lead) + 1
        assert len(world.questions) == asked + 1


async def test_a_changed_date_in_the_system_prompt_costs_no_note() -> None:
    for headers in (ID, {}):
        lead = [said("system", f"You mend code. It is {day}day.") for day in ("Sun", "Mon")]
        world = World()
        for end in (1, 3, 5):
            before = await ask(world, lead[0], *TALK[:end], headers=headers)
        after = await ask(world, lead[1], *TALK, headers=headers)
        assert texts(after)[:2] == texts(before) and places(after) == [1, 5, 7]


async def test_no_note_crosses_sessions() -> None:
    """A conversation that begins in the same words is another one until an answer says more."""
    world, _ = await talked()
    world.answer = "math"
    begun = await ask(world, FIRST, headers=OTHER)
    assert begun.task is not None and begun.task.name == "math" and len(world.questions) == 4
    own = texts(begun)
    for end in (3, 5, 7):
        made = await ask(world, *TALK[:end], headers=OTHER)
        assert texts(made)[:1] == own
    named = await ask(world, said("user", "Which way leads to the lake?"), headers=ID)
    assert places(named) == [0] and named.session is not None and named.session.turns == 1


async def test_no_note_crosses_keys() -> None:
    world, whole = await talked()
    for headers in (ID, OTHER, {}):
        stranger = await ask(world, *TALK, headers=headers, scope="k:2")
        assert places(stranger)[-1:] == [6] and len(stranger.segments) == 1
        assert stranger.session is not None and stranger.session.turns == 1
        world.stored = [one for one in world.stored if one.scope != "k:2"]
        world.records = {at: one for at, one in world.records.items() if one.scope != "k:2"}
    assert (await ask(world, *TALK)).segments == whole.segments
