"""A request as a whole: what is decided about it, and what is kept of it."""

from dataclasses import replace

import pytest

from conductor.memory.notes import MemoryNote
from conductor.profiles import (
    Match,
    MemoryRules,
    PackageRules,
    Profile,
    ProfileNotAllowed,
    Rule,
    UnknownProfile,
)
from conductor.thinking import ThinkingWish
from conductor.types import Outcome, Package, Target
from proto.plan import REASONING_PART, HiddenText
from tests.conductor.planned import CHAT, ROUTER, TOOL, TOOLS, World, planned, said

ASKED = said("user", "The second test of the parser fails since this morning.")
EFFORT = "Take one hypothesis at a time and test it."


async def test_a_new_message_is_classified_once_and_gets_a_note() -> None:
    world = World()
    made = await planned(world, ASKED)
    assert len(world.questions) == 1 and made.turn == "user"
    assert made.task is not None and (made.task.name, made.task.source) == ("debug", "model")
    (segment,) = made.segments
    assert segment.message == 0 and EFFORT in segment.text
    assert made.thinking.on and made.thinking.budget == 6_144
    assert made.monitor is not None and made.monitor.tasks["D1"].mode == "act"
    assert {line.event for line in made.journal} >= {"profile", "class", "thinking", "note_new"}


async def test_the_note_stands_again_in_the_next_turn_where_it_stood() -> None:
    world = World()
    first = await planned(world, ASKED)
    world.keep(first)
    history = (ASKED, said("assistant", "I look."), said("user", "And why only the second one?"))
    second = await planned(world, *history)
    assert len(world.questions) == 2
    assert second.segments[0] == first.segments[0] and second.segments[1].message == 2
    assert second.session_key == first.session_key
    assert second.session is not None and second.session.turns == 2


async def test_ids_that_a_worker_returns_are_used_from_then_on() -> None:
    world = World()
    first = await planned(world, ASKED)
    key = first.segments[0].key
    world.keep(first, Outcome({key: (7, 8)}, "t"))
    again = await planned(world, ASKED)
    assert (again.segments[0].ids, again.segments[0].tokenizer_hash) == ((7, 8), "t")


async def test_what_was_hidden_in_an_answer_stands_there_again_while_its_part_comes_back() -> None:
    world, asked = World(), said("user", "Why does it fail?")
    reasoned = replace(said("assistant", "A bracket."), reasoning="Round.")
    first = await planned(world, asked)
    hidden = (HiddenText("\nEnough.", REASONING_PART, 6), HiddenText("Well: ", None, 0))
    world.keep(first, Outcome(answer=reasoned, hidden=hidden))
    world.keep(first, Outcome(hidden=hidden))  # of no answer: nothing more
    again = await planned(world, asked, reasoned, said("user", "And then?"))
    found = [(one.message, one.part, one.offset) for one in again.segments if one.kind == "hidden"]
    assert found == [(1, REASONING_PART, 6), (1, None, 0)]
    without = await planned(world, asked, replace(reasoned, reasoning=None), said("user", "And?"))
    assert [one.part for one in without.segments if one.kind == "hidden"] == [None]
    other = await planned(world, asked, said("assistant", "A comma."), said("user", "And?"))
    assert "hidden" not in {one.kind for one in other.segments}


async def test_a_retry_asks_nobody_and_is_the_same_prompt() -> None:
    world = World()
    first = await planned(world, ASKED)
    world.keep(first)
    again = await planned(world, ASKED)
    assert again.segments == first.segments and len(world.questions) == 1
    assert again.task is not None and again.task.source == "recorded"


async def test_a_message_that_is_asked_again_later_has_the_class_it_had() -> None:
    world = World()
    world.keep(await planned(world, ASKED))
    history = [ASKED]
    for name, text in (("math", "How many lines are there?"), ("write", "Tell my team of it.")):
        world.answer = name
        history += [said("assistant", "I look."), said("user", text)]
        world.keep(await planned(world, *history))
    again = await planned(world, *history[:3])
    assert again.task is not None and (again.task.name, again.task.source) == ("math", "recorded")


async def test_a_tool_result_keeps_the_class_and_asks_nobody() -> None:
    world = World()
    profile = replace(CHAT, name="coding", match=Match(has_tools=True))
    world.keep(await planned(world, ASKED, profile=profile, tools=[TOOL]))
    result = said("tool", "line 3: expected 4, found 5")
    made = await planned(
        world, ASKED, said("assistant", "I read it."), result, profile=profile, tools=[TOOL]
    )
    assert len(world.questions) == 1 and made.turn == "tool_result"
    assert made.task is not None and (made.task.name, made.task.source) == ("debug", "kept")
    assert len(made.segments) == 1


async def test_the_tools_profile_changes_nothing_of_a_prompt() -> None:
    world = World()
    made = await planned(world, said("system", "Rules."), ASKED, profile=TOOLS, tools=[TOOL])
    assert made.call.messages == (said("system", "Rules."), ASKED) and not made.segments
    assert not world.questions and made.thinking.budget is None
    assert made.session is not None and made.session.task_class is None


async def test_a_model_that_cannot_reason_is_told_nothing_of_effort() -> None:
    made = await planned(World(), ASKED, target=Target("engine", can_reason=False))
    assert not made.segments and made.task is not None and made.task.name == "debug"


async def test_a_profile_that_there_is_not_or_that_a_key_may_not_use_is_refused() -> None:
    for name, kind in (("chatt", UnknownProfile), ("tools", ProfileNotAllowed)):
        with pytest.raises(kind):
            await planned(World(), ASKED, headers={"x-tandem-profile": name}, allowed=("chat",))
    made = await planned(World(), ASKED, headers={"x-tandem-profile": "tools"})
    assert made.profile.name == "tools"


async def test_a_side_request_reads_the_session_and_leaves_nothing() -> None:
    world = World()
    world.keep(await planned(world, ASKED))
    made = await planned(world, said("user", "hi"), max_tokens=1)
    assert made.side is not None and made.side.kind == "probe" and made.turn == "side"
    assert (made.cap, made.lane, made.thinking.on) == (1, "side", False)
    assert not made.segments and made.session is None and len(world.questions) == 1
    before = list(world.stored)
    world.keep(made)
    assert world.stored == before


async def test_what_only_looks_like_a_side_request_keeps_its_notes_and_its_reasoning() -> None:
    world = World()
    world.keep(await planned(world, ASKED))
    history = (ASKED, said("assistant", "I look."), said("user", "Sum it up."))
    wish = ThinkingWish(tokens=900)
    made = await planned(world, *history, is_stream=False, near=True, wish=wish)
    assert made.side is not None and made.side.kind == "general" and made.cap is None
    assert len(made.segments) == 1 and made.thinking.budget == 900
    unmatched = await planned(world, *history, near=True)
    assert ("side", "unmatched") in {(line.event, line.reason) for line in unmatched.journal}


@pytest.mark.parametrize("port", ["ask", "sessions", "notes", "memory"])
async def test_no_fault_of_a_port_fails_a_request(port: str) -> None:
    world = World(fault=port)
    made = await planned(
        world, ASKED, profile=replace(CHAT, memory=MemoryRules(read=True)), wish=ThinkingWish()
    )
    assert made.turn == "user"
    failed = {(line.task, line.reason) for line in made.journal if line.event == "error"}
    if port == "ask":
        assert made.task is not None and (made.task.name, made.task.fault) == ("other", "timeout")
    else:
        assert [task for task, _ in failed] == [port]


async def test_lines_of_ours_are_taken_out_before_anything_is_hashed() -> None:
    world = World()
    shown = "› taking this as debug\nI look."
    more = said("user", "Go on with the third one then, please.")
    made = await planned(world, ASKED, said("assistant", shown), more)
    assert made.call.messages[1].text == "I look."


async def test_a_misnamed_client_is_journaled() -> None:
    made = await planned(World(), ASKED, headers={"x-tandem-client": "vim"})
    assert ("profile", "unknown_client") in {(line.event, line.reason) for line in made.journal}


async def test_rules_that_fire_are_said_and_others_not() -> None:
    rules = (
        Rule("class", "Run the tests.", classes=("debug",)),
        Rule("other", "Be short.", classes=("chat",)),
        Rule("tool", "Read before writing.", tools=("read_file",)),
        Rule("no-tool", "Never push.", tools=("push",)),
        Rule("word", "Parsers are in src.", regex="parser"),
        Rule("no-word", "Say hello.", regex="hello"),
    )
    profile = replace(CHAT, name="coding", match=Match(has_tools=True), rules=rules)
    made = await planned(World(), ASKED, profile=profile, tools=[TOOL])
    text = made.segments[0].text
    there = [rule.id for rule in rules if rule.text in text]
    assert there == ["class", "tool", "word"]


async def test_a_package_is_placed_once_in_a_session() -> None:
    package = Package("parsers", "Parsers", "A parser is a function.", "h", classes=("debug",))
    profile = replace(CHAT, name="coding", packages=PackageRules(enabled=True))
    world = World()
    first = await planned(world, ASKED, profile=profile, packages=[package])
    assert package.text in first.segments[0].text
    world.keep(first)
    history = (ASKED, said("assistant", "I look."), said("user", "And the third test, why?"))
    second = await planned(world, *history, profile=profile, packages=[package])
    assert package.text not in second.segments[1].text
    assert second.session is not None and second.session.packages == ("parsers",)


async def test_a_new_session_is_told_what_is_remembered() -> None:
    memories = (MemoryNote(3, "fact", "Tests run with just test.", 5, 0, False),)
    profile = replace(CHAT, name="own", memory=MemoryRules(read=True))
    world = World(memories=memories)
    headers = {"x-tandem-project": "bakery"}
    first = await planned(world, ASKED, profile=profile, headers=headers)
    assert "Tests run with just test." in first.segments[0].text and first.memories == (3,)
    assert [(one.key, one.project) for one in world.searched] == [("k:1", "bakery")]
    world.keep(first)
    history = (ASKED, said("assistant", "I look."), said("user", "And the third test, why?"))
    await planned(world, *history, profile=profile)
    off = {"x-tandem-memory": "off"}
    await planned(world, said("user", "Another question about bread."), headers=off,
                  profile=profile)  # fmt: skip
    pass_through = replace(TOOLS, memory=MemoryRules(read=True))
    await planned(world, said("user", "A third question, about rye."), profile=pass_through)
    assert len(world.searched) == 1
    nothing = await planned(World(), ASKED, profile=profile)
    assert "memory_read" not in {line.event for line in nothing.journal}


async def test_a_profiles_own_text_stands_first_and_notes_keep_their_places() -> None:
    profile = replace(CHAT, name="own", system_prompt="You bake.")
    made = await planned(World(), ASKED, profile=profile)
    assert made.call.messages == (said("system", "You bake."), ASKED)
    assert made.segments[0].message == 1
    made = await planned(World(), said("system", "Be kind."), ASKED, profile=profile)
    assert made.call.messages[0].text == "You bake.\n\nBe kind."
    assert made.segments[0].message == 1


async def test_a_raw_prompt_has_no_session() -> None:
    profile = replace(CHAT, name="own", system_prompt="You bake.")
    made = await planned(World(), profile=profile)
    assert made.session is None and not made.segments and made.call.messages == ()


async def test_a_note_that_has_no_room_is_left_out() -> None:
    target = Target("engine", context_tokens=100)
    made = await planned(World(), ASKED, target=target, max_tokens=90)
    assert not made.segments
    assert ("note_lost", "room") in {(line.event, line.reason) for line in made.journal}


async def test_a_class_that_a_profile_does_not_have_says_nothing() -> None:
    router = replace(ROUTER, classes={}, default_class="gone")
    made = await planned(World(), ASKED, profile=Profile("own", router=router))
    assert made.task is not None and made.task.name == "gone" and not made.segments
    assert made.thinking.budget is None


async def test_reasoning_that_is_off_is_journaled_as_off() -> None:
    made = await planned(World(), ASKED, wish=ThinkingWish(is_on=False))
    assert ("thinking", "off") in {(line.event, line.reason) for line in made.journal}
