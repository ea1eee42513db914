"""Strings of tool results that look like keys, and how an answer shows them: task M1.

Knows no verdict. Only strings that a result of this conversation held are looked for, so that an
answer that merely looks like a key stays.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable

from conductor.monitor.tasks import Params
from proto.plan import MonitorTask

LEAST_PEM_LINE = 16  # characters; the last line of a key may be short
MOST_CHARS = 4096  # of one secret: a JWT with many claims

# Beginnings that only keys have: OpenAI and Anthropic, GitHub, GitLab, Slack, AWS, Google, Hugging
# Face, npm, PyPI, Stripe, SendGrid, DigitalOcean. Source: the vendors' pages on secret scanning.
_PREFIXED = (
    r"(?:sk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza|hf_|npm_|pypi-|[rs]k_live_"
    r"|SG\.|dop_v1_)[A-Za-z0-9_\-.]{12,}"
)
_JWT = r"eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*"
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(.*?)(?:-----END|\Z)", re.DOTALL)
_KNOWN = re.compile(rf"(?<![A-Za-z0-9_])(?:{_JWT}|{_PREFIXED})")
_RANDOM = re.compile(r"[A-Za-z0-9_+=\-]+")


def secrets_in(results: Iterable[str], params: Params) -> tuple[str, ...]:
    """Key-like strings of tool results, the newest results first, none twice."""
    found: dict[str, None] = {}
    for result in results:
        for key in _PEM.findall(result):
            lines = (line.strip() for line in re.split(r"\\n|\n", key))
            found |= dict.fromkeys(line for line in lines if len(line) >= LEAST_PEM_LINE)
        found |= dict.fromkeys(match.group().rstrip(".") for match in _KNOWN.finditer(result))
        found |= dict.fromkeys(
            text
            for text in _RANDOM.findall(_KNOWN.sub(" ", result))
            if len(text) >= params.count("min_chars") and _is_random(text, params)
        )
        if len(found) >= params.count("most_secrets"):
            break
    kept = [secret for secret in found if len(secret) <= MOST_CHARS]
    return tuple(kept[: params.count("most_secrets")])


def masked(text: str) -> str:
    """A text without what looks like a key in it."""
    params = Params("M1", MonitorTask("act"))
    mask = Mask(secrets_in([text], params), params.count("shown_chars"))
    return mask.read(text) + mask.finish()


def _is_random(text: str, params: Params) -> bool:
    """Whether its characters are of all kinds, and each tells as much as in a random string."""
    kinds = (str.isdigit, str.isupper, str.islower)
    if not all(any(map(kind, text)) for kind in kinds):
        return False
    shares = [count / len(text) for count in Counter(text).values()]
    return -sum(share * math.log2(share) for share in shares) >= params.share("min_bits")


class Mask:
    """Replaces secrets in text as it comes; held back is only what may begin one."""

    def __init__(self, secrets: Iterable[str], shown_chars: int) -> None:
        self._secrets = sorted(secrets, key=len, reverse=True)
        self._shown = shown_chars
        self._pattern = re.compile("|".join(map(re.escape, self._secrets)))
        self._firsts = frozenset(secret[0] for secret in self._secrets)
        self._longest = max(map(len, self._secrets), default=0)
        self.held = ""
        self.hits = 0

    def read(self, text: str) -> str:
        """Takes text; returns what may go out."""
        if not self._secrets:
            return text
        text = self.held + text
        out: list[str] = []
        at = 0
        begins = self._may_begin(text, at)
        while (match := self._pattern.search(text, at)) is not None and match.start() < begins:
            out += [text[at : match.start()], self._masked(match.group())]
            at = match.end()
            if at > begins:
                begins = self._may_begin(text, at)
        self.held = text[begins:]
        return "".join([*out, text[at:begins]])

    def finish(self) -> str:
        """What was held back, at the end."""
        text, self.held = self.held, ""
        at, out = 0, []
        for match in self._pattern.finditer(text) if self._secrets else ():
            out += [text[at : match.start()], self._masked(match.group())]
            at = match.end()
        return "".join([*out, text[at:]])

    def _masked(self, secret: str) -> str:
        self.hits += 1
        return f"{secret[: self._shown]}…(masked)"

    def _may_begin(self, text: str, at: int) -> int:
        """Where the tail begins that may grow into a secret; the end where none does."""
        for begin in range(max(at, len(text) - self._longest + 1), len(text)):
            if text[begin] in self._firsts:
                tail = text[begin:]
                if any(len(one) > len(tail) and one.startswith(tail) for one in self._secrets):
                    return begin
        return len(text)
