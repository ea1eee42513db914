"""What memory notes have to do with a request: decided with its plan."""

from dataclasses import replace

import pytest

from conductor.memory.notes import HOW_TO_WRITE, MemoryNote, MemoryScope
from conductor.memory.tool import NAME, TOOL
from conductor.profiles import MemoryRules, MonitorRules
from conductor.types import NO_MEMORY
from proto.chat import AnswerFormat, Tool
from tests.conductor.planned import CHAT, TOOLS, World, planned, said

ASKED = said("user", "Why does my parser fail on line two today?")
OWN = replace(CHAT, name="own", memory=MemoryRules(read=True, write=True, background=True))
LOOK = Tool("look")
OFF = {"x-tandem-memory": "off"}
NAMED = {"x-tandem-profile": "own"}


async def test_a_profile_with_all_of_it_reads_writes_and_is_looked_at() -> None:
    made = await planned(World(), ASKED, profile=OWN)
    assert made.memory.scope == MemoryScope("k:1")
    assert made.memory.reads and made.memory.cuts and made.memory.keeps
    assert made.memory.is_looked_at and not made.memory.has_tool
    assert HOW_TO_WRITE in made.segments[0].text


async def test_no_profile_has_any_of_it_by_default_and_the_one_for_tools_never() -> None:
    plain = (await planned(World(), ASKED)).memory
    assert not (plain.reads or plain.cuts or plain.keeps or plain.has_tool or plain.is_looked_at)
    tools = replace(TOOLS, memory=OWN.memory)
    assert (await planned(World(), ASKED, profile=tools, tools=(LOOK,))).memory == NO_MEMORY


async def test_beside_other_tools_the_model_has_one_and_the_note_does_not_say_how() -> None:
    made = await planned(World(), ASKED, profile=OWN, tools=(LOOK,), headers=NAMED)
    assert made.memory.has_tool and made.call.tools == (LOOK, TOOL)
    assert not any(HOW_TO_WRITE in segment.text for segment in made.segments)


async def test_there_is_no_tool_where_its_call_could_not_be_answered_or_is_another_s() -> None:
    monitor = MonitorRules(continuations=0)
    rigid = replace(OWN, monitor=monitor)
    theirs = Tool(NAME)
    for profile, tool in ((rigid, LOOK), (OWN, theirs)):
        made = await planned(World(), ASKED, profile=profile, tools=(tool,), headers=NAMED)
        assert not made.memory.has_tool and made.call.tools == (tool,)
        assert made.memory.keeps


async def test_off_for_a_request_cuts_and_keeps_nothing() -> None:
    made = await planned(World(), ASKED, profile=OWN, headers=OFF)
    memory = made.memory
    assert memory.cuts and not (memory.reads or memory.keeps or memory.is_looked_at)


@pytest.mark.parametrize("asked", [{"choices": 2}, {"has_logprobs": True}])
async def test_several_answers_or_logprobs_keep_nothing(asked: dict[str, object]) -> None:
    memory = (await planned(World(), ASKED, profile=OWN, **asked)).memory
    assert not memory.keeps and memory.cuts is ("choices" in asked)


async def test_a_side_request_keeps_nothing_and_asks_for_nothing() -> None:
    made = await planned(World(), ASKED, profile=OWN, near=True, is_stream=False)
    assert made.side is not None and made.memory.cuts  # a compaction sees the note that says how
    assert not (made.memory.keeps or made.memory.reads or made.memory.is_looked_at)


async def test_how_to_write_is_said_once_in_a_conversation() -> None:
    world = World(memories=(MemoryNote(3, "fact", "it rains", 5),))
    first = await planned(world, ASKED, profile=OWN)
    world.keep(first)
    more = (ASKED, said("assistant", "A bracket."), said("user", "And the third line of it?"))
    second = await planned(world, *more, profile=OWN)
    assert [HOW_TO_WRITE in one.text for one in second.segments] == [True, False]
    assert [one.text.count("it rains") for one in second.segments] == [1, 0]


def test_a_constrained_answer_has_no_block() -> None:
    from conductor.memory.turn import memory_plan
    from conductor.types import Asked, Facts
    from conductor.types import Settings as Planning
    from proto.chat import Call

    facts = Facts(
        Planning({}, "own", {}, "r"), "other", Asked("chat", {}), None, "k:1", 0  # type: ignore[arg-type]
    )  # fmt: skip
    call = Call("m", (ASKED,), answer_format=AnswerFormat("json_object"))
    assert not memory_plan(call, facts, OWN, None).cuts
    assert memory_plan(replace(call, messages=()), facts, OWN, None) == NO_MEMORY


async def test_without_a_store_there_is_nothing_of_it() -> None:
    made = await planned(World(), ASKED, profile=OWN, has_memory=False)
    assert made.memory == NO_MEMORY and HOW_TO_WRITE not in made.segments[0].text
