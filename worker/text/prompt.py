"""A call to the token ids of its prompt. Knows no queue, no limits of length and no sampling.

A control token spelled in a person's text stays text: only the template writes control tokens.
"""

import hashlib
import re
from collections.abc import Mapping

from proto.chat import Call, ImagePart, Json
from proto.faults import Refusal
from worker.text.template import ChatTemplate
from worker.text.tokenizer import TextTokenizer

# Private-use characters around the marks that stand for spelled control tokens.
MARK_OPEN, MARK_CLOSE = "\ue000", "\ue001"


class PromptWriter:
    """Renders and encodes calls. One thread uses it at a time."""

    def __init__(self, tokenizer: TextTokenizer, template: ChatTemplate | None) -> None:
        self._tokenizer = tokenizer
        self._template = template
        literals = sorted(tokenizer.control_tokens, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, literals))) if literals else None

    def prompt_ids(self, call: Call, *, is_thinking: bool) -> tuple[int, ...]:
        """The canonical encoding of a call. `is_thinking` is what a template that asks is told.

        Raises: Refusal (`bad_request`) naming the field that cannot be served.
        """
        _refuse_unsupported(call)
        if call.prompt is not None:
            return _not_empty(self._tokenizer.encode_prompt(call.prompt), "prompt")
        if not call.messages:
            raise Refusal("bad_request", "there is no message", param="messages")
        if self._template is None:
            raise Refusal("bad_request", "this model has no chat template", param="messages")
        marks = _Marks(self._control, call)
        arguments: Mapping[str, Json] = {
            "enable_thinking": is_thinking,
            **(call.template_args or {}),
        }
        text = self._template.render(call.messages, arguments, marks.apply)
        return _not_empty(self._encode_marked(text, marks), "messages")

    def count_text(self, text: str) -> int:
        """Tokens of a text by itself."""
        return len(self._tokenizer.encode_literal(text))

    def _encode_marked(self, text: str, marks: "_Marks") -> list[int]:
        ids: list[int] = []
        for index, part in enumerate(marks.split(text)):
            if index % 2:
                ids += self._tokenizer.encode_literal(part)
            elif part:
                ids += self._tokenizer.encode(part)
        return ids


def prompt_hash(ids: tuple[int, ...]) -> str:
    """Hex SHA-256 of prompt ids as little-endian 32-bit words."""
    return hashlib.sha256(b"".join(index.to_bytes(4, "little") for index in ids)).hexdigest()


class _Marks:
    """Stand-ins for control tokens that a caller spelled, unlike anything the caller wrote."""

    def __init__(self, control: "re.Pattern[str] | None", call: Call) -> None:
        self._control = control
        self._found: list[str] = []
        self._prefix = MARK_OPEN + str(_unused_number(call))
        pattern = f"{self._prefix}:([0-9]+){MARK_CLOSE}"
        self._pattern = re.compile(pattern)

    def apply(self, text: str) -> str:
        """The text with each spelled control token replaced by a mark."""
        return self._control.sub(self._mark, text) if self._control else text

    def split(self, text: str) -> list[str]:
        """Rendered text at even places, the control tokens that were spelled at odd ones."""
        parts = self._pattern.split(text)
        return [self._found[int(p)] if i % 2 else p for i, p in enumerate(parts)]

    def _mark(self, match: "re.Match[str]") -> str:
        self._found.append(match.group())
        return f"{self._prefix}:{len(self._found) - 1}{MARK_CLOSE}"


def _unused_number(call: Call) -> int:
    # Whatever the caller wrote, some number among the first n + 1 is not in n characters.
    written = repr(call).replace("\\ue000", MARK_OPEN)
    number = 0
    while f"{MARK_OPEN}{number}" in written:
        number += 1
    return number


def _not_empty(ids: list[int], param: str) -> tuple[int, ...]:
    if not ids:
        raise Refusal("bad_request", "there is nothing to read", param=param)
    return tuple(ids)


def _refuse_unsupported(call: Call) -> None:
    if call.tools:
        raise Refusal("bad_request", "tools are not supported by this engine yet", param="tools")
    if call.answer_format.kind != "text":
        raise Refusal(
            "bad_request",
            "a constrained answer is not supported by this engine yet",
            param="response_format",
        )
    if any(isinstance(part, ImagePart) for message in call.messages for part in message.content):
        raise Refusal("bad_request", "this model reads no images", param="messages")
