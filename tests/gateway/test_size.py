"""How large a request is taken to be before anybody has read it."""

import json
from typing import Any

import pytest

from gateway.surfaces.envelope import read_envelope
from gateway.surfaces.request import ModelRequest
from gateway.surfaces.size import ATTACHMENT_TOKENS, MOST_ANSWERS, Size, size_of


def size(fields: dict[str, Any]) -> Size:
    envelope = read_envelope(json.dumps(fields).encode())
    return size_of(ModelRequest("m", "generation", False, None, envelope, "/", b""))


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, 0),
        ({"prompt": "a"}, 1),
        ({"prompt": "a" * 7}, 2),
        ({"prompt": "a" * 8}, 3),
        ({"prompt": "é" * 7}, 2),  # characters, not bytes
        ({"prompt": "a" * 7, "user": "b" * 700, "model": "m"}, 2),
        ({"prompt": [1, 2, 3]}, 3),  # token ids
        ({"messages": [{"role": "user", "content": "a" * 10}]}, 8),  # 4 + 4 + 7 + 10 characters
        ({"system": "a" * 7, "instructions": "b" * 7}, 4),
        ({"tools": [{"name": "f" * 10}]}, 4),
        ({"contents": [{"parts": [{"text": "a" * 19}]}]}, 8),
    ],
)
def test_text_counts_at_three_and_a_half_characters_a_token(
    fields: dict[str, Any], tokens: int
) -> None:
    """Rounded up, once; the names of fields count, for those of tools are read by the model."""
    assert size(fields) == Size(tokens, 1)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10**6}},
        {"type": "image", "source": {"data": "A" * 10**6}},
        {"inlineData": {"mimeType": "image/png", "data": "A" * 10**6}},
        {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 10**6},
    ],
)
def test_an_attachment_does_not_count_as_text(part: dict[str, Any]) -> None:
    found = size({"messages": [{"content": [part]}]})
    assert ATTACHMENT_TOKENS <= found.prompt_tokens <= ATTACHMENT_TOKENS + 30


def test_text_that_begins_like_an_attachment_is_text() -> None:
    text = "data:image/png;base64," + "A" * 70_000
    assert size({"messages": [{"content": text}]}).prompt_tokens > 20_000


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({}, 1), ({"n": 3}, 3), ({"n": 2, "best_of": 5}, 5), ({"n": 0}, 1), ({"n": True}, 1),
        ({"n": "7"}, 1), ({"n": 10**9}, MOST_ANSWERS),
        ({"generationConfig": {"candidateCount": 4}}, 4),
        ({"prompt": ["a", "b"], "n": 2}, 4), ({"prompt": [[1, 2], [3]]}, 2),
        ({"prompt": [1, 2]}, 1), ({"prompt": []}, 1),
    ],
)  # fmt: skip
def test_every_answer_that_is_asked_for_counts(fields: dict[str, Any], answers: int) -> None:
    assert size(fields).answers == answers
