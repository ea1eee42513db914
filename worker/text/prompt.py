"""A call to the token ids of its prompt. Knows no queue, no limits of length and no sampling.

A control token spelled in a person's text stays text: only the template writes control tokens.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex

from proto.chat import Call, ImagePart, Json, TextPart
from proto.faults import Refusal
from worker.text.template import ChatTemplate
from worker.text.tokenizer import TextTokenizer

# Private-use characters around the marks that stand for spelled control tokens.
MARK_OPEN, MARK_CLOSE = "\ue000", "\ue001"
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's ids. `is_open`: it leaves the reasoning open, so that the model goes on in it."""

    ids: tuple[int, ...]
    is_open: bool = False


class PromptWriter:
    """Renders and encodes calls. One thread uses it at a time."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        template: ChatTemplate | None,
        nonce: Callable[[], str] = lambda: token_hex(8),
    ) -> None:
        self._tokenizer = tokenizer
        self._nonce = nonce
        self.template = template
        literals = sorted(tokenizer.control_tokens, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, literals))) if literals else None

    def write(self, call: Call, *, is_thinking: bool, is_formed: bool = False) -> Prompt:
        """The canonical encoding of a call. `is_thinking` is what a template that asks is told.

        `is_formed`: the answer must have a form, which begins behind the reasoning; so where the
        model may reason or not, the prompt opens the block.
        Raises: Refusal (`bad_request`) naming the field that cannot be served.
        """
        _refuse_images(call)
        if call.prompt is not None:
            return Prompt(_not_empty(self._tokenizer.encode_prompt(call.prompt), "prompt"))
        template = self.template
        if not call.messages:
            raise Refusal("bad_request", "there is no message", param="messages")
        if template is None:
            raise Refusal("bad_request", "this model has no chat template", param="messages")
        if call.tools and not template.takes_tools:
            sentence = "this model's chat template knows no tools"
            raise Refusal("bad_request", sentence, param="tools")
        marks = _Marks(self._control, self._nonce())
        args = call.template_args or {}
        arguments: Mapping[str, Json] = {
            **args,
            # Off wins: where the plan says no, the answer is not read for reasoning.
            "enable_thinking": is_thinking and args.get("enable_thinking") is not False,
        }
        try:
            text = template.render(call.messages, arguments, marks.apply, call.tools)
        except RecursionError as fault:
            raise Refusal("bad_request", "nested too deeply", param="messages") from fault
        text = SURROGATE.sub("\ufffd", text)  # half an emoji, out of a call's arguments
        form, stripped = template.reasoning, text.rstrip()
        is_open = form.opens != "none" and stripped.endswith(form.open)
        may_open = form.opens != "none" and not stripped.endswith((form.open, form.close))
        if is_thinking and is_formed and may_open:
            text, is_open = text + form.open + "\n", True
        return Prompt(_not_empty(self._encode_marked(text, marks), "messages"), is_open)

    def least_tokens(self, call: Call) -> int:
        """How many tokens a call's own text has at least: cheap, and before anything is encoded."""
        parts = [part for message in call.messages for part in message.content]
        text_bytes = len((call.prompt or "").encode(errors="replace")) + sum(
            len(part.text.encode(errors="replace")) for part in parts if isinstance(part, TextPart)
        )
        return text_bytes // self._tokenizer.longest_token_bytes

    @property
    def token_bytes(self) -> Sequence[bytes | None]:
        """The bytes of each id."""
        return self._tokenizer.token_bytes

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text of ours, in which control tokens count as what they are."""
        return tuple(self._tokenizer.encode(text))

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
    """Stand-ins for control tokens that a caller spelled, unlike anything a caller can write.

    `nonce`: drawn for each call, so that nobody knows it beforehand.
    """

    def __init__(self, control: "re.Pattern[str] | None", nonce: str) -> None:
        self._control = control
        self._found: list[str] = []
        self._prefix = MARK_OPEN + nonce
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


def _not_empty(ids: list[int], param: str) -> tuple[int, ...]:
    if not ids:
        raise Refusal("bad_request", "there is nothing to read", param=param)
    return tuple(ids)


def _refuse_images(call: Call) -> None:
    if any(isinstance(part, ImagePart) for message in call.messages for part in message.content):
        raise Refusal("bad_request", "this model reads no images", param="messages")
