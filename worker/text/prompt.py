"""A call to the token ids of its prompt. Knows no queue, no limits of length and no sampling.

A control token spelled in a person's text stays text: only the template writes control tokens.
"""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from secrets import token_hex
from typing import Literal

from proto.chat import Call, ImagePart, Json, Message, Role, TextPart
from proto.faults import Refusal
from proto.plan import Segment
from worker.limits import SYSTEM_TEXTS
from worker.prefixes import shared_length
from worker.text.segments import MARK_CLOSE, MARK_OPEN, NO_NOTES, Inserted, Notes, Render, Signs
from worker.text.template import ChatTemplate
from worker.text.tokenizer import TextTokenizer

SURROGATE = re.compile("[\ud800-\udfff]")

LEAST_CUT = 64  # tokens; a shorter system turn is read again sooner than a chunk of its own
_PROBED = ("probed-first", "probed-next", "probed-last")  # words no template has
PROBES = ("a", "7")  # two messages that nobody wrote: what differs between them is not settled yet
TAIL_CHARS = 4096  # of a text, in which its last control token is looked for


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's ids. `is_open`: it leaves the reasoning open, so that the model goes on in it.

    `cuts`: positions where a chunk must start: where the conversation's own text begins.
    `notes`: what of it the client did not write.
    """

    ids: tuple[int, ...]
    is_open: bool = False
    cuts: tuple[int, ...] = ()
    notes: Notes = NO_NOTES


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
        self._control = _Control(tokenizer.control_tokens)
        self._systems: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()  # the latest one last
        self._keeping_roles: dict[Role, bool] = {}

    def write(
        self, call: Call, *, is_thinking: bool, is_formed: bool = False,
        segments: Sequence[Segment] = (),
    ) -> Prompt:  # fmt: skip
        """The canonical encoding of a call. `is_thinking` is what a template that asks is told.

        `segments` stand in it as ids of their own, never joined with what is beside them.
        `is_formed`: the answer must have a form, which begins behind the reasoning; so where the
        model may reason or not, the prompt opens the block.
        Raises: Refusal (`bad_request`) naming the field that cannot be served.
        """
        _refuse_images(call)
        if call.prompt is not None:
            ids = _not_empty(self._tokenizer.encode_prompt(call.prompt), "prompt")
            return Prompt(ids, notes=Notes(lost=tuple(segment.key for segment in segments)))
        rendering = self._rendering(call, is_thinking=is_thinking, segments=segments)
        text, lost = self._placed(rendering, call.messages, rendering.text)
        form, stripped = rendering.template.reasoning, text.rstrip()
        is_open = form.opens != "none" and stripped.endswith(form.open)
        may_open = form.opens != "none" and not stripped.endswith((form.open, form.close))
        if is_thinking and is_formed and may_open:
            text, is_open = text + form.open + "\n", True
        spans: list[tuple[int, int]] = []
        ids = _not_empty(self._encode_marked(text, rendering.marks, spans), "messages")
        notes = rendering.marks.notes(tuple(spans), lost)
        return Prompt(ids, is_open, self._cuts(rendering, ids), notes)

    def write_next(
        self, call: Call, reply: Message, *, is_thinking: bool, segments: Sequence[Segment] = ()
    ) -> Prompt | None:
        """What the prompts of all next turns begin with, when `reply` has answered the call.

        Rendered as the client will send it: with the result of the first call behind a reply that
        has calls, else with a message of the user. None where there is no telling. `segments`:
        those of the call, and what stands in the reply.
        """
        try:
            _refuse_images(call)
            rendering = self._rendering(call, is_thinking=is_thinking, segments=segments)
            text, _ = self._placed(
                rendering,
                (*call.messages, reply),
                lambda messages: rendering.settled(messages, _next_of(reply)),
            )
        except Refusal:
            return None
        ids = self._firm_ids(text, rendering.marks)
        return Prompt(ids, cuts=self._cuts(rendering, ids)) if ids else None

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

    def _rendering(
        self, call: Call, *, is_thinking: bool, segments: Sequence[Segment] = ()
    ) -> "_Rendering":
        template = self.template
        if not call.messages:
            raise Refusal("bad_request", "there is no message", param="messages")
        if template is None:
            raise Refusal("bad_request", "this model has no chat template", param="messages")
        if call.tools and not template.takes_tools:
            sentence = "this model's chat template knows no tools"
            raise Refusal("bad_request", sentence, param="tools")
        inserted = [self._inserted(segment) for segment in segments]
        marks = _Marks(self._control, self._nonce(), inserted)
        return _Rendering(template, call, marks, is_thinking)

    def _inserted(self, segment: Segment) -> Inserted:
        ids, spelled = segment.ids, self._tokenizer.token_bytes
        is_ours = ids is not None and segment.tokenizer_hash == self._tokenizer.hash
        if is_ours and all(0 <= i < len(spelled) and spelled[i] is not None for i in ids or ()):
            return Inserted(segment, ids or (), is_new=False)
        text = SURROGATE.sub("\ufffd", segment.text)
        return Inserted(segment, tuple(self._tokenizer.encode_literal(text)), is_new=True)

    def _placed(
        self, rendering: "_Rendering", messages: tuple[Message, ...], render: Render
    ) -> tuple[str, tuple[int, ...]]:
        def keeps_order(role: Role) -> bool:
            if role not in self._keeping_roles:
                self._keeping_roles[role] = rendering.keeps_order(role)
            return self._keeping_roles[role]

        return rendering.marks.signs.place(messages, render, keeps_order)

    def _cuts(self, rendering: "_Rendering", ids: tuple[int, ...]) -> tuple[int, ...]:
        """Where the conversation's own text begins, behind the system turn and the tools.

        One function for requests and for what is read ahead: their chunks must start alike.
        """
        call = rendering.call
        lead = tuple(takewhile(lambda m: m.role in ("system", "developer"), call.messages))
        if not lead and not call.tools:
            return ()
        try:
            # With a user's message behind it: some templates refuse a system turn that is alone.
            text = rendering.settled(lead, lambda said: _saying("user", said))
        except Refusal:
            return ()
        cut = shared_length(ids, self._system_ids(text, rendering.marks))
        return (cut,) if LEAST_CUT <= cut < len(ids) else ()

    def _system_ids(self, text: str, marks: "_Marks") -> tuple[int, ...]:
        """The same system turn comes with every turn of its conversations: encoded once."""
        key = hashlib.sha256(text.encode()).digest()
        ids = self._systems.pop(key, None)
        if ids is None:
            ids = self._firm_ids(text, marks)
        self._systems[key] = ids
        while len(self._systems) > SYSTEM_TEXTS:
            self._systems.popitem(last=False)
        return ids

    def _firm_ids(self, text: str, marks: "_Marks") -> tuple[int, ...]:
        """The ids of a text, as far as they stay the same whatever text follows it."""
        start = marks.last_end(text)  # nothing is joined across it
        firm = start + _firm_length(text[start:])
        ids = self._encode_marked(text[:firm], marks)
        last = self._encode_marked(text[start:firm], marks)
        # Signs before the last word may be joined with the lines behind them.
        joined = len(last) - shared_length(last, self._encode_marked(text[start:], marks))
        return tuple(ids[: len(ids) - joined])

    def _encode_marked(
        self, text: str, marks: "_Marks", spans: list[tuple[int, int]] | None = None
    ) -> list[int]:
        """The ids of a rendered text. `spans` is told where segments stand in them."""
        ids: list[int] = []
        for kind, part in marks.split(text):
            match kind:
                case "text":
                    ids += self._tokenizer.encode(part)
                case "spelled":
                    ids += self._tokenizer.encode_literal(part)
                case "segment":
                    start = len(ids)
                    ids += marks.inserted[int(part)].ids
                    if spans is not None:
                        spans.append((start, len(ids)))
        return ids


def prompt_hash(ids: tuple[int, ...]) -> str:
    """Hex SHA-256 of prompt ids as little-endian 32-bit words."""
    return hashlib.sha256(b"".join(index.to_bytes(4, "little") for index in ids)).hexdigest()


def _firm_length(text: str) -> int:
    """How much of a text, in characters, is joined with nothing that may follow it.

    Tokenizers join blanks with blanks, signs with lines, and the parts of a word with each other;
    only letters and digits with a blank behind them are over.
    """
    firm = text.rstrip()
    if firm != text and firm[-1:].isalnum():
        return len(firm)
    before, *word = firm.rsplit(maxsplit=1) or [""]
    return len(before) if word else 0


class _Rendering:
    """Renders conversations that share a call's tools, arguments and marks."""

    def __init__(
        self, template: ChatTemplate, call: Call, marks: "_Marks", is_thinking: bool
    ) -> None:
        self.template = template
        self.call = call
        self.marks = marks
        args = call.template_args or {}
        self._arguments: Mapping[str, Json] = {
            **args,
            # Off wins: where the plan says no, the answer is not read for reasoning.
            "enable_thinking": is_thinking and args.get("enable_thinking") is not False,
        }

    def settled(self, messages: tuple[Message, ...], probe: Callable[[str], Message]) -> str:
        """The text that does not depend on what a further message, made by `probe`, says.

        Raises: Refusal.
        """
        one, other = (self.text((*messages, probe(said))) for said in PROBES)
        length = shared_length(one, other)
        # A template that does not show the message proves nothing.
        return one[:length] if length < len(one) else ""

    def keeps_order(self, role: Role) -> bool:
        """Whether the template leaves a message of this role behind those before it.

        Some put a system message first, wherever it came.
        """
        said = [_saying("user", _PROBED[0]), _saying("assistant", _PROBED[1])]
        if role == "assistant":
            said.pop()
        try:
            text = self.text((*said, _saying(role, _PROBED[2], "c")))
        except Refusal:
            return True  # what was asked for is another conversation, which may well be rendered
        shown = [at for at in map(text.find, _PROBED) if at >= 0]
        return shown == sorted(shown)

    def text(self, messages: tuple[Message, ...]) -> str:
        """The conversation up to where the assistant goes on. Raises: Refusal."""
        apply, tools = self.marks.apply, self.call.tools
        try:
            text = self.template.render(messages, self._arguments, apply, tools)
        except RecursionError as fault:
            raise Refusal("bad_request", "nested too deeply", param="messages") from fault
        return SURROGATE.sub("\ufffd", text)  # half an emoji, out of a call's arguments


class _Control:
    """The control tokens of a vocabulary, as they are spelled."""

    def __init__(self, spellings: Iterable[str]) -> None:
        self.literals = sorted(spellings, key=len, reverse=True)
        self.numbers = {literal: number for number, literal in enumerate(self.literals)}
        self.pattern = re.compile("|".join(map(re.escape, self.literals)) or r"(?!)")

    def last_end(self, text: str) -> int:
        """Where the text behind its last control token begins; 0 where none is near its end."""
        found = self.pattern.finditer(text, max(0, len(text) - TAIL_CHARS))
        return max((match.end() for match in found), default=0)


class _Marks:
    """Stand-ins for control tokens that a caller spelled, unlike anything a caller can write.

    `nonce`: drawn for each call, so that nobody knows it beforehand. A token has the same mark
    wherever it stands, so that texts which begin alike are marked alike. `inserted`: what stands
    where the signs of segments do.
    """

    def __init__(self, control: _Control, nonce: str, inserted: Sequence[Inserted]) -> None:
        self.inserted = inserted
        self._control = control
        self._prefix = MARK_OPEN + nonce
        self.signs = Signs(self._prefix, [one.segment for one in inserted])
        self._pattern = re.compile(f"{self._prefix}([:=])([0-9]+){MARK_CLOSE}")

    def apply(self, text: str) -> str:
        """The text with each spelled control token replaced by a mark."""
        return self._control.pattern.sub(self._mark, text)

    def split(self, text: str) -> Iterator[tuple[Literal["text", "spelled", "segment"], str]]:
        """A rendered text in parts: as it is, spelled control tokens, numbers of segments."""
        start = 0
        for match in self._pattern.finditer(text):
            if match.start() > start:
                yield "text", text[start : match.start()]
            kind, number = match.groups()
            if kind == ":":
                yield "spelled", self._control.literals[int(number)]
            else:
                yield "segment", number
            start = match.end()
        if start < len(text):
            yield "text", text[start:]

    def last_end(self, text: str) -> int:
        """Where the text behind its last control token or segment begins; 0 where none is near."""
        signs = self.signs.last_end(text, max(0, len(text) - TAIL_CHARS))
        return max(self._control.last_end(text), signs)

    def notes(self, spans: tuple[tuple[int, int], ...], lost: Sequence[int]) -> Notes:
        """What was inserted, but for those that are lost."""
        new_ids = {
            one.segment.key: one.ids
            for number, one in enumerate(self.inserted)
            if one.is_new and number not in lost
        }
        return Notes(spans, new_ids, tuple(self.inserted[n].segment.key for n in lost))

    def _mark(self, match: "re.Match[str]") -> str:
        return f"{self._prefix}:{self._control.numbers[match.group()]}{MARK_CLOSE}"


def _next_of(reply: Message) -> Callable[[str], Message]:
    """What a client sends behind a reply: the result of its first call, or the user's words."""
    if not reply.calls:
        return lambda text: _saying("user", text)
    first = reply.calls[0].id
    return lambda text: _saying("tool", text, first)


def _saying(role: Role, text: str, call_id: str | None = None) -> Message:
    return Message(role, (TextPart(text),), call_id=call_id)


def _not_empty(ids: list[int], param: str) -> tuple[int, ...]:
    if not ids:
        raise Refusal("bad_request", "there is nothing to read", param=param)
    return tuple(ids)


def _refuse_images(call: Call) -> None:
    if any(isinstance(part, ImagePart) for message in call.messages for part in message.content):
        raise Refusal("bad_request", "this model reads no images", param="messages")
