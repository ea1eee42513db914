"""JSON as models write it."""

from typing import Any

import pytest

from conductor.monitor.loose_json import (
    MOST_DEPTH,
    NoJson,
    dumped,
    loose_json,
    loose_prefix,
    strict_json,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ("{'a': 'b'}", {"a": "b"}),
        ("{'a': 'it\\'s'}", {"a": "it's"}),
        ("{a: True, b: None, c: undefined}", {"a": True, "b": None, "c": None}),
        ('{"a": [1, 2,], }', {"a": [1, 2]}),
        ('{,"a": 1}', {"a": 1}),
        ('{"a": [1, {"b": 2', {"a": [1, {"b": 2}]}),
        ('{"a": 1, "b"', {"a": 1}),
        ('{"a": 1, "b":', {"a": 1}),
        ('{"a": "two\nlines"}', {"a": "two\nlines"}),
        ('{"a": "C:\\dir"}', {"a": "C:\\dir"}),
        ('{"a": "\\u00e9\\n"}', {"a": "é\n"}),
        ('{"a": 1}}', {"a": 1}),
        ('{"a": 1};', {"a": 1}),
        ("[1, [2", [1, [2]]),
        (" -1.5e3 ", -1500.0),
        ("", None),
    ],
)
def test_what_was_meant_is_read(text: str, value: Any) -> None:
    if not text:
        with pytest.raises(NoJson):
            loose_json(text)
        return
    assert loose_json(text) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "cut in the mid', '{"a" 1}', "{?: 1}", "word", '{"a": 1} and more', "NaN",
        '{"a": 1e999}', '{"a": -}', "[" * (MOST_DEPTH + 2),
    ],
)  # fmt: skip
def test_what_nobody_can_know_is_none(text: str) -> None:
    with pytest.raises(NoJson):
        loose_json(text)


@pytest.mark.parametrize("text", ["NaN", "1e999", "[" * 100_000, "{'a': 1}"])
def test_strict_is_strict(text: str) -> None:
    with pytest.raises(NoJson):
        strict_json(text)


def test_a_value_in_a_text_is_read_to_its_end() -> None:
    text = 'so {"a": 1} it is'
    assert loose_prefix(text, 3) == ({"a": 1}, 11)


def test_texts_are_written_in_their_letters_and_half_ones_escaped() -> None:
    assert dumped({"a": "é"}) == '{"a": "é"}'
    assert dumped("\ud800é") == '"\\ud800\\u00e9"'
