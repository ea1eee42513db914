"""Bug class 21: a memory block unclosed, split, in a fence; memory as a tool call."""

from dataclasses import replace

import pytest

from conductor.memory.block import BlockCutter, drafts_of, without_blocks
from conductor.memory.notes import Draft
from conductor.memory.tool import NAME, draft_of
from conductor.profiles import MemoryRules
from proto.chat import Message, TextPart, Tool
from tests.conductor.planned import CHAT, World, planned, said

ANSWER = "All green.\n\n<tandem_memory>\nfact: the suite takes ten minutes\n</tandem_memory>\n"


@pytest.mark.parametrize("width", [1, 2, 3, 7, len(ANSWER)])
def test_a_split_block_is_cut_and_read(width: int) -> None:
    cutter = BlockCutter()
    shown = "".join(
        cutter.feed(ANSWER[n : n + width]) for n in range(0, len(ANSWER), width)
    ) + cutter.end()  # fmt: skip
    assert shown == "All green."
    (block,) = cutter.blocks
    assert drafts_of(block) == (Draft("fact", "the suite takes ten minutes"),)
    came_back = Message("assistant", (TextPart(ANSWER),))
    assert without_blocks([came_back])[0].text == shown


def test_an_unclosed_block_reaches_neither_client_nor_memory() -> None:
    cutter = BlockCutter()
    shown = cutter.feed(ANSWER.partition("</")[0]) + cutter.end()
    (block,) = cutter.blocks
    assert (shown, block.is_closed, drafts_of(block)) == ("All green.", False, ())


def test_in_a_fence_it_is_text() -> None:
    text = f"So it looks:\n```\n{ANSWER}```\n"
    cutter = BlockCutter()
    assert cutter.feed(text) + cutter.end() == text
    assert cutter.blocks == []


def test_a_call_says_the_same() -> None:
    arguments = '{"kind": "fact", "text": "the suite takes ten minutes"}'
    assert draft_of(arguments) == Draft("fact", "the suite takes ten minutes")


async def test_a_call_of_the_tool_is_no_call_of_the_client_s() -> None:
    # How it is answered, and that no client sees it: tests/gateway/test_memory_notes_tool.py.
    writes = replace(CHAT, name="own", memory=MemoryRules(write=True))
    theirs = Tool(NAME)
    headers = {"x-tandem-profile": "own"}
    for offered, has_tool in ((Tool("look"), True), (theirs, False)):
        made = await planned(
            World(), said("user", "hello"), profile=writes, tools=(offered,), headers=headers
        )
        assert made.memory.has_tool is has_tool
        assert [tool.name for tool in made.call.tools].count(NAME) == 1


async def test_a_block_that_comes_back_in_a_history_is_taken_out_before_hashing() -> None:
    writes = replace(CHAT, memory=MemoryRules(write=True))
    first, last = said("user", "hello"), said("user", "and now?")
    plain = await planned(World(), first, said("assistant", "All green."), last, profile=writes)
    again = await planned(World(), first, said("assistant", ANSWER), last, profile=writes)
    assert plain.session is not None and again.session is not None
    assert plain.session.chain == again.session.chain
    assert again.call.messages[1].text == "All green."
