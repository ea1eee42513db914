"""Bug class 17: parallel results, turns of tools, and system messages behind the last words."""

from dataclasses import replace

import pytest

from conductor.profiles import Match, Rule
from proto.chat import Message, ToolCall
from tests.conductor.planned import CHAT, TOOL, World, planned, said

LEAD, ASKED = said("system", "You work."), said("user", "Why does the second test fail?")
BEHIND = said("system", "Helpers: search, plan.")
TWO = Message("assistant", calls=(ToolCall("c1", "read", "{}"), ToolCall("c2", "list", "{}")))
ONE = replace(TWO, calls=TWO.calls[:1])
FIRST, LAST = (replace(said("tool", "x"), call_id=f"c{number}") for number in (1, 2))
NOTES = replace(said("user", "<system-reminder>\nNo tasks.\n</system-reminder>"))
RULES = (
    Rule("always", "Read before you write."),
    Rule("tools", "Name the file.", tools=("read_file",)),
)
PROFILE = replace(CHAT, name="coding", match=Match(has_tools=True), rules=RULES)


async def noted(*messages: Message, is_known: bool = False, **how: object) -> int | None:
    """Where a request's new note stands. `is_known`: the words of its person have one already."""
    world = World()
    if is_known:
        world.keep(await planned(world, *messages[:2], profile=PROFILE))
        assert [record.role for record in world.records.values()] == ["user"]
    made = await planned(world, *messages, profile=PROFILE, **how)  # type: ignore[arg-type]
    for segment in made.segments:
        assert segment.text.startswith("\n\n<tandem_note>\n") and segment.offset is None
        assert segment.text.endswith("\n</tandem_note>\n")
    places = [segment.message for segment in made.segments if not is_known or segment.message > 1]
    assert len(places) <= 1
    return places[0] if places else None


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ((LEAD, ASKED), 1),
        ((LEAD, ASKED, BEHIND), 2),
        ((LEAD, ASKED, BEHIND, said("developer", "Be brief.")), 3),
        # Nothing stands in an unknown history: behind all results, and only there.
        ((LEAD, ASKED, ONE, FIRST), 3),
        ((LEAD, ASKED, TWO, FIRST), None),
        ((LEAD, ASKED, TWO, FIRST, LAST), 4),
        ((LEAD, ASKED, TWO, LAST, FIRST), 4),
        ((LEAD, ASKED, TWO, FIRST, LAST, BEHIND), 5),
        ((LEAD, ASKED, TWO, FIRST, BEHIND), None),
        ((LEAD, ASKED, TWO), None),
        ((LEAD, ASKED, ONE, FIRST, NOTES), None),
        ((LEAD, ASKED, said("assistant", "A bracket")), None),
        ((LEAD, ASKED, said("assistant", "A bracket"), BEHIND), None),
        ((LEAD,), None),
        ((LEAD, BEHIND), None),
    ],
)
async def test_behind_the_last_message_or_nowhere(
    messages: tuple[Message, ...], place: int | None
) -> None:
    assert await noted(*messages) == place
    assert await noted(*messages, choices=2) is None


@pytest.mark.parametrize("behind", [(ONE, FIRST), (TWO, FIRST, LAST), (TWO, FIRST, LAST, BEHIND)])
async def test_a_result_has_one_only_where_something_new_is_to_be_said(
    behind: tuple[Message, ...],
) -> None:
    messages = (LEAD, ASKED, *behind)
    assert await noted(*messages, is_known=True) is None
    assert await noted(*messages, is_known=True, tools=[TOOL]) == len(messages) - 1
    assert await noted(*messages[:-1], is_known=True, tools=[TOOL]) == (
        len(messages) - 2 if behind[-1] == BEHIND else None
    )


async def test_what_was_said_behind_a_result_stays_there_and_is_said_once() -> None:
    world, messages = World(), (LEAD, ASKED, TWO, FIRST, LAST)
    world.keep(await planned(world, *messages[:2], profile=PROFILE))
    made = await planned(world, *messages, profile=PROFILE, tools=[TOOL])
    world.keep(made)
    assert [segment.message for segment in made.segments] == [1, 4]
    assert RULES[1].text in made.segments[1].text and RULES[0].text not in made.segments[1].text
    more = (replace(ONE, content=said("assistant", "I look.").content), FIRST)
    then = await planned(world, *messages, *more, profile=PROFILE, tools=[TOOL])
    assert then.segments == made.segments


async def test_a_helper_call_has_none() -> None:
    assert await noted(said("user", "hi"), max_tokens=1) is None
    assert await noted(LEAD, ASKED, is_stream=False, near=True) is None
