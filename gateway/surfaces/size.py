"""How large a request can get before anybody has read it, in tokens. Knows no tokenizer, no price.

Looked at only for keys that have a budget: it walks through the whole request.
"""

from typing import Any, NamedTuple

from gateway.surfaces.request import ModelRequest

TOKENS_PER_7_CHARS = 2  # 3.5 characters a token: in English there are about 4
ATTACHMENT_TOKENS = 4_096  # at most, for an image or a recording: they are not charged as text
MOST_ANSWERS = 128  # of one request; no provider makes more
_TEXTS = (
    "messages", "prompt", "suffix", "input", "contents", "system", "instructions",
    "systemInstruction", "system_instruction", "tools", "functions", "response_format", "text",
)  # fmt: skip
_ATTACHED = frozenset({"data", "file_data", "image_url", "url"})  # base64 stands under these


class Size(NamedTuple):
    """`prompt_tokens` as estimated; `answers`: how many are asked for at once."""

    prompt_tokens: int
    answers: int


def size_of(request: ModelRequest) -> Size:
    """The size of a request: its text at 3.5 characters a token, rounded up."""
    fields = request.envelope.fields
    tokens = _tokens([fields[name] for name in _TEXTS if name in fields])
    config = fields.get("generationConfig")
    wished = [fields.get("n"), fields.get("best_of")]
    if isinstance(config, dict):
        wished.append(config.get("candidateCount"))
    answers = max([count for count in wished if type(count) is int and count > 0], default=1)
    return Size(tokens, min(answers, MOST_ANSWERS) * _prompts(fields.get("prompt")))


def _prompts(prompt: Any) -> int:
    """A list of texts, or of lists of token ids, is as many prompts."""
    is_several = isinstance(prompt, list) and bool(prompt) and type(prompt[0]) is not int
    return len(prompt) if is_several else 1


def _tokens(values: list[Any]) -> int:
    chars = tokens = 0
    open_values = [*values]
    while open_values:
        value = open_values.pop()
        if isinstance(value, str):
            chars += len(value)
        elif isinstance(value, dict):
            for name, item in value.items():
                chars += len(name)  # the names in a tool's schema are read by the model
                if name in _ATTACHED and isinstance(item, str):
                    tokens += min(_of_chars(len(item)), ATTACHMENT_TOKENS)
                else:
                    open_values.append(item)
        elif isinstance(value, list):
            open_values += value
        else:
            tokens += 1  # prompts may be token ids
    return tokens + _of_chars(chars)


def _of_chars(count: int) -> int:
    return -(-count * TOKENS_PER_7_CHARS // 7)
