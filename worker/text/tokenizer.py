"""Text to token ids and each id's bytes. Knows no template, no message and no run.

Byte-level BPE, from tokenizer.json or from the metadata of a GGUF file.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers.processors import TemplateProcessing

from worker.faults import LoadFault

# Token types of GGUF metadata.
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5

# Source: llama.cpp `llama-vocab.cpp`; Qwen2's, Qwen 3.5's and Llama 3's tokenizer.json.
_LETTERS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?%s+|\p{N}%s"
    r"| ?[^\s\p{L}%s\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = _LETTERS % (r"\p{L}", "", "")
QWEN35_PATTERN = _LETTERS % (r"[\p{L}\p{M}]", "", r"\p{M}")
LLAMA3_PATTERN = _LETTERS % (r"\p{L}", "{1,3}", "")


class TextTokenizer:
    """Encodes in two ways: with control tokens read as such, and with their spelling as text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        serialized = tokenizer.to_str()
        fields = json.loads(serialized)
        _check_byte_level(fields)
        self._reading = tokenizer
        self._literal = Tokenizer.from_str(serialized)
        self._literal.encode_special_tokens = True
        added = fields["added_tokens"]
        self.control_tokens: Mapping[str, int] = {
            entry["content"]: entry["id"] for entry in added if entry["special"]
        }
        self.token_bytes = _token_bytes(tokenizer, added)
        self.hash = _hash_of(tokenizer, fields)
        # The whole tokenizer as JSON: what a grammar engine wants to be built from.
        self.serialized = serialized
        self.longest_token_bytes = max(len(token or b"") for token in self.token_bytes)

    def encode(self, text: str) -> list[int]:
        """Ids of rendered text, in which control tokens count as what they are."""
        return _ids(self._reading, text, add_special_tokens=False)

    def encode_literal(self, text: str) -> list[int]:
        """Ids of a person's text: a control token spelled in it is just its characters."""
        return _ids(self._literal, text, add_special_tokens=False)

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a raw prompt: literal, after the begin token where the model wants one."""
        return _ids(self._literal, text, add_special_tokens=True)

    def ids_of(self, spellings: Iterable[str]) -> tuple[int, ...]:
        """Ids of the control tokens that have one of these spellings."""
        return tuple(self.control_tokens[text] for text in spellings if text in self.control_tokens)


def _ids(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    # The batch form lets the other threads run meanwhile; `encode` holds the interpreter, and a
    # prompt of some megabytes would cost every run its lease.
    (found,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    ids: list[int] = found.ids
    return ids


def tokenizer_from_json(text: str) -> TextTokenizer:
    """Builds the tokenizer of a tokenizer.json. Raises: LoadFault."""
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as fault:  # the library raises bare Exception
        raise LoadFault(f"The model's tokenizer.json cannot be used: {fault}.") from fault
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return TextTokenizer(tokenizer)


def tokenizer_from_gguf(keys: Mapping[str, Any]) -> TextTokenizer:
    """Builds the tokenizer that GGUF metadata describe.

    Raises: LoadFault for a vocabulary that is not byte-level BPE, or an unknown pre-tokenizer.
    """
    model, kind = keys.get("tokenizer.ggml.model"), keys.get("tokenizer.ggml.pre", "default")
    if model != "gpt2":
        raise LoadFault(
            f"The file's tokenizer is of model {model!r}; put the model's tokenizer.json beside it."
        )
    try:
        tokens = keys["tokenizer.ggml.tokens"]
        merges = [tuple(merge.split(" ", 1)) for merge in keys["tokenizer.ggml.merges"]]
        types = keys["tokenizer.ggml.token_type"]
    except KeyError as fault:
        raise LoadFault(f"The file lacks the key {fault} of its tokenizer.") from fault
    normalizer, splitter, ignores_merges = _pre_tokenizer(str(kind))
    bpe = models.BPE(
        # Rows that only fill the table up are no tokens: they must never be chosen.
        vocab={
            token: index
            for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind != UNUSED
        },
        merges=merges,
        ignore_merges=ignores_merges,
    )
    tokenizer = Tokenizer(bpe)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, tokens, types)
    _add_begin_token(tokenizer, keys, tokens)
    return TextTokenizer(tokenizer)


def _pre_tokenizer(kind: str) -> tuple[Any, Any, bool]:
    """Normalizer, pre-tokenizer, and whether a whole-word token wins over its merges."""
    gpt2 = pre.ByteLevel(add_prefix_space=False, use_regex=True)
    plain = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    match kind:
        case "smollm":
            return None, pre.Sequence([pre.Digits(individual_digits=True), gpt2]), False
        case "qwen2" | "qwen35":
            pattern = QWEN2_PATTERN if kind == "qwen2" else QWEN35_PATTERN
            split = pre.Split(Regex(pattern), behavior="isolated")
            return normalizers.NFC(), pre.Sequence([split, plain]), False
        case "llama-bpe":
            split = pre.Split(Regex(LLAMA3_PATTERN), behavior="isolated")
            return None, pre.Sequence([split, plain]), True
        case "gpt-2" | "default":
            return None, gpt2, False
    raise LoadFault(
        f"The file's pre-tokenizer {kind!r} is not known; put the model's tokenizer.json beside it."
    )


def _add_tokens(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    added = [
        AddedToken(token, special=kind == CONTROL, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (CONTROL, USER_DEFINED)
    ]
    tokenizer.add_tokens([token for token in added if not token.special])
    tokenizer.add_special_tokens([token for token in added if token.special])


def _add_begin_token(tokenizer: Tokenizer, keys: Mapping[str, Any], tokens: list[str]) -> None:
    begin = keys.get("tokenizer.ggml.bos_token_id")
    # Source: llama.cpp `llama-vocab.cpp`: files of this kind say nothing and mean yes.
    is_default = keys.get("tokenizer.ggml.pre") == "llama-bpe"
    if begin is None or not keys.get("tokenizer.ggml.add_bos_token", is_default):
        return
    if begin >= len(tokens):
        raise LoadFault(f"The file's begin token {begin} is none of its {len(tokens)} tokens.")
    token = tokens[begin]
    tokenizer.post_processor = TemplateProcessing(
        single=[token, "$A"], special_tokens=[(token, begin)]
    )


def _check_byte_level(fields: Mapping[str, Any]) -> None:
    kind = (fields.get("decoder") or {}).get("type")
    if fields["model"].get("type") != "BPE" or kind != "ByteLevel":
        raise LoadFault(
            f"The model's tokenizer ({fields['model'].get('type')}, decoder {kind}) is not "
            "byte-level BPE, which is the only kind supported."
        )


def _token_bytes(tokenizer: Tokenizer, added: list[dict[str, Any]]) -> list[bytes | None]:
    """The bytes of each id; b"" for control tokens, None where no token has the id."""
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    table: list[bytes | None] = [None] * (max(vocab.values()) + 1)
    alphabet = _byte_alphabet()
    for token, index in vocab.items():
        try:
            table[index] = bytes(alphabet[char] for char in token)
        except KeyError:  # not written in the byte alphabet: the characters themselves
            table[index] = token.encode()
    for entry in added:
        table[entry["id"]] = b"" if entry["special"] else entry["content"].encode()
    return table


@lru_cache(maxsize=1)
def _byte_alphabet() -> Mapping[str, int]:
    """The character that stands for each byte in byte-level BPE.

    Source: OpenAI GPT-2, `encoder.py`, bytes_to_unicode.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    shown = {chr(byte): byte for byte in printable}
    return shown | {chr(256 + index): byte for index, byte in enumerate(others)}


def _hash_of(tokenizer: Tokenizer, fields: Mapping[str, Any]) -> str:
    """SHA-256 over ids, tokens, merges, added tokens and what splits and normalises text."""
    identity = {
        "vocab": sorted(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda i: i[1]),
        "merges": fields["model"]["merges"],
        "ignore_merges": fields["model"].get("ignore_merges", False),
        "added": fields["added_tokens"],
        "normalizer": fields["normalizer"],
        "pre_tokenizer": fields["pre_tokenizer"],
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
