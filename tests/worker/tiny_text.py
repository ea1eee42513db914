"""Small vocabularies and tokenizers for tests, and random text in many scripts."""

import json
import random
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from worker.text.tokenizer import TextTokenizer, tokenizer_from_gguf

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
USER_DEFINED = ("<think>", "</think>")
CORPUS = (
    "The quick brown fox jumps over the lazy dog. It's 12 o'clock, they've said 3,456 times!",
    "def main(argv):\n    return [x ** 2 for x in range(10)]\n\n\n",
    "Größe, naïve café, Ελληνικά, Привет мир, こんにちは世界, 你好，世界, مرحبا بالعالم, नमस्ते",
    "system user assistant You are a helpful AI assistant. What is the capital of France? Paris.",
)
ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "ABCXYZ",
    "0123456789",
    " \t\n\r",
    ".,;:!?'\"()[]{}<>|_-+*/=\\@#$%^&~`",
    "äöüßéèñçøåŁž",
    "αβγδεζηθ",
    "абвгдежзий",
    "日本語中文字符",
    "한국어",
    "אבגדה",
    "مرحبا",
    "नमस्ते",
    "กำลังที่ไม้",
    "َُِّْ\ufe0f\u20dd",  # marks alone
    "😀👩‍👩‍👧🇩🇪",
    "e\u0301a\u0308\u200d\ufeff\u00a0\u2003",
)


def random_texts(count: int, seed: int = 0) -> list[str]:
    """Strings that change script every few characters."""
    source = random.Random(seed)
    texts = []
    for _ in range(count):
        runs = []
        for _ in range(source.randint(1, 12)):
            alphabet = source.choice(ALPHABETS)
            runs.append("".join(source.choice(alphabet) for _ in range(source.randint(1, 6))))
        texts.append("".join(runs))
    return texts


def gguf_keys(kind: str = "smollm", vocab_size: int = 512, **changes: Any) -> dict[str, Any]:
    """GGUF metadata of a small byte-level BPE, trained on a few lines of many scripts."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(USER_DEFINED),
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS * 3, trainer)
    vocab = bpe.get_vocab()
    tokens = [*sorted(vocab, key=vocab.__getitem__), *USER_DEFINED]
    merges = json.loads(bpe.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": kind,
        "tokenizer.ggml.tokens": tokens,
        # The last tokens are reached by no merge, as some are in real vocabularies.
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges[:-40]],
        "tokenizer.ggml.token_type": [
            3 if token in CONTROL else 4 if token in USER_DEFINED else 1 for token in tokens
        ],
        **changes,
    }


def tiny_tokenizer(kind: str = "smollm") -> TextTokenizer:
    """A tokenizer of 512 tokens with three control tokens and two user-defined ones."""
    return tokenizer_from_gguf(gguf_keys(kind))
