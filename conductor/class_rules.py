"""Kinds of task that need no model: what a header says, and what a message plainly is.

Knows no session. A rule that does not hold for sure says nothing, and the model is asked.
"""

import re
from collections.abc import Collection, Mapping

from conductor.profiles import TaskClass
from conductor.turn import Turn
from conductor.types import Classified

TASK_TYPE = "x-tandem-task-type"
# Classes that a task type leaves; what it does not name leaves all.
TYPES = {"chat": ("chat",), "code": ("edit", "build", "debug", "review")}

GO_ON_CHARS = 12  # of a message that may only say how to go on
# Casefolded, signs as spaces. A longer list would cost nothing but doubt.
GO_ON = frozenset({
    "continue", "go on", "go ahead", "go", "proceed", "next", "more", "keep going", "carry on",
    "yes", "y", "yep", "yeah", "yes please", "sure", "ok", "okay", "fine", "do it", "please do",
    "no", "n", "nope", "thanks", "thank you", "great",
    "weiter", "mach weiter", "ja", "ja bitte", "nein", "gut", "danke", "bitte",
    "oui", "non", "vas y", "continuez", "merci", "sí", "si", "sigue", "continúa", "gracias",
    "sim", "não", "continua", "да", "нет", "дальше", "продолжай", "хорошо", "спасибо",
    "是", "是的", "好", "好的", "继续", "可以", "谢谢", "はい", "続けて", "いいえ", "네", "계속",
})  # fmt: skip
GREETINGS = frozenset({
    "hi", "hi there", "hello", "hello there", "hey", "hey there", "howdy", "yo", "greetings",
    "good morning", "good afternoon", "good evening", "good day",
    "hallo", "guten morgen", "guten tag", "guten abend", "servus", "moin",
    "bonjour", "bonsoir", "salut", "hola", "buenos días", "buenas tardes", "ciao", "buongiorno",
    "olá", "oi", "bom dia", "привет", "здравствуйте", "добрый день", "merhaba", "namaste",
    "你好", "您好", "こんにちは", "おはよう", "안녕하세요", "안녕",
})  # fmt: skip
GREETING_CHARS = 40  # a longer text is read by nobody as a greeting alone

# What only a run-time prints, by language. Each begins where a line begins; two stars in one are
# bounded, since a line may be a megabyte long.
_TRACE = re.compile(
    r"^[ \t]*(?:"
    r"Traceback \(most recent call last\)"  # Python
    r"|at [^\n(]*\([^\n]*:(?:line )?\d"  # Java, JavaScript
    r"|at [^\n]{1,300} in [^\n]{1,300}:line \d"  # .NET
    r"|panic: |goroutine \d+ \["  # Go
    r"|thread '[^'\n]*' (?:\(\d+\) )?panicked at"  # Rust
    r"|#\d+ +0x[0-9a-fA-F]+ in "  # gdb, sanitizers
    r"|from [^\s:]+:\d+:in "  # Ruby
    r"|#\d+ [^\s(]+\(\d+\): "  # PHP
    r")",
    re.MULTILINE,
)
_DIFF = re.compile(r"^(?:diff --git |@@ -\d+(?:,\d+)? \+\d+|--- [^\n]+\n\+\+\+ )", re.MULTILINE)
DIFF_FENCE = "```diff"
_DIFF_LINE = re.compile(r"^(?:[-+@ \t]|diff |index )")


def choices_of(headers: Mapping[str, str], classes: Mapping[str, TaskClass]) -> tuple[str, ...]:
    """Names of the classes that a request may get. `headers`: by lower-case name."""
    left = TYPES.get(headers.get(TASK_TYPE, "").strip().lower(), ())
    return tuple(name for name in classes if name in left) or tuple(classes)


def ruled(turn: Turn, choices: Collection[str], previous: str | None) -> Classified | None:
    """The class of a user's turn that a rule knows, one of `choices`; None where none does.

    `previous`: of the turn before it in the session.
    """
    if previous is not None and previous in choices and _goes_on(turn):
        return Classified(previous, "kept")
    name = _plain_kind(turn)
    return Classified(name, "rules") if name in choices else None


def _goes_on(turn: Turn) -> bool:
    if turn.is_command:
        return True
    if not turn.text or len(turn.text) > GO_ON_CHARS:
        return False
    words = _words(turn.text)
    return not words or words.isdigit() or words in GO_ON  # an emoji, the number of an option


def _plain_kind(turn: Turn) -> str:
    """What a message plainly is, empty where that is not plain."""
    if not turn.text:
        return "other" if turn.has_files else ""
    if len(turn.text) <= GREETING_CHARS and _words(turn.text) in GREETINGS:
        return "chat"
    outside, fenced = _fences(turn.text)
    if _TRACE.search(fenced):
        return "debug"
    return "review" if _asks_about_diff(turn.text, outside) else ""


def _words(text: str) -> str:
    return re.sub(r"[\W_]+", " ", text.casefold()).strip()


def _fences(text: str) -> tuple[str, str]:
    """What stands outside of code fences, and what inside."""
    pieces = text.split("```")
    return "\n".join(pieces[::2]), "\n".join(pieces[1::2])


def _asks_about_diff(text: str, outside: str) -> bool:
    if not _DIFF.search(text) and DIFF_FENCE not in text:
        return False
    prose = (line for line in outside.split("\n") if not _DIFF_LINE.match(line))
    return any("?" in line or "？" in line for line in prose)
