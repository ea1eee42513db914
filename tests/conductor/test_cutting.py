"""Stretches cut out of a message's parts."""

from hypothesis import given
from hypothesis import strategies as st

from conductor.cutting import cut_out
from proto.chat import ImagePart, Part, TextPart

IMAGE = ImagePart("data:image/png;base64,AA==")


def joined(parts: tuple[Part, ...]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def test_nothing_to_cut_gives_the_same_parts() -> None:
    parts = (TextPart("a"), IMAGE)
    assert cut_out(parts, []) is parts


def test_a_stretch_may_run_over_parts_and_a_part_with_nothing_left_goes() -> None:
    parts = (TextPart("abc"), IMAGE, TextPart("de"), TextPart(""), TextPart("fgh"))
    assert cut_out(parts, [(1, 6)]) == (TextPart("a"), IMAGE, TextPart(""), TextPart("gh"))


@given(
    st.lists(st.text("abcdef", max_size=6), max_size=5),
    st.lists(st.integers(0, 30), unique=True, max_size=8),
)
def test_what_is_left_is_the_text_without_the_stretches(texts: list[str], ends: list[int]) -> None:
    text = "".join(texts)
    ends = sorted(min(end, len(text)) for end in ends)
    stretches = list(zip(ends[::2], ends[1::2], strict=False))
    gone = {n for begin, end in stretches for n in range(begin, end)}
    left = cut_out(tuple(map(TextPart, texts)), stretches)
    assert joined(left) == "".join(c for n, c in enumerate(text) if n not in gone)
