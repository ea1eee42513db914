"""Text as pieces, the same however it is cut; recurrences within a window."""

from hypothesis import given
from hypothesis import strategies as st

from conductor.monitor.pieces import GAP, JOINED, LINE, PARAGRAPH, SPACE, Pieces
from conductor.monitor.trail import KEPT_GRAMS, KEPT_PIECES, Recurrences, Trail


def test_words_signs_and_unspaced_characters_are_pieces() -> None:
    pieces = Pieces().push("He said: don't go_2 -- 木火!\n")
    assert [one.text for one in pieces] == [
        "he", "said", ":", "don", "'", "t", "go_2", "-", "-", "木", "火", "!",
    ]  # fmt: skip
    assert [one.is_prose for one in pieces] == [
        True, True, False, True, True, True, False, False, False, True, True, False,
    ]  # fmt: skip


def test_a_long_run_is_several_pieces() -> None:
    assert [len(one.text) for one in Pieces().push("a" * 40 + ".")] == [16, 16, 8, 1]


def test_what_stands_before_a_piece() -> None:
    pieces = Pieces().push("a.b c  d\te\nf\n \n  g .")
    assert [one.before for one in pieces] == [
        PARAGRAPH, JOINED, JOINED, SPACE, GAP, GAP, LINE, PARAGRAPH, SPACE,
    ]  # fmt: skip


def test_fenced_code_is_marked() -> None:
    text = "a `` b ``` c\n ```py\nd\n~~~\n``\ne\n```\nf `\n` g\n~~~\nh\n``x`\n~~~\ni ."
    marks = {one.text: one.is_fenced for one in Pieces().push(text)}
    assert {key: marks[key] for key in "abcdefghi"} == {
        "a": False, "b": False, "c": False, "d": True, "e": True, "f": False, "g": False,
        "h": True, "i": False,
    }  # fmt: skip


@given(st.text(alphabet="ab1_ \n\t.`~'’木é-", max_size=60), st.data())
def test_cuts_do_not_change_the_pieces(text: str, data: st.DataObject) -> None:
    at = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    reader = Pieces()
    cut = [
        piece
        for begin, end in zip([0, *at], [*at, len(text)], strict=True)
        for piece in reader.push(text[begin:end])
    ]
    assert cut == Pieces().push(text)


def test_memory_of_pieces_is_bounded_and_forgets_what_is_far_back() -> None:
    trail, reader = Trail(), Pieces()
    for i in range(3 * KEPT_GRAMS):
        for piece in reader.push(f"w{i} "):
            trail.push(piece)
    assert trail.count == 3 * KEPT_GRAMS - 1 + 1
    assert trail.distinct(10 * KEPT_PIECES) < 2 * KEPT_PIECES
    for piece in reader.push("w1 w2 w3 w4 w5 "):
        trail.push(piece)
    assert trail.new_share(2) == 1.0
    assert not trail.has_period(5, 5)
    assert not trail.has_period(5, 10 * KEPT_PIECES)


def test_recurrences_are_counted_apart_and_within_the_window() -> None:
    seen = Recurrences(times=3, window=10, apart=2)
    assert [seen.push(7, place) for place in (1, 2, 3, 5, 20, 22, 24)] == [
        None, None, None, 1, None, None, 20,
    ]  # fmt: skip
