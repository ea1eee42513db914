"""How many tokens a text is at most, without a tokenizer. Knows no vocabulary.

An estimate that errs high: what must fit fits. Exact counts are the worker's.
"""

import re

# A byte-level vocabulary has common words whole, single digits and single signs; outside ASCII a
# character is a token or two. Capitals and what is no word (keys, base64) are cut small.
WORD_LETTERS = 12
LETTERS_A_TOKEN, ODD_LETTERS_A_TOKEN = 4, 2
_PIECES = re.compile(
    r"(?P<word>[A-Z]?[a-z]+)|(?P<capitals>[A-Z]+)|(?P<blank>\s+)|(?P<foreign>[^\x00-\x7f]+)|.",
    re.DOTALL,
)


CHARS_A_TOKEN = 3  # of ASCII text, roughly; code has more of them


def estimated_tokens(text: str) -> int:
    """Tokens that a text takes at most, nearly always."""
    return sum(_tokens_of(piece) for piece in _PIECES.finditer(text))


def rough_tokens(text: str) -> int:
    """About how many tokens a text has, rather too many: quick enough for a whole conversation."""
    ascii_count = len(text.encode("ascii", "ignore"))
    return -(-ascii_count // CHARS_A_TOKEN) + len(text) - ascii_count


def _tokens_of(piece: re.Match[str]) -> int:
    found = piece.group()
    match piece.lastgroup:
        case "word" if len(found) <= WORD_LETTERS:
            return -(-len(found) // LETTERS_A_TOKEN)
        case "word" | "capitals":
            return -(-len(found) // ODD_LETTERS_A_TOKEN)
        case "blank":
            return 0 if found == " " else max(1, found.count("\n"))
        case "foreign":
            return len(found.encode("utf-8", "surrogatepass")) - len(found)
        case _:
            return 1
