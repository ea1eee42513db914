"""The gateway that the cases are made for: its names, its keys, and where each call goes.

Knows settings and paths; reads no request and no answer.
"""

from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import quote

from gateway.settings.types import (
    BackendKey,
    BackendSettings,
    ClientKey,
    RouteSettings,
    RouteTarget,
    Secret,
)
from tests.gateway.varied.headers import CLIENT_KEY

MODELS = ("m", "org/m-7b:free", "модель", 'qu"o%te', "tést \U0001f600")
GEMINI_MODELS = ("gem-1.5-pro", "tuned/é")
SURFACES = (
    "chat", "completions", "responses", "embeddings", "messages", "count_tokens", "gemini",
    "gemini_count",
)  # fmt: skip
PATHS = {
    "chat": b"/v1/chat/completions",
    "completions": b"/v1/completions",
    "responses": b"/v1/responses",
    "embeddings": b"/v1/embeddings",
    "messages": b"/v1/messages",
    "count_tokens": b"/v1/messages/count_tokens",
}
OWN_CREDENTIALS = {
    "open": (b"authorization", b"Bearer open-key"),
    "anth": (b"x-api-key", b"anth-key"),
    "gem": (b"x-goog-api-key", b"gem-key"),
}
_UPLOAD = (
    b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\n{"model":1}\xff\x00\r\n--x--\r\n'
)
# What names no model: title, then method, path and body (None: it has none).
FILES: dict[str, tuple[bytes, bytes, bytes | None]] = {
    "list of files": (b"GET", b"/v1/files", None),
    "head of the list": (b"HEAD", b"/v1/files", None),
    "upload": (b"POST", b"/v1/files", _UPLOAD),
    "preflight": (b"OPTIONS", b"/v1/files", None),
    "file": (b"GET", b"/v1/files/file-1%20a%C3%A9", None),
    "content": (b"GET", b"/v1/files/file-1/content", None),
    "head of content": (b"HEAD", b"/v1/files/file-1/content", None),
    "delete": (b"DELETE", b"/v1/files/file-1", None),
    "preflight of a file": (b"OPTIONS", b"/v1/files/file-1", None),
    "batch": (b"POST", b"/v1/batches", b' {"input_file_id" :"file-1", "n": 1e2}'),
    "broken batch": (b"POST", b"/v1/batches", b'{"model": "m", "model"'),
    "list of batches": (b"GET", b"/v1/batches", None),
    "head of a batch": (b"HEAD", b"/v1/batches/batch_1", None),
    "cancel": (b"POST", b"/v1/batches/batch_1/cancel", b""),
    "cancel without a body": (b"POST", b"/v1/batches/batch_1/cancel", None),
}
# A route's own name or its alias, and the model it stands for.
_ROUTES = {"open": ("quick", "快"), "anth": ("claude-quick",), "gem": ("gem-quick", "快/gem")}
_ROUTED = {"open": "org/m-7b:free", "anth": "claude", "gem": "gem-1.5-pro"}


@dataclass(frozen=True, slots=True)
class Way:
    """Where one call goes: paths and model names as the client says them, and at the backend."""

    backend: str
    path: bytes
    path_there: bytes
    model: str
    model_there: str

    @property
    def is_aliased(self) -> bool:
        return self.model != self.model_there

    @property
    def routed_via(self) -> bytes:
        """`backend/model` in printable ASCII; a call that names no model has only the backend."""
        name = f"{self.backend}/{self.model_there}".removesuffix("/")
        return "".join(
            char if " " <= char <= "~" and char != "%" else quote(char) for char in name
        ).encode()


def settings(url: str, *, has_default: bool = False) -> dict[str, Any]:
    """The sections of the configuration, with the backends all at this address.

    `has_default`: the backend `open` also takes what names no model.
    """
    more: dict[str, Any] = {"open": {"default": True} if has_default else {}}
    addresses = {"open": f"{url}/v1", "anth": url, "gem": url}
    kinds: Any = {"open": "openai", "anth": "anthropic", "gem": "gemini"}
    models = {"open": MODELS, "anth": ("claude",), "gem": GEMINI_MODELS}
    return {
        "backends": {
            name: BackendSettings(
                kinds[name],
                addresses[name],
                models=models[name],
                keys=(BackendKey("ours", Secret("env:OURS", f"{name}-key")),),
                **more.get(name, {}),
            )
            for name in addresses
        },
        "routes": {
            names[0]: RouteSettings((RouteTarget(name, _ROUTED[name]),), aliases=names[1:])
            for name, names in _ROUTES.items()
        },
        "keys": (ClientKey("k", secret=Secret("env:K", CLIENT_KEY.decode())),),
    }


def find_way(surface: str, rng: Random, *, is_aliased: bool, is_streamed: bool) -> Way:
    """A way for a call of this surface, by a model's own name or by a route's."""
    backend = "anth" if surface in ("messages", "count_tokens") else "open"
    backend = "gem" if surface.startswith("gemini") else backend
    there = rng.choice({"open": MODELS, "anth": ("claude",), "gem": GEMINI_MODELS}[backend])
    here = there
    if is_aliased:
        here, there = rng.choice(_ROUTES[backend]), _ROUTED[backend]
    if backend != "gem":
        return Way(backend, PATHS[surface], PATHS[surface], here, there)
    method = "streamGenerateContent" if is_streamed else "generateContent"
    method = "countTokens" if surface == "gemini_count" else method
    form = rng.choice(("/v1/models/%s:%s", "/v1beta/models/%s:%s"))
    path, path_there = (form % (quote(model, safe=""), method) for model in (here, there))
    return Way(backend, path.encode(), path_there.encode(), here, there)
