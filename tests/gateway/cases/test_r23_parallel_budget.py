"""R23: requests that arrive at once never pass a budget together that is enough for a few.

Source: BerriAI/litellm/issues/26672.
"""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import httpx
import pytest

from gateway.app import Gateway
from gateway.ledger.account import State
from gateway.ledger.budget import Budgets
from gateway.ledger.clock import Clock
from gateway.ledger.command import OpenLedger
from gateway.ledger.prices import PriceList
from gateway.ledger.writer import Ledger
from gateway.settings.types import (
    BudgetSettings,
    ClientKey,
    PriceSettings,
    Secret,
    ServerSettings,
    Settings,
    Surface,
    TokenPrices,
)
from gateway.store.db import Database
from tests.fakes.backend import FakeBackend, Gate, Reply, Seen
from tests.gateway.harness import backend
from tests.gateway.ledger.made import migrate_here, stored

DOLLAR = 1_000_000  # in micros, and here the price of a token of an answer
KEY, OTHER = "sk-ours", "sk-other"
BODY = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hello"}]}


def answer(tokens: int) -> bytes:
    """A whole answer of this many dollars."""
    usage = {"prompt_tokens": 5, "completion_tokens": tokens}
    message = {"role": "assistant", "content": "x"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps({"choices": [choice], "usage": usage}).encode()


class Office:
    """A gateway with a budget and real books."""

    def __init__(self, gateway: Gateway, budgets: Budgets, base: str) -> None:
        self.gateway = gateway
        self.base = base
        self._budgets = budgets
        (self.client_id,) = gateway.auth.budgets()

    def state(self) -> State:
        found = self._budgets.state(self.client_id)
        assert found is not None
        return found


@contextlib.asynccontextmanager
async def office(folder: Path, database: Database, url: str, limit: int) -> AsyncIterator[Office]:
    """Serves a key with a budget of so many dollars a day, and one without."""
    settings = Settings(
        server=ServerSettings(state_dir=folder / "state", port=0),
        backends={"b": backend(url)},
        prices=(PriceSettings("m", per_mtok=TokenPrices(Decimal(0), output=Decimal(DOLLAR))),),
        keys=(
            ClientKey("ours", secret=Secret("env:A", KEY),
                      budget=BudgetSettings(Decimal(limit), "day")),
            ClientKey("other", secret=Secret("env:B", OTHER)),
        ),
    )  # fmt: skip
    clock = Clock(lambda: time.time_ns() // 1_000_000, time.monotonic)
    budgets = Budgets(clock)
    books = Ledger(
        database, settings.ledger, state_dir=settings.state_dir, clock=clock, budgets=budgets,
        price=PriceList(settings.prices).price, migrate=migrate_here,
    )  # fmt: skip
    gateway = Gateway(settings, OpenLedger(books, database, budgets))
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    await gateway.open(listener)
    try:
        yield Office(gateway, budgets, f"http://127.0.0.1:{listener.getsockname()[1]}")
    finally:
        await gateway.close()
        listener.close()


def caller(base: str, key: str = KEY) -> httpx.AsyncClient:
    """A client that can call as often as it likes at once."""
    return httpx.AsyncClient(
        base_url=base, headers={"authorization": f"Bearer {key}"}, timeout=60,
        limits=httpx.Limits(max_connections=None), trust_env=False,
    )  # fmt: skip


def billed(database: Database) -> int:
    """The sum of the ledger."""
    return sum(row.cost_micros or 0 for row in stored(database) if row.billed)


async def test_twenty_at_once_with_a_budget_for_three(database: Database, tmp_path: Path) -> None:
    """Three reach the backend, seventeen are told so; then nothing is held, and all is booked."""
    gate = Gate()
    async with FakeBackend(lambda seen: Reply(pieces=[gate, answer(7)])) as up:
        async with office(tmp_path, database, up.url, 30) as serving, caller(serving.base) as ours:
            calls = [
                asyncio.create_task(ours.post("/v1/chat/completions", json=BODY)) for _ in range(20)
            ]
            async with asyncio.timeout(30):
                while sum(call.done() for call in calls) < 17 or len(up.seen) < 3:
                    waiting = [call for call in calls if not call.done()]
                    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=0.01)
            assert len(up.seen) == 3
            assert serving.state() == State(30 * DOLLAR, 0, 30 * DOLLAR)
            async with caller(serving.base, OTHER) as other:
                unlimited = asyncio.create_task(other.post("/v1/chat/completions", json=BODY))
                async with asyncio.timeout(30):
                    while len(up.seen) < 4:
                        await asyncio.wait([unlimited], timeout=0.01)
                gate.open.set()
                assert (await unlimited).status_code == 200
            answers = await asyncio.gather(*calls)
        ended = serving.state()
    assert sorted(found.status_code for found in answers) == [200] * 3 + [429] * 17
    refusal = next(found for found in answers if found.status_code == 429)
    assert refusal.headers["x-should-retry"] == "false"
    assert refusal.json()["error"]["code"] == "insufficient_quota"
    assert ended == State(30 * DOLLAR, 21 * DOLLAR, 0)
    rows = [row for row in stored(database) if row.client_id == serving.client_id]
    assert sum(row.cost_micros or 0 for row in rows) == ended.spent
    refused = [row for row in rows if row.outcome == "refused"]
    assert {(row.status, row.error_type, row.cost_micros) for row in refused} == {
        (429, "insufficient_quota", None)
    }
    assert (len(rows), len(refused)) == (20, 17)
    async with office(tmp_path, database, "http://127.0.0.1:1", 30) as again:
        async with caller(again.base) as ours:  # which waits for the first reading
            assert (await ours.post("/v1/chat/completions", json=BODY)).status_code == 429
        assert again.state() == ended


async def test_two_hundred_at_once_overspend_by_one_settlement_error(
    database: Database, tmp_path: Path
) -> None:
    """One of the answers is longer than its request allowed; nothing else passes the budget."""
    count, excess = 200, 6

    def script(seen: Seen) -> Reply:
        return Reply(pieces=[answer(10 + excess if len(up.seen) == 40 else 10)])

    async with FakeBackend(script) as up:
        async with office(tmp_path, database, up.url, 500) as serving, caller(serving.base) as ours:
            async with asyncio.timeout(60):
                answers = await asyncio.gather(
                    *(ours.post("/v1/chat/completions", json=BODY) for _ in range(count))
                )
        ended = serving.state()
    admitted = sum(found.status_code == 200 for found in answers)
    assert {found.status_code for found in answers} == {200, 429}
    assert len(up.seen) == admitted
    assert ended.spent == billed(database) == (10 * admitted + excess) * DOLLAR
    assert admitted >= 40 and ended.spent <= (500 + excess) * DOLLAR
    assert ended.reserved == 0


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        ("/v1/chat/completions", BODY, ("error", "code")),
        ("/v1/messages", BODY, ("error", "code")),
        ("/v1beta/models/m:generateContent",
         {"contents": [{"parts": [{"text": "x"}]}], "generationConfig": {"maxOutputTokens": 10}},
         ("error", "details")),
    ],
)  # fmt: skip
async def test_the_refusal_has_the_form_of_the_surface(
    sqlite: Database, tmp_path: Path, path: str, body: dict[str, object], where: tuple[str, str]
) -> None:
    speaks: tuple[Surface, ...] = ("chat", "messages", "gemini")
    async with office(tmp_path, sqlite, "http://127.0.0.1:1", 9) as serving:
        settings = serving.gateway.settings
        serving.gateway.apply(_speaking(settings, speaks))
        async with caller(serving.base) as ours:
            found = await ours.post(path, json=body)
    assert (found.status_code, found.headers["x-should-retry"]) == (429, "false")
    told = found.json()[where[0]]
    assert "insufficient_quota" in json.dumps(told[where[1]])
    assert "9 USD a day (UTC), 0 spent" in told["message"]
    if path == "/v1/messages":
        assert (found.json()["type"], told["type"]) == ("error", "rate_limit_error")


def _speaking(settings: Settings, surfaces: tuple[Surface, ...]) -> Settings:
    spoken = replace(settings.backends["b"], speaks=surfaces)
    return replace(settings, backends={"b": spoken})
