"""A `tandem serve` process that relays to the scripted provider, for tests of client programs.

Knows no client: only what it asked, what the provider said, and what the ledger holds of it.
"""

import contextlib
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import Server, serving
from tests.fakes.dialects.turn import Usage
from tests.fakes.provider import Asked, Provider

BACKENDS = ("openai", "anthropic", "gemini")
PROVIDER_KEYS = {name: f"sk-provider-{name}-0a1b2c" for name in BACKENDS}
CLIENTS = ("agents", "anthropic", "google", "llm", "openai")
CLIENT_KEYS = {name: f"sk-client-{name}-7d8e9f" for name in CLIENTS}
ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")  # our own request ids
BOOKED_S = 15.0  # the ledger writes once a second; a busy machine takes longer

CONFIG = """
server: {{state_dir: STATE_DIR}}
backends:
  openai:
    kind: openai
    base_url: {openai}/v1
    keys: [{{label: ours, secret: "env:OPENAI_PROVIDER_KEY"}}]
  anthropic:
    kind: anthropic
    base_url: {anthropic}
    keys: [{{label: ours, secret: "env:ANTHROPIC_PROVIDER_KEY"}}]
  gemini:
    kind: gemini
    base_url: {gemini}
    keys: [{{label: ours, secret: "env:GEMINI_PROVIDER_KEY"}}]
keys:
"""
CONFIG_KEY = '  - {{label: {name}, secret: "env:{variable}"}}\n'

COLUMNS = (
    "user_id", "client_kind", "kind", "surface", "stream", "path", "backend", "upstream_key",
    "model", "status", "outcome", "error_type", "finish_reason", "tool_calls", "usage_source",
)  # fmt: skip
TOKEN_COLUMNS = (
    "prompt_tokens", "completion_tokens", "cached_tokens", "cache_write_tokens",
    "reasoning_tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Books:
    """The ledger against the provider: one row a request, and every column as it should be.

    `refused`: the rows of requests that went no further than the gateway.
    """

    faults: list[str]
    refused: list[dict[str, Any]]


class Relayed:
    """One client's view of the gateway and the provider behind it, from now on.

    `key`: what this client shows the gateway; no other client has it.
    """

    def __init__(self, server: Server, provider: Provider, client: str) -> None:
        self.server = server
        self.base = server.base
        self.provider = provider
        self.key = CLIENT_KEYS[client]
        self._client = client
        self._asked_before = len(provider.asked)

    def calls(self) -> list[Asked]:
        """What the provider was asked, the gateway's own questions for models left out."""
        asked = self.provider.asked[self._asked_before :]
        return [one for one in asked if one.request.method == "POST"]

    def said(self) -> Usage:
        """The usage that the provider's last answer carried."""
        reply = self.calls()[-1].reply
        assert reply is not None and reply.usage is not None
        return reply.usage

    def books(self, client_kind: str) -> "Books":
        """What the ledger holds of everything asked so far, held against what the provider said."""
        calls = self.calls()
        rows = self._closed_rows(len(calls))
        relayed = [row for row in rows if row["path"]]
        faults = [] if len(relayed) == len(calls) else [f"{len(relayed)} rows of {len(calls)}"]
        for row, call in zip(relayed, calls, strict=False):
            found, said = booked(row), expected(call, self._client, client_kind)
            faults += [
                f"request {call.request.number} on {said['surface']}: {name} is {found[name]!r}, "
                f"should be {said[name]!r}"
                for name in said
                if found[name] != said[name]
            ]
        return Books(faults, [row for row in rows if not row["path"]])

    def _closed_rows(self, relayed: int) -> list[dict[str, Any]]:
        """The client's rows, once this many relayed requests are closed and none waits."""
        until_s = time.monotonic() + BOOKED_S
        while True:
            time.sleep(0.05)  # what has ended is gathered for a moment before it is a row
            is_written = "tandem_ledger_waiting 0.0" in httpx.get(f"{self.base}/metrics").text
            rows = self._rows() if is_written else []
            closed = [row for row in rows if row["path"] and row["outcome"]]
            if (is_written and len(closed) >= relayed) or time.monotonic() > until_s:
                return rows

    def _rows(self) -> list[dict[str, Any]]:
        file = self.server.state_dir / "ledger.sqlite"
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as ledger:
            ledger.row_factory = sqlite3.Row
            found = ledger.execute(
                "SELECT * FROM ledger WHERE user_id = ? ORDER BY ts_ms", (self._client,)
            )
            return [dict(row) for row in found]


def booked(row: dict[str, Any]) -> dict[str, Any]:
    """What a row says of a request, as `expected` puts it."""
    counts = {name: row[name] for name in TOKEN_COLUMNS}
    if row["usage_source"] != "backend":
        counts = {name: row[name] > 0 for name in TOKEN_COLUMNS[:2]}
    return {name: row[name] for name in COLUMNS} | counts


def expected(call: Asked, client: str, client_kind: str) -> dict[str, Any]:
    """What a ledger should say of a request that the provider answered."""
    reply = call.reply
    assert reply is not None, f"the provider refused {call.request}"
    usage = None if call.is_broken else reply.usage
    end = ("failed", "upstream_failed", None) if call.is_broken else (
        "succeeded", None, reply.finish
    )  # fmt: skip
    said = dict(zip(COLUMNS, (
        client, client_kind, reply.kind, reply.surface, int(reply.is_stream), "relay",
        call.dialect, "ours", reply.model, 200, *end, int(bool(reply.call)),
        "backend" if usage else "estimated",
    ), strict=True))  # fmt: skip
    if usage is None:
        return said | dict.fromkeys(TOKEN_COLUMNS[:2], True)  # estimates: more than nothing
    counts = (usage.prompt, usage.output, usage.cached, usage.written, usage.reasoning)
    return said | dict(zip(TOKEN_COLUMNS, counts, strict=True))


@contextlib.contextmanager
def relaying(folder: Path) -> Iterator[tuple[Server, Provider]]:
    """A provider and a gateway until the block ends; no client's key may pass the gateway."""
    variables = {f"{name.upper()}_PROVIDER_KEY": key for name, key in PROVIDER_KEYS.items()}
    with Provider(PROVIDER_KEYS) as provider:
        config = CONFIG.format(**{name: provider.url(name) for name in BACKENDS})
        for name, key in CLIENT_KEYS.items():
            variables[f"KEY_OF_{name.upper()}"] = key
            config += CONFIG_KEY.format(name=name, variable=f"KEY_OF_{name.upper()}")
        with serving(folder, config, **variables) as server:
            yield server, provider
        for asked in provider.asked:
            assert not any(key in repr(asked.request) for key in CLIENT_KEYS.values())


def keep_on_loopback(patch: pytest.MonkeyPatch) -> None:
    """Takes what steers an SDK out of the environment, and makes it ask a dead proxy for anything
    that is not on loopback: a client that phones home fails at once."""
    for name in list(os.environ):
        if name.startswith(("OPENAI_", "ANTHROPIC_", "GOOGLE_", "GEMINI_")):
            patch.delenv(name)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        patch.setenv(name, "http://127.0.0.1:9")
        patch.setenv(name.lower(), "http://127.0.0.1:9")
    patch.setenv("NO_PROXY", "127.0.0.1")
    patch.setenv("no_proxy", "127.0.0.1")
