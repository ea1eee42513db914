"""A backend as the gateway uses it: where it listens, what we show it, how it has been doing.

Knows no surface's fields and sends nothing itself.
"""

import re
import ssl
from collections import deque
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote_plus, urlsplit

from gateway.exchange import Headers
from gateway.settings.types import BackendSettings

HEALTH_WINDOW = 20  # outcomes that decide the state
DOWN_AFTER_CONNECTS = 5  # failed connects in a row
DEGRADED_SHARE = 0.2
_VERSION = re.compile(r"/v\d+(?:alpha|beta)?\d*(?=/|$)")
# Servers that run a model by themselves: they have a tokenizer and go on from an answer's prefix.
SELF_SERVED = frozenset({"vllm", "sglang", "llamacpp"})
QUOTE_BYTES = 8  # alike in an answer and its request: words of the request are quoted
_KEY_LIKE = re.compile(r"(?i)\b(?:sk|pk|key|bearer|basic)[-_ ][^\s\"',;]{8,}")
_CREDENTIAL_QUERY = frozenset({"key", "api_key", "access_token"})

State = Literal["up", "degraded", "down"]


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """Where a backend listens. `authority` is the Host header's value. Equal only to itself."""

    host: str
    port: int
    authority: bytes
    tls: ssl.SSLContext | None

    @classmethod
    def of(cls, base_url: str, *, tls_verify: bool = True) -> "Origin":
        """The origin of an http or https address."""
        parts = urlsplit(base_url)
        assert parts.hostname is not None
        context = None
        if parts.scheme == "https":
            context = ssl.create_default_context()
            if not tls_verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
        port = parts.port or (443 if context else 80)
        return cls(parts.hostname, port, parts.netloc.encode("idna"), context)


class Backend:
    """One configured backend, alive as long as its configuration.

    `own_headers`: our credential and the operator's extra headers; `head_lines`: these and what
    every request to it begins with, as they are sent. `asks_for_usage`: until it refuses to be
    asked. `counts_tokens`: it has a tokenizer that we may use. `can_go_on`: from text that begins
    its answer, `has_new_choice`: it knows today's name for a choice; both until it shows otherwise.
    """

    def __init__(self, name: str, settings: BackendSettings) -> None:
        self.name = name
        self.settings = settings
        self.origin = Origin.of(settings.base_url, tls_verify=settings.tls_verify)
        self.in_flight = 0
        self.health = Health()
        # The label of the key it is shown, for the ledger.
        self.key_label = settings.keys[0].label if settings.keys else None
        self.asks_for_usage = settings.stream_usage == "inject"
        self.counts_tokens = settings.tokenize and settings.flavor in SELF_SERVED
        self.can_go_on = settings.flavor in SELF_SERVED
        self.has_new_choice = True
        self.own_headers = _own_headers(settings)
        self.own_names = frozenset(name for name, _ in self.own_headers)
        self.head_lines = _head_lines(self.origin, self.own_headers)
        self._base_path = urlsplit(settings.base_url).path.rstrip("/")
        is_openai = settings.kind == "openai"
        self._replaces_version = bool(
            self._base_path if is_openai else _VERSION.search(self._base_path)
        )

    def is_managed_on(self, surface: str | None) -> bool:
        """Whether the conductor stands before it on a surface."""
        return self.settings.conductor and surface == "chat"

    def masked(self, words: bytes, sent: bytes) -> str:
        """A backend's own words, without anything that could be a key and without what was `sent`:
        a prompt does not get into a log because a backend quotes it.
        """
        hidden = [False] * len(words)
        for at in range(len(words) - QUOTE_BYTES + 1):
            if words[at : at + QUOTE_BYTES] in sent:
                hidden[at : at + QUOTE_BYTES] = [True] * QUOTE_BYTES
        text = bytes(
            ord("*") if is_hidden else byte for byte, is_hidden in zip(words, hidden, strict=True)
        ).decode(errors="replace")
        for key in self.settings.keys:
            text = text.replace(key.secret.value, "***")
        return _KEY_LIKE.sub("***", text)

    def url_path(self, path: str, query: bytes = b"") -> str:
        """The path and query at the backend for one of ours.

        An `openai` address with a path of its own (`…/v1`, `…/api/paas/v4`) stands for our `/v1`;
        the other two kinds name the version in the path, as their SDKs do. Query credentials of
        the client are left out.
        """
        if self._replaces_version:
            path = path[3:] if path.startswith("/v1/") else _VERSION.sub("", path, count=1)
        if not query:
            return self._base_path + path
        kept = "&".join(
            piece
            for piece in query.decode("latin-1").split("&")
            if unquote_plus(piece.partition("=")[0]) not in _CREDENTIAL_QUERY
        )
        return f"{self._base_path}{path}?{kept}" if kept else f"{self._base_path}{path}"

    def root_path(self, path: str) -> str:
        """The path of an endpoint that stands beside the versioned ones (`/tokenize`)."""
        base, slash, last = self._base_path.rpartition("/")
        return (base if _VERSION.fullmatch(slash + last) else self._base_path) + path


class Health:
    """What the last outcomes say. Shown, and used to order targets; never a ban."""

    def __init__(self) -> None:
        self._failed: deque[bool] = deque(maxlen=HEALTH_WINDOW)
        self._failed_connects = 0
        self._failed_checks = 0

    @property
    def state(self) -> State:
        """Source: the last 20 outcomes and the list-models check."""
        if self._failed_connects >= DOWN_AFTER_CONNECTS or self._failed_checks >= 2:
            return "down"
        if self._failed and sum(self._failed) / HEALTH_WINDOW >= DEGRADED_SHARE:
            return "degraded"
        return "up"

    def note_answer(self, status: int) -> None:
        """An answer came; 5xx, 429 and refused credentials count as failures."""
        self._failed_connects = 0
        self._failed.append(status >= 500 or status in (401, 402, 403, 407, 429))

    def note_fault(self, *, is_connect: bool) -> None:
        """No answer came, or it broke off."""
        self._failed_connects = self._failed_connects + 1 if is_connect else 0
        self._failed.append(True)

    def note_check(self, *, is_ok: bool) -> None:
        """The list of models could or could not be read."""
        self._failed_checks = 0 if is_ok else self._failed_checks + 1
        if is_ok:
            self._failed_connects = 0


def _head_lines(origin: Origin, own: Headers) -> bytes:
    names = {name for name, _ in own}
    common = [(b"host", origin.authority), (b"accept-encoding", b"identity")]
    lines = [*(line for line in common if line[0] not in names), *own]
    return b"".join(b"%b: %b\r\n" % line for line in lines)


def _own_headers(settings: BackendSettings) -> Headers:
    headers: Headers = [
        (name.lower().encode(), value.encode()) for name, value in settings.headers.items()
    ]
    if settings.keys:
        key = settings.keys[0].secret.value.encode()
        headers.append(
            {
                "openai": (b"authorization", b"Bearer " + key),
                "anthropic": (b"x-api-key", key),
                "gemini": (b"x-goog-api-key", key),
            }[settings.kind]
        )
    return headers
