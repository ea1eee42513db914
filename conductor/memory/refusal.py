"""What is not kept as a memory note, because it would do harm in every later prompt.

Knows no table; what a secret looks like is told by a function.
"""

import re
from collections.abc import Callable, Sequence
from typing import Literal

from conductor.memory.notes import TEXT_CHARS

Refusal = Literal["empty", "long", "markup", "secret", "instruction", "echo"]
IsSecret = Callable[[str], bool]

ECHO_PIECES = 6  # so many words in a row are no coincidence; a shorter note, all of it
LEAST_PIECES = 3  # a name alone stands in many results

# Tags of templates and of ours: in a prompt they would be more than text.
_MARKUP = re.compile(
    r"<\|[^>\n]{0,64}\|?>|</?(?:think|tool_call|tool_response|system|tandem_\w+)\b[^>]*>"
    r"|\[/?INST\]|<(?:start|end)_of_turn>",
    re.IGNORECASE,
)

# Sentences that want something of whoever reads them. A note states what is.
_ORDERS = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\b.{0,40}"
    r"\b(?:previous|prior|above|earlier|all|any|your|these|those|instructions?|rules?|prompts?)\b"
    r"|\byou (?:must|should|shall|will|are|can|may|need to|have to)\b"
    r"|\b(?:assistant|model|agent|ai|llm)s? (?:must|should|shall|has to|have to|is to|are to)\b"
    r"|\b(?:from now on|act as|pretend (?:to|that)|system prompt|developer mode|jailbreak)\b"
    r"|\b(?:do not|don't|never) (?:tell|mention|reveal|inform|ask|warn|show|let) "
    r"|\bwithout (?:asking|confirmation|telling)\b"
    r"|^\W*(?:system|assistant|user|developer|important|instructions?)\s*:"
    r"|^\W*(?:always|never|must|do not|don't|when(?:ever)? (?:asked|you)|if (?:asked|you))\b",
    re.IGNORECASE,
)
# Verbs at the beginning that would have a tool do something.
_DEEDS = re.compile(
    r"^\W*(?:please\s+)?(?:run|execute|eval|send|post|upload|download|fetch|curl|wget|delete|remove"
    r"|drop|email|e-mail|mail|forward|transfer|pay|open|visit|call|install|sudo|rm|export|reply"
    r"|respond|answer|say|print|output|tell)\b"
    r"|\|\s*(?:ba|z)?sh\b",
    re.IGNORECASE,
)

# A value behind its name. Without a digit it is more likely a word: "the token is refreshed".
_NAMED_SECRET = re.compile(
    r"\b(?:password|passphrase|passwd|pin|token|secret|credential|(?:api|access|secret|private)"
    r"[ _-]?key)s?\b\W{0,3}(?:is|are|=|:)\W{0,3}(?=\S*\d)\S{6,}",
    re.IGNORECASE,
)
_PIECE = re.compile(r"[぀-ヿ㐀-鿿가-힯]|\w+")


def refusal_of(text: str, results: Sequence[str], is_secret: IsSecret) -> Refusal | None:
    """Why a text is not kept, None where it is. `results`: of the conversation's tools."""
    if not text.strip():
        return "empty"
    if len(text) > TEXT_CHARS:
        return "long"
    if _MARKUP.search(text) or not text.isprintable():
        return "markup"
    if is_secret(text) or _NAMED_SECRET.search(text):
        return "secret"
    if _ORDERS.search(text) or _DEEDS.search(text):
        return "instruction"
    return "echo" if _repeats(text, results) else None


def _repeats(text: str, results: Sequence[str]) -> bool:
    """Whether a run of the note's words stands in a result, whatever the punctuation."""
    pieces = _PIECE.findall(text.casefold())
    if len(pieces) < LEAST_PIECES:
        return False
    length = min(ECHO_PIECES, len(pieces))
    runs = {_joined(pieces[i : i + length]) for i in range(len(pieces) - length + 1)}
    for result in results:
        whole = _joined(_PIECE.findall(result.casefold()))
        if any(run in whole for run in runs):
            return True
    return False


def _joined(pieces: Sequence[str]) -> str:
    return f" {' '.join(pieces)} "
