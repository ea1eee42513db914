"""Pieces of text as tokens come, and stop strings across them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_text import random_texts, tiny_tokenizer

from worker.text.answer import AnswerSyntax, AnswerText
from worker.text.detokenize import Detokenizer, StopSearch

TOKENIZER = tiny_tokenizer()
TABLE = TOKENIZER.token_bytes
VOCABULARY = len(TABLE)


@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=60))
def test_the_sum_of_pieces_is_one_decode_of_all_ids(ids: list[int]):
    detokenizer = Detokenizer(TABLE)
    pieces = [detokenizer.push(i) for i in ids]
    whole = b"".join(TABLE[i] for i in ids).decode(errors="replace")
    assert "".join(pieces) + detokenizer.finish() == whole


@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=60))
def test_the_tokenizer_library_decodes_to_the_same_text(ids: list[int]):
    from tokenizers import Tokenizer

    library = Tokenizer.from_str(TOKENIZER.serialized)
    detokenizer = Detokenizer(TABLE)
    pieces = "".join(detokenizer.push(i) for i in ids) + detokenizer.finish()
    assert pieces == library.decode(ids, skip_special_tokens=True)


def test_b41_half_a_character_is_never_given_out():
    text = "😀é日" * 5
    ids = [TABLE.index(bytes([byte])) for byte in text.encode()]
    detokenizer = Detokenizer(TABLE)
    pieces = [detokenizer.push(i) for i in ids]
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)
    # The held bytes go with the token that completes them.
    assert pieces[:4] == ["", "", "", "😀"]


def test_an_incomplete_tail_becomes_one_replacement_character():
    detokenizer = Detokenizer(TABLE)
    ids = [TABLE.index(bytes([byte])) for byte in "😀".encode()[:3]]
    assert [detokenizer.push(i) for i in ids] == ["", "", ""]
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


def test_b42_twenty_thousand_tokens_take_linear_time():
    ids = TOKENIZER.encode_literal(" ".join(random_texts(3000)))
    assert len(ids) > 20_000

    def seconds(count: int) -> float:
        answer = AnswerText(TABLE, AnswerSyntax(stops=("never", "there")))
        began = time.perf_counter()
        for i in ids[:count]:
            answer.push(i, 1)
        return time.perf_counter() - began

    seconds(2_000)
    short, long = min(seconds(2_000) for _ in range(3)), seconds(20_000)
    assert long < 50 * short  # quadratic would be 100 times


def _whole(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    return (text[: min(found)], True) if found else (text, False)


def _streamed(pieces: list[str], stops: tuple[str, ...]) -> tuple[list[str], bool]:
    search, released = StopSearch(stops), []
    for piece in pieces:
        out = search.push(piece)
        released.append(out.text)
        if out.is_stopped:
            return released, True
    return [*released, search.finish()], False


def test_the_stop_string_that_begins_first_ends_the_text():
    out = StopSearch(("cd", "b")).push("abcd")
    assert (out.text, out.is_stopped) == ("a", True)


STOPS = ("ab", "aab", "b\n", "cabc")


@given(st.text("abc\n", max_size=14), st.data())
def test_b33_however_text_is_cut_stream_and_whole_are_equal(text: str, data: st.DataObject):
    stops = tuple(data.draw(st.lists(st.sampled_from(STOPS), max_size=3)))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    released, is_stopped = _streamed(pieces, stops)
    # A stop string that completes first ends the stream; one that began earlier may be longer.
    first_end = min((text.find(s) + len(s) for s in stops if s in text), default=len(text))
    consumed = next(
        (n for n in range(len(pieces) + 1) if len("".join(pieces[:n])) >= first_end), len(pieces)
    )
    whole = _whole("".join(pieces[:consumed]) if is_stopped else text, stops)
    assert ("".join(released), is_stopped) == whole


@pytest.mark.parametrize("cut", range(1, 12))
def test_b33_the_prefix_of_a_stop_string_never_leaks(cut: int):
    text = "hello STOPPED"
    released, is_stopped = _streamed([text[:cut], text[cut:]], ("STOP",))
    assert is_stopped
    assert "".join(released) == "hello "


def test_b35_only_what_may_begin_a_stop_string_is_held():
    search = StopSearch(("END",))
    assert search.push("some text").text == "some text"
    assert search.push("E").text == ""
    assert search.push("x").text == "Ex"
    assert search.push("EEN").text == "E"
    assert search.finish() == "EN"


def test_a_stop_string_completed_by_the_last_broken_character_ends_the_answer():
    answer = AnswerText(TABLE, AnswerSyntax(stops=("\ufffd",)))
    ids = [TABLE.index(b"a"), TABLE.index("é".encode()[:1])]
    assert [answer.push(i, 1).piece for i in ids] == ["a", ""]
    assert answer.finish(2, is_cut=True).piece == ""
    assert answer.is_stopped
