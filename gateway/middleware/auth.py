"""Who may do what. Knows no model and reads no body.

The rule of a path stands beside it in `routes`; router and rule both use the one path of the ASGI
scope. Keys are compared as SHA-256, in constant time, and never logged.
"""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal
from urllib.parse import parse_qsl

from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.settings.types import BudgetSettings, ClientKey, Settings
from proto.limits import API_KEY_BYTES

Rule = Literal["open", "client", "dashboard", "metrics", "admin"]

_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-real-ip")
_KEY_HEADERS = (b"x-api-key", b"api-key", b"x-goog-api-key")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a key belongs to. `client_id` is what the ledger stores, never the key."""

    label: str
    digest: bytes
    client_id: str
    user_id: str | None
    models: tuple[str, ...]
    budget: BudgetSettings | None = None
    profiles: tuple[str, ...] | None = None

    def may_use(self, *names: str) -> bool:
        """Whether any of a model's names is among the key's globs.

        What names no model ("") belongs to everybody who shares the backend: only a key that may
        use every model may use it.
        """
        if self.models == _ALL:
            return True
        if "" in names:
            return "*" in self.models
        return any(fnmatchcase(name, glob) for name in names for glob in self.models)


_ALL = ("*",)
ANYBODY = Identity("anybody", b"", "anon", None, _ALL)


class Auth:
    """Checks requests against the rule of their path."""

    def __init__(self, settings: Settings) -> None:
        identities = [_identity(key) for key in settings.keys if not key.disabled]
        self._keys = {identity.digest: identity for identity in reversed(identities)}
        self._needs_key = settings.server.auth == "keys" or (
            settings.server.auth == "auto" and bool(settings.keys)
        )
        admin, metrics = settings.server.admin_token, settings.server.metrics_token
        self._admin = _digest(admin.value.encode()) if admin else None
        self._metrics = _digest(metrics.value.encode()) if metrics else None

    def budgets(self) -> dict[str, BudgetSettings]:
        """The budgets of keys by their client ids."""
        known = self._keys.values()
        return {key.client_id: key.budget for key in known if key.budget is not None}

    def check(self, rule: Rule, exchange: Exchange) -> Identity:
        """The caller's identity.

        Raises: ApiError 401 for a missing or wrong key, 404 where an operator's page is closed.
        """
        if rule == "open":
            return ANYBODY
        if rule == "dashboard":
            return self._check_operator(exchange, [self._admin])
        if rule == "metrics":
            return self._check_operator(exchange, [self._metrics, self._admin])
        if rule == "admin":
            return self._check_operator(exchange, [self._admin], is_token_needed=True)
        if not self._needs_key:
            return ANYBODY
        known: Identity | None = exchange.facts.get(self)
        if known is not None:
            return known
        identity = self._identify(exchange)
        if b"authorization" in exchange.fields:  # and so it was not in the query
            exchange.note_fact(self, identity)
        return identity

    def _identify(self, exchange: Exchange) -> Identity:
        shown = shown_key(exchange)
        if shown is None:
            raise _unauthorized("Send an API key, for example as 'Authorization: Bearer KEY'.")
        if len(shown) <= API_KEY_BYTES:
            # How long a look into this table takes tells nothing: nobody can choose a SHA-256.
            digest = _digest(shown)
            identity = self._keys.get(digest)
            if identity is not None and hmac.compare_digest(identity.digest, digest):
                return identity
        raise _unauthorized("The API key is not known here; check it, or ask for a new one.")

    def _check_operator(
        self, exchange: Exchange, tokens: Sequence[bytes | None], *, is_token_needed: bool = False
    ) -> Identity:
        """One of these tokens opens the page; without any, this machine may read most of them."""
        known = [token for token in tokens if token is not None]
        if known:
            shown = _bearer(exchange)
            digest = _digest(shown) if shown is not None and len(shown) <= API_KEY_BYTES else b""
            if any(hmac.compare_digest(token, digest) for token in known):
                return ANYBODY
            raise _unauthorized("Send the operator's token as 'Authorization: Bearer TOKEN'.")
        if not is_token_needed and exchange.method in ("GET", "HEAD") and _is_local(exchange):
            return ANYBODY
        raise not_found(exchange.path)


def shown_key(exchange: Exchange) -> bytes | None:
    """The key a client shows, wherever it put it. Source: the SDKs' own habits."""
    if (bearer := _bearer(exchange)) is not None:
        return bearer
    for name in _KEY_HEADERS:
        if value := exchange.fields.get(name):
            return value.strip()
    query = exchange.query
    if b"key=" in query:
        shown = dict(parse_qsl(query.decode("latin-1"))).get("key")
        return shown.encode("latin-1", "replace") if shown else None
    return None


def not_found(path: str) -> ApiError:
    """The answer for a path that does not exist, or not for this caller."""
    return ApiError(404, "not_found", f"There is nothing at {path[:128]!r}.")


def _bearer(exchange: Exchange) -> bytes | None:
    shown = exchange.fields.get(b"authorization")
    if shown is None:
        return None
    if shown[:7].lower() == b"bearer ":
        return shown[7:].strip() or None
    return None


def _is_local(exchange: Exchange) -> bool:
    return exchange.is_peer_local and not any(name in exchange.fields for name in _FORWARDED)


def _identity(key: ClientKey) -> Identity:
    if key.sha256 is not None:
        digest = bytes.fromhex(key.sha256)
    else:
        assert key.secret is not None
        digest = _digest(key.secret.value.encode())
    return Identity(
        label=key.label,
        digest=digest,
        client_id=f"k:{digest.hex()[:12]}",
        user_id=key.user or key.label,
        models=key.models,
        budget=key.budget,
        profiles=key.profiles,
    )


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, "invalid_api_key", message)
