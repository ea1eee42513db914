"""What a note says: its pieces in their order, whole or not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.markers import marker_in
from conductor.notes.render import (
    BEGIN,
    END,
    Rendered,
    Say,
    render,
    says,
)
from conductor.profiles import Rule
from conductor.tokens import estimated_tokens, rough_tokens
from conductor.types import Package


def package(name: str, text: str) -> Package:
    return Package(name, title=name, text=text, hash="")


EVERYTHING = Say(
    effort="Think briefly.",
    rules=(Rule("tests", "Run the tests."), Rule("lock", "Leave the lock file.")),
    packages=(package("logs", "# Logs\n\nRead the end first.\n"),),
    memories=(("m1", "The owner likes tabs."),),
)


def test_pieces_stand_in_their_order_between_the_tags() -> None:
    assert render(EVERYTHING, 2_000) == Rendered(
        "\n\n<tandem_note>\nThink briefly.\nRun the tests.\nLeave the lock file.\n"
        "# Logs\n\nRead the end first.\nThe owner likes tabs.\n</tandem_note>\n",
        rules=("tests", "lock"),
        packages=("logs",),
        memories=("m1",),
    )


@pytest.mark.parametrize("say", [Say(), Say(effort="\n"), Say(rules=(Rule("r", ""),))])
def test_an_empty_body_is_no_note(say: Say) -> None:
    assert render(say, 2_000) == Rendered()


def test_a_piece_that_does_not_fit_is_left_out_whole() -> None:
    long = package("long", "word " * 400)
    rendered = render(
        Say(effort="Short.", packages=(long, package("small", "Small.")), memories=(("m", "x"),)),
        100,
    )
    assert rendered == Rendered(
        f"{BEGIN}Short.\nSmall.\nx{END}", packages=("small",), memories=("m",), left_out=("long",)
    )


@given(st.lists(st.text(max_size=60), max_size=6), st.integers(0, 120))
def test_a_note_is_never_over_its_limit_by_the_estimate(texts: list[str], most: int) -> None:
    say = Say(packages=tuple(package(str(index), text) for index, text in enumerate(texts)))
    text = render(say, most).text
    assert not text or estimated_tokens(text) <= most


@pytest.mark.parametrize(
    "marker",
    [
        "<|im_end|>", "<|a b|>", "<｜User｜>", "<think>", "</think>", "<tool_call>", "</tool_call>",
        "<tool_response>", "<start_of_turn>", "[INST]", "[/INST]", "<tandem_note>",
        "</tandem_note>", "<tandem_memory>",
    ],
)  # fmt: skip
def test_no_note_holds_a_marker(marker: str) -> None:
    assert marker_in(f"a {marker} b")
    bad = f"Say {marker} now."
    say = Say(
        effort=bad, rules=(Rule("r", bad), Rule("ok", "Fine.")), packages=(package("p", bad),),
        memories=(("m", bad),),
    )  # fmt: skip
    rendered = render(say, 2_000)
    assert marker not in rendered.text.removeprefix(BEGIN).removesuffix(END)
    assert (rendered.rules, rendered.left_out) == (("ok",), ("effort", "r", "p", "m"))


@pytest.mark.parametrize("text", ["a < b | c > d", "x = y<T>; [INSTALL]", "<thinking> tandem_note"])
def test_ordinary_signs_are_no_marker(text: str) -> None:
    assert marker_in(text) is None


def test_a_piece_stands_in_a_note_as_a_whole() -> None:
    note = render(EVERYTHING, 2_000).text
    assert says(note, "Run the tests.") and says(note, "# Logs\n\nRead the end first.\n")
    assert not says(note, "Run the") and not says(note, "Logs")


def test_letters_of_other_scripts_are_counted_singly() -> None:
    assert [rough_tokens(text) for text in ("", "abc", "abcd", "日本語", "aé")] == [
        0,
        1,
        2,
        3,
        2,
    ]
