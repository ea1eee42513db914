"""Status lines: what they say, when one is written, and how a history loses them again.

Knows no stream and no clock: whoever writes the answer asks, says what it wrote, and when.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from conductor.cutting import Stretch, cut_out
from conductor.fences import Place
from conductor.profiles import StatusRules
from proto.chat import Message

MARK = "› "
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"  # reasoning inside the content (format `tags`)
MOST_SENT = 2_000  # hashes kept of a session: a year of long days would not fill it

# The whole line, for conversations nobody remembers. One entry for each step, in the words below.
_TEMPLATES = (
    r"waiting, position \d[\d,]*(?:, about \d[\d,]* s)?",
    r"reading \d[\d,]* tokens(?:, about \d[\d,]* s left)?",
    r"taking this as [\w-]{1,64}",
    r"reasoning went in circles, closed it",
    r"repairing a tool call",
    r"answer was empty, asking again",
)
_TEMPLATE = re.compile(f"{MARK}(?:{'|'.join(_TEMPLATES)})")


@dataclass(frozen=True, slots=True)
class Queued:
    """It waits for its turn. `position`: as it is shown. `about_ms`: None where nobody can say."""

    position: int
    about_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """Its prompt is being read: `tokens` of it, `left_ms` more."""

    tokens: int
    left_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Classed:
    """Its kind of task is known."""

    name: str


@dataclass(frozen=True, slots=True)
class LoopClosed:
    """Its reasoning went in circles and was closed."""


@dataclass(frozen=True, slots=True)
class CallRepaired:
    """A tool call is written again."""


@dataclass(frozen=True, slots=True)
class AskedAgain:
    """Its answer was empty, and the model goes on."""


Step = Queued | Reading | Classed | LoopClosed | CallRepaired | AskedAgain


def text_of(step: Step) -> str:
    """The line of a step, without a line break."""
    match step:
        case Queued(position, about_ms):
            return f"{MARK}waiting, position {position:,}{_about(about_ms, '')}"
        case Reading(tokens, left_ms):
            return f"{MARK}reading {tokens:,} tokens{_about(left_ms, ' left')}"
        case Classed(name):
            return f"{MARK}taking this as {name}"
        case LoopClosed():
            return f"{MARK}reasoning went in circles, closed it"
        case CallRepaired():
            return f"{MARK}repairing a tool call"
    return f"{MARK}answer was empty, asking again"


def hash_of(line: str) -> str:
    """What is remembered of a line that was sent: hex SHA-256."""
    return hashlib.sha256(line.encode(errors="surrogatepass")).hexdigest()


def may_show(rules: StatusRules, *, is_streamed: bool, is_side: bool, has_form: bool) -> bool:
    """Whether an answer may have lines at all. `has_form`: it is held to a schema or a grammar."""
    return rules.enabled and is_streamed and not is_side and not has_form


def remembered(before: Iterable[str], sent: Iterable[str]) -> tuple[str, ...]:
    """The hashes to keep of a session: those of before and the new ones, the oldest forgotten."""
    return tuple(dict.fromkeys((*before, *sent)))[-MOST_SENT:]


class StatusLines:
    """The lines of one answer that may have them. `sent`: hashes of what was written.

    It is told what reasoning the client was shown, so that no line is written into a code block
    that is open there, and each stands on a line of its own. Times in ms, of one clock.
    """

    def __init__(self, rules: StatusRules, started_ms: int) -> None:
        self._rules = rules
        self._started_ms = started_ms
        self._written_ms: int | None = None
        self._place = Place()
        self._is_in_call = False
        self._has_text = False
        self._is_behind_reasoning = False
        self.sent: list[str] = []

    def line(self, step: Step, now_ms: int) -> str | None:
        """What to write now in the profile's channel, None for nothing.

        It ends with a line break. Behind reasoning it begins with one, always: so that whoever
        takes it out knows whose break that is.
        """
        if not self._may_write(step, now_ms):
            return None
        gap = "\n" if self._is_behind_reasoning else ""
        if self._place.after(gap).is_fenced:
            return None
        line = text_of(step)
        self._written_ms = now_ms
        self._place = self._place.after(f"{gap}{line}\n")
        self._is_behind_reasoning = False
        self.sent.append(hash_of(line))
        return f"{gap}{line}\n"

    def showed_reasoning(self, text: str) -> None:
        """The client was shown this reasoning."""
        if self._rules.channel == "reasoning" and text:
            self._is_behind_reasoning = True
            self._place = self._place.after(text)

    def showed_text(self) -> None:
        """Visible text of the answer has begun: there are no more lines."""
        self._has_text = True

    def call_began(self) -> None:
        """A tool call is being streamed."""
        self._is_in_call = True

    def call_ended(self) -> None:
        """It is complete."""
        self._is_in_call = False

    def _may_write(self, step: Step, now_ms: int) -> bool:
        rules = self._rules
        if self._has_text or self._is_in_call or _NAMES[type(step)] not in rules.steps:
            return False
        if len(self.sent) >= rules.max_per_turn:
            return False
        if self._written_ms is not None and now_ms - self._written_ms < rules.min_interval_s * 1000:
            return False
        return not isinstance(step, Queued | Reading) or self._is_long(step, now_ms)

    def _is_long(self, step: Queued | Reading, now_ms: int) -> bool:
        """Whether the wait is over the least so far, or will be."""
        ahead_ms = step.about_ms if isinstance(step, Queued) else step.left_ms
        return now_ms - self._started_ms + (ahead_ms or 0) > self._rules.min_wait_s * 1000


_NAMES: dict[type[Step], str] = {
    Queued: "queued", Reading: "reading", Classed: "class",
    LoopClosed: "loop", CallRepaired: "repair", AskedAgain: "continue",
}  # fmt: skip


def _about(ms: int | None, behind: str) -> str:
    return "" if ms is None else f", about {round(ms / 1000):,} s{behind}"


# -- out of a history -----------------------------------------------------------------------------


def without_lines(
    messages: Sequence[Message], sent_hashes: Collection[str] | None
) -> tuple[Message, ...]:
    """The history without our lines. `sent_hashes`: of the session; None where it is not known.

    Only assistants' messages are touched: their content as far as it begins with our lines, and
    whole lines of their reasoning, in a field of its own or in tags at the content's beginning.
    """
    return tuple(_cleaned(message, _judge(sent_hashes)) for message in messages)


IsOurs = Callable[[str], bool]


def _judge(sent_hashes: Collection[str] | None) -> IsOurs:
    if sent_hashes is None:
        return lambda line: _TEMPLATE.fullmatch(line) is not None
    return lambda line: line.startswith(MARK) and hash_of(line) in sent_hashes


def _cleaned(message: Message, is_ours: IsOurs) -> Message:
    if message.role != "assistant" or MARK not in message.text + (message.reasoning or ""):
        return message
    reasoning = message.reasoning
    if reasoning is not None:
        reasoning = _apply(reasoning, _anywhere(reasoning, is_ours)) or None
    content = cut_out(message.content, _in_content(message.text, is_ours))
    return replace(message, content=content, reasoning=reasoning)


def _in_content(text: str, is_ours: IsOurs) -> list[Stretch]:
    found, position = _at_start(text, 0, is_ours)
    blank = len(text[position:]) - len(text[position:].lstrip())
    opened = position + blank + len(THINK_OPEN)
    if text.startswith(THINK_OPEN, position + blank):
        end = text.find(THINK_CLOSE, opened)
        end = len(text) if end < 0 else end
        begin = opened + text.startswith("\n", opened)
        found += [(begin + a, begin + b) for a, b in _anywhere(text[begin:end], is_ours)]
        behind = end + len(THINK_CLOSE)
        behind += len(text[behind:]) - len(text[behind:].lstrip("\n"))
        found += _at_start(text, behind, is_ours)[0]
    return found


def _at_start(text: str, position: int, is_ours: IsOurs) -> tuple[list[Stretch], int]:
    """Our lines from `position` on, and where they end."""
    begin = position
    while position < len(text):
        line, behind = _line_at(text, position)
        if not is_ours(line):
            break
        position = behind
    return ([(begin, position)] if position > begin else []), position


def _anywhere(text: str, is_ours: IsOurs) -> list[Stretch]:
    """Our lines outside code blocks, with the line break that was written before them."""
    found: list[Stretch] = []
    place, position, free = Place(), 0, 0  # before `free` every character is ours already
    while position < len(text):
        line, behind = _line_at(text, position)
        if not place.is_fenced and is_ours(line):
            found.append((position - (position > free), behind))
            free = behind
        place = place.after(text[position:behind])
        position = behind
    return found


def _line_at(text: str, position: int) -> tuple[str, int]:
    """The line from here on without its break, and where the next one begins."""
    end = text.find("\n", position)
    return (text[position:], len(text)) if end < 0 else (text[position:end], end + 1)


def _apply(text: str, stretches: list[Stretch]) -> str:
    for begin, end in reversed(stretches):
        text = text[:begin] + text[end:]
    return text
