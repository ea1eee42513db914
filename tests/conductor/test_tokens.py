"""The estimate of tokens: never far off, and never low where it matters."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.tokens import estimated_tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("word", 1),
        ("words", 2),
        ("two words", 3),
        ("Word", 1),
        ("HTML", 2),
        ("a" * 12, 3),
        ("a" * 13, 7),
        ("  ", 1),
        ("\n\n", 2),
        ("\t\t", 1),
        ("2026", 4),
        ("f(x);", 5),
        ("é", 1),
        ("你好", 4),
        ("👍", 3),
        ("\ud800", 2),
        ("\x00", 1),
    ],
)
def test_pieces_count_as_a_vocabulary_would_have_them_at_most(text: str, tokens: int) -> None:
    assert estimated_tokens(text) == tokens


def test_a_key_costs_far_more_than_prose_of_its_length() -> None:
    key = base64.b64encode(hashlib.sha512(b"x").digest()).decode()
    prose = ("read the file and tell me why it fails " * 4)[: len(key)]
    assert estimated_tokens(key) > len(key) / 2
    assert estimated_tokens(prose) < len(prose) / 2


@given(st.text(max_size=200), st.text(max_size=200))
def test_a_longer_text_is_never_estimated_much_smaller(one: str, other: str) -> None:
    joined = estimated_tokens(one + other)
    assert joined >= estimated_tokens(one) - 1
    assert joined <= estimated_tokens(one) + estimated_tokens(other) + 8
