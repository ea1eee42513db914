"""Where code stands in a Markdown text, however the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.fences import LINE_CHARS, Place


@pytest.mark.parametrize(
    ("text", "is_fenced"),
    [
        ("", False),
        ("```", True),
        ("```\ncode", True),
        ("```\ncode\n```\nbehind", False),
        ("~~~ py\ncode\n```\nstill", True),
        ("````\ncode\n```\nstill", True),
        ("```\ncode\n`````  \nbehind", False),
        ("```\ncode\n``` x\nstill", True),
        ("   ```\ncode", True),
        ("    ```\nan indented line", False),
        ("``` a`b\ntext", False),
        ("``\ntext", False),
        ("said ```\ntext", False),
    ],
)
def test_fences_open_and_close_as_in_markdown(text: str, is_fenced: bool) -> None:
    assert Place().after(text).is_fenced is is_fenced


def test_behind_a_backtick_stands_code_too() -> None:
    assert Place().after("it is `").is_code
    assert not Place().after("it is ").is_code


def test_a_long_line_is_remembered_by_its_beginning() -> None:
    assert len(Place().after("x" * 10 * LINE_CHARS).line) == LINE_CHARS


@given(st.lists(st.sampled_from(["`", "```", "~~~", "\n", " ", "x"]), max_size=30))
def test_it_does_not_matter_how_the_text_comes(pieces: list[str]) -> None:
    place = Place()
    for piece in pieces:
        place = place.after(piece)
    assert place == Place().after("".join(pieces))
