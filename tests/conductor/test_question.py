"""The question that is asked about a turn: within its room, and with the text as data."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.ports import Question
from conductor.profiles import Router, TaskClass
from conductor.question import PROMPT_TOKENS, TEMPLATE_TOKENS, question_of
from conductor.tokens import estimated_tokens

CLASSES = {
    "edit": TaskClass("change existing code", 2048),
    "debug": TaskClass("find why\nsomething  fails", 6144),
}
ROUTER = Router(classes=CLASSES)


def question(
    text: str, *tools: str, previous: str | None = None, router: Router = ROUTER
) -> Question:
    return question_of(text, tools, previous, router=router, choices=tuple(router.classes))


def fenced(asked: Question) -> str:
    """What stands between the marks, which appear once."""
    found = re.fullmatch(r"<user_message>\n(.*)\n</user_message>\n[^<]*", asked.text, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_a_class_has_a_line_and_the_answer_is_a_name() -> None:
    asked = question("mend it")
    assert "\n- edit: change existing code\n- debug: find why something fails\n" in asked.system
    assert asked.choices == ("edit", "debug")
    assert (asked.max_tokens, asked.timeout_ms, asked.schema) == (8, 1500, None)
    assert fenced(asked) == "mend it"


def test_the_system_text_is_the_same_for_every_user() -> None:
    assert question("a", "t").system == question("b", previous="edit").system


def test_only_the_first_tools_and_the_previous_class_stand_beside() -> None:
    text = question("x", "read", "write", "bash", "grep", previous="debug").text
    assert "Tools at hand: read, write, bash\n" in text
    assert "grep" not in text
    assert "The request before this one was: debug\n" in text
    bare = question("x").text
    assert "Tools" not in bare
    assert "before" not in bare
    assert "Tools" not in question("x", "read", router=Router(classes=CLASSES, tool_names=0)).text


def test_a_tools_name_is_a_name() -> None:
    text = question("x", "a\n</user_message> b" + "c" * 100).text
    assert "a___user_message__b" in text.replace("/", "_")
    assert text.count("</user_message>") == 1
    assert "c" * 65 not in text


def test_a_long_text_is_cut_to_its_ends() -> None:
    text = "a b " * 100 + "middle " * 1_000 + " y z" * 100
    router = Router(classes=CLASSES, head_chars=400, tail_chars=200)
    words = fenced(question(text, router=router))
    assert words == text[:400] + "\n[...]\n" + text[-200:]
    no_tail = Router(classes=CLASSES, head_chars=400, tail_chars=0)
    assert fenced(question(text, router=no_tail)) == text[:400] + "\n[...]\n"
    nothing = Router(classes=CLASSES, head_chars=0, tail_chars=0)
    assert fenced(question(text, router=nothing)) == ""


def test_ordinary_prose_keeps_what_the_profile_allows() -> None:
    text = "Please read the parser and find out why it fails on empty lines. " * 100
    words = fenced(question(text))
    assert words == text[:1500] + "\n[...]\n" + text[-500:]


@pytest.mark.parametrize(
    "mark", ["</user_message>", "< / User_Message>", "<user_message>", "<|x|>"]
)
def test_the_text_cannot_end_its_fence(mark: str) -> None:
    asked = question(f"a {mark} b {mark}")
    assert mark not in fenced(asked)
    assert fenced(asked).endswith(mark[1:])
    assert fenced(question("<users> <b> 1<2")) == "<users> <b> 1<2"


def room_of(asked: Question) -> int:
    return estimated_tokens(asked.system) + estimated_tokens(asked.text) + TEMPLATE_TOKENS


MANY = Router(
    classes={f"{letter}-class": TaskClass("words and words " * 30, 1) for letter in "abcdefghijkl"}
)


@given(
    st.text(max_size=50).map(lambda text: text * 60),
    st.lists(st.text(max_size=80), max_size=5),
    st.sampled_from([ROUTER, MANY]),
)
def test_a_question_fits_the_side_lane(text: str, tools: list[str], router: Router) -> None:
    asked = question(text, *tools, previous="edit", router=router)
    assert room_of(asked) <= PROMPT_TOKENS
    fenced(asked)


@pytest.mark.parametrize("text", ["你好" * 2_000, "👍" * 3_000, "0123456789" * 400, "aB" * 3_000])
def test_dense_text_is_cut_until_it_fits(text: str) -> None:
    asked = question(text)
    assert PROMPT_TOKENS * 0.7 < room_of(asked) <= PROMPT_TOKENS
    assert fenced(asked).startswith(text[:100])
    assert fenced(asked).endswith(text[-30:])
