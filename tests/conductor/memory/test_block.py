"""The memory block: cut from the stream, read, taken out of histories."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.memory.block import (
    CLOSE,
    OPEN,
    BlockCutter,
    HiddenBlock,
    drafts_of,
    without_blocks,
)
from conductor.memory.notes import MOST_NOTES, Draft
from proto.chat import ImagePart, Message, Part, TextPart

BLOCK = f"{OPEN}\nfact: it rains\n{CLOSE}"


def cut(*pieces: str) -> tuple[str, list[HiddenBlock]]:
    cutter = BlockCutter()
    shown = "".join([*map(cutter.feed, pieces), cutter.end()])
    return shown, cutter.blocks


def put_back(shown: str, blocks: list[HiddenBlock]) -> str:
    for block in reversed(blocks):
        shown = shown[: block.offset] + block.text + shown[block.offset :]
    return shown


def test_the_client_sees_the_answer_without_the_block() -> None:
    shown, blocks = cut(f"Done.\n\n{BLOCK}\n")
    assert shown == "Done."
    assert blocks == [HiddenBlock(f"\n\n{BLOCK}\n", 5)]


def test_an_answer_without_a_block_stays() -> None:
    assert cut("a <b> ", "c\n") == ("a <b> c\n", [])


def test_only_what_may_begin_a_block_is_held_back() -> None:
    cutter = BlockCutter()
    assert cutter.feed("Done, a < b") == "Done, a < b"
    assert cutter.feed(" \n<tandem") == ""
    assert cutter.feed("!") == " \n<tandem!"


def test_text_goes_on_behind_a_block() -> None:
    assert cut(f"a\n{BLOCK}\nb") == ("a\nb", [HiddenBlock(f"\n{BLOCK}", 1)])
    assert cut(f"a {BLOCK}b") == ("a b", [HiddenBlock(BLOCK, 2)])
    assert cut(f"a{BLOCK}b") == ("ab", [HiddenBlock(BLOCK, 1)])


def test_blocks_may_follow_each_other() -> None:
    shown, blocks = cut(f"a\n{BLOCK}\n{BLOCK}")
    assert shown == "a"
    assert [block.text for block in blocks] == [f"\n{BLOCK}", f"\n{BLOCK}"]


@pytest.mark.parametrize("before", ["```\n", "```", "~~~ x\nfoo\n", "say `"])
def test_in_code_the_tag_is_text(before: str) -> None:
    text = f"{before}{BLOCK} and more\n"
    assert cut(text) == (text, [])


def test_behind_a_code_block_it_is_a_block_again() -> None:
    assert cut(f"```\n{BLOCK}\n```\n{BLOCK}")[0] == f"```\n{BLOCK}\n```"


def test_an_unclosed_block_is_dropped_and_known_as_such() -> None:
    shown, blocks = cut(f"Done. {OPEN}\nfact: it", " rai", "</tandem_mem")
    assert shown == "Done."
    assert blocks == [HiddenBlock(f" {OPEN}\nfact: it rai</tandem_mem", 5, is_closed=False)]
    assert drafts_of(blocks[0]) == ()


PIECES = st.lists(
    st.one_of(
        st.sampled_from([OPEN, CLOSE, BLOCK, "```\n", "~~~\n", "`", "\n", " ", "x", "<", "text"]),
        st.text(st.sampled_from("<>/_tandemory \n`"), max_size=8),
    ),
    max_size=12,
).map("".join)


@given(PIECES, st.lists(st.integers(0, 300), max_size=12))
def test_it_does_not_matter_how_the_answer_is_cut(text: str, cuts: list[int]) -> None:
    ends = sorted({0, len(text), *(min(end, len(text)) for end in cuts)})
    pieces = [text[a:b] for a, b in pairwise(ends)]
    assert cut(*pieces) == cut(*text) == cut(text)


@given(PIECES)
def test_put_back_the_blocks_make_the_model_s_text(text: str) -> None:
    assert put_back(*cut(text)) == text


@given(PIECES)
def test_a_history_with_blocks_is_what_the_client_has(text: str) -> None:
    """As long as they are closed; and the parts do not matter."""
    shown, blocks = cut(text)
    if blocks and not blocks[-1].is_closed:
        shown = put_back(shown, blocks[-1:])
    middle = len(text) // 2
    halves = Message("assistant", (TextPart(text[:middle]), TextPart(text[middle:])))
    for message in (Message("assistant", (TextPart(text),)), halves):
        (found,) = without_blocks([message])
        assert found.text == shown


def test_only_answers_lose_blocks_and_images_stay() -> None:
    image: Part = ImagePart("data:image/png;base64,AA==")
    user = Message("user", (TextPart(BLOCK),))
    answer = Message("assistant", (image, TextPart(f"a {BLOCK}")))
    assert without_blocks([user, answer]) == (
        user,
        Message("assistant", (image, TextPart("a"))),
    )


def test_a_block_is_read_line_by_line() -> None:
    inside = (
        "- fact: tests  run with pytest\n\npreference:short answers\n"
        "* TODO (replaces [12]): tidy up\nit rains\nnote: x\nfact:"
    )
    assert drafts_of(HiddenBlock(f"\n{OPEN}\n{inside}\n{CLOSE}", 0)) == (
        Draft("fact", "tests run with pytest"),
        Draft("preference", "short answers"),
        Draft("todo", "tidy up", replaces=12),
        Draft("fact", "it rains"),
        Draft("fact", "note: x"),
    )


def test_a_block_keeps_only_so_many() -> None:
    text = "\n".join(f"fact: number {n}" for n in range(MOST_NOTES + 3))
    assert len(drafts_of(HiddenBlock(f"{OPEN}{text}{CLOSE}", 0))) == MOST_NOTES
