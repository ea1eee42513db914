"""Tokenizers from GGUF metadata and from tokenizer.json, against independent encoders."""

import itertools
import unicodedata
from pathlib import Path

import pytest
import regex
from tiny_text import CONTROL, CORPUS, gguf_keys, random_texts, tiny_tokenizer
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from worker.faults import LoadFault
from worker.loading.gguf import GgufFile
from worker.text.tokenizer import tokenizer_from_gguf, tokenizer_from_json

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|", 1)


class NaiveBpe:
    """Byte-level BPE by its definition: the pair merged first in training is merged first."""

    def __init__(self, kind: str) -> None:
        keys = gguf_keys(kind)
        self._kind = kind
        self._ids = {token: i for i, token in enumerate(keys["tokenizer.ggml.tokens"])}
        merges = keys["tokenizer.ggml.merges"]
        self._ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printable]
        self._chars = {byte: chr(byte) for byte in printable}
        self._chars |= {byte: chr(256 + i) for i, byte in enumerate(others)}

    def encode(self, text: str) -> list[int]:
        ids = []
        for word in self._words(text):
            parts = [self._chars[byte] for byte in word.encode()]
            if self._kind == "llama-bpe" and "".join(parts) in self._ids:
                ids.append(self._ids["".join(parts)])
                continue
            ids += [self._ids[part] for part in self._merged(parts)]
        return ids

    def _words(self, text: str) -> list[str]:
        match self._kind:
            case "smollm":
                pieces = regex.split(r"(\p{N})", text)
                return [word for piece in pieces for word in regex.findall(GPT2, piece)]
            case "qwen2":
                return regex.findall(QWEN2, unicodedata.normalize("NFC", text))
            case "qwen35":
                return regex.findall(QWEN35, unicodedata.normalize("NFC", text))
            case "llama-bpe":
                return regex.findall(LLAMA3, text)
        return regex.findall(GPT2, text)

    def _merged(self, parts: list[str]) -> list[str]:
        while True:
            pairs = list(itertools.pairwise(parts))
            ranked = [(self._ranks[pair], i) for i, pair in enumerate(pairs) if pair in self._ranks]
            if not ranked:
                return parts
            _, at = min(ranked)
            parts = [*parts[:at], parts[at] + parts[at + 1], *parts[at + 2 :]]


@pytest.mark.parametrize("kind", ["smollm", "qwen2", "qwen35", "llama-bpe", "gpt-2"])
def test_a_gguf_vocabulary_encodes_as_byte_level_bpe_by_its_definition(kind: str):
    ours, reference = tiny_tokenizer(kind), NaiveBpe(kind)
    for text in (*random_texts(300), *CORPUS):
        assert ours.encode_literal(text) == reference.encode(text), text


@pytest.mark.model
def test_the_embedded_models_tokenizer_encodes_as_transformers_does(embedded_model: Path):
    ours = tokenizer_from_gguf(GgufFile.open(embedded_model).keys)
    theirs = AutoTokenizer.from_pretrained(embedded_model.parent, gguf_file=embedded_model.name)
    # It converts every such file alike; the model's own tokenizer splits each digit off first.
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), theirs.backend_tokenizer.pre_tokenizer]
    )
    theirs.backend_tokenizer.pre_tokenizer = splitter
    for text in random_texts(300):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text


def test_the_bytes_of_all_ids_join_to_the_text():
    tokenizer = tiny_tokenizer()
    for text in random_texts(100, seed=1):
        ids = tokenizer.encode_literal(text)
        assert b"".join(tokenizer.token_bytes[i] for i in ids).decode() == text


def test_rendered_text_holds_control_tokens_and_a_persons_text_does_not():
    tokenizer = tiny_tokenizer()
    assert tokenizer.encode("a<|im_end|>") == [*tokenizer.encode("a"), 2]
    literal = tokenizer.encode_literal("a<|im_end|>")
    assert not set(literal) & set(tokenizer.control_tokens.values())
    assert b"".join(tokenizer.token_bytes[i] for i in literal) == b"a<|im_end|>"


def test_user_defined_tokens_have_text_and_control_tokens_have_none():
    tokenizer = tiny_tokenizer()
    assert [tokenizer.token_bytes[i] for i in range(len(CONTROL))] == [b"", b"", b""]
    assert b"<think>" in tokenizer.token_bytes
    assert "<think>" not in tokenizer.control_tokens


def test_a_raw_prompt_begins_with_the_begin_token_where_the_model_wants_one():
    keys = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.add_bos_token": True}
    tokenizer = tokenizer_from_gguf(gguf_keys(**keys))
    plain = tokenizer.encode_literal("hi")
    assert tokenizer.encode_prompt("hi") == [1, *plain]
    assert tiny_tokenizer().encode_prompt("hi") == plain


def test_a_tokenizer_read_from_its_json_is_the_same_with_the_same_hash():
    tokenizer = tiny_tokenizer()
    again = tokenizer_from_json(tokenizer.serialized)
    assert again.hash == tokenizer.hash
    assert again.token_bytes == tokenizer.token_bytes


def test_the_hash_tells_tokenizers_apart():
    kinds = ("smollm", "qwen2", "qwen35", "llama-bpe", "gpt-2")
    hashes = {tiny_tokenizer(kind).hash for kind in kinds}
    assert len(hashes) == len(kinds)
    keys = gguf_keys()
    keys["tokenizer.ggml.merges"] = keys["tokenizer.ggml.merges"][:-1]
    assert tokenizer_from_gguf(keys).hash not in hashes


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"tokenizer.ggml.pre": "tekken"}, "'tekken'"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.json"),
    ],
)
def test_a_tokenizer_that_is_not_known_is_refused_by_name(changes: dict[str, str], word: str):
    with pytest.raises(LoadFault, match=word):
        tokenizer_from_gguf({**gguf_keys(), **changes})


def test_missing_keys_and_damaged_json_are_refused():
    keys = gguf_keys()
    del keys["tokenizer.ggml.merges"]
    with pytest.raises(LoadFault, match="merges"):
        tokenizer_from_gguf(keys)
    with pytest.raises(LoadFault, match=r"tokenizer\.json"):
        tokenizer_from_json("{}")
