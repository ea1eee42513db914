"""What a connection's next request saves when its headers are those of the last: nothing else."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.door.head import KnownHead
from gateway.exchange import MOST_FACTS
from gateway.settings.types import ClientKey, Secret
from tests.gateway.cases.samples import CHAT
from tests.gateway.cases.scripted import ScriptedBackend, speaking
from tests.gateway.cases.stage import Answer, Caller, Stage, request, stage
from tests.gateway.harness import running_gateway

KEYS = (
    ClientKey("ann", secret=Secret("env:A", "key-of-ann")),
    ClientKey("bob", secret=Secret("env:B", "key-of-bob")),
)
ANN = ("authorization", "Bearer key-of-ann")
BOB = ("authorization", "Bearer key-of-bob")


def keyed(tmp_path: Path) -> Any:
    return stage(tmp_path, CHAT, speaking(CHAT), sections={"keys": KEYS})


async def ask(caller: Caller, headers: Sequence[tuple[str, str]], target: str = "") -> Answer:
    await caller.ask(target or CHAT.path, CHAT.body(is_stream=False), headers)
    return await caller.whole()


async def users(on: Stage, count: int) -> list[str | None]:
    return [(await on.row(number)).user_id for number in range(count)]


async def test_each_request_is_its_own_keys(tmp_path: Path) -> None:
    async with keyed(tmp_path) as on:
        caller = await Caller.connect(on.port)
        for headers in ([ANN], [BOB], [ANN], [ANN], [BOB]):
            assert (await ask(caller, headers)).status == 200
        assert await users(on, 5) == ["ann", "bob", "ann", "ann", "bob"]
        for headers in ([], [("authorization", "Bearer key-of-eve")], [ANN, ("x", "y")]):
            answer = await ask(caller, headers)
            assert answer.status == (200 if ANN in headers else 401)
        caller.close()


async def test_a_key_in_the_query_is_looked_at_every_time(tmp_path: Path) -> None:
    async with keyed(tmp_path) as on:
        caller = await Caller.connect(on.port)
        statuses = []
        for key in ("key-of-ann", "key-of-eve", "key-of-bob", ""):
            statuses.append((await ask(caller, [], f"{CHAT.path}?key={key}")).status)
        caller.close()
        assert statuses == [200, 401, 200, 401]
        assert await users(on, 2) == ["ann", "bob"]


async def test_a_key_that_was_taken_away_opens_nothing_any_more(tmp_path: Path) -> None:
    async with keyed(tmp_path) as on:
        caller = await Caller.connect(on.port)
        assert (await ask(caller, [ANN])).status == 200
        settings = on.gateway.gateway.settings
        on.gateway.gateway.apply(replace(settings, keys=KEYS[1:]))
        assert (await ask(caller, [ANN])).status == 401
        assert (await ask(caller, [BOB])).status == 200
        caller.close()


async def test_what_goes_up_is_what_each_request_said(tmp_path: Path) -> None:
    """Also where only a value, a name, the order or the length is another."""
    heads = [
        [("x-a", "1"), ("x-b", "2")], [("x-a", "1"), ("x-b", "2")], [("x-a", "1"), ("x-b", "3")],
        [("x-b", "3"), ("x-a", "1")], [("x-a", "1")], [("x-a", "1"), ("connection", "x-a")],
        [("x-a", "1"), ("x-a", "4")], [("x-a", "1"), ("x-b", "2")],
    ]  # fmt: skip
    async with stage(tmp_path, CHAT, speaking(CHAT)) as on:
        caller = await Caller.connect(on.port)
        for number, head in enumerate(heads):
            body = CHAT.body(is_stream=False) + b" " * number
            await caller.ask(CHAT.path, body, head)
            assert (await caller.whole()).status == 200
            asked = on.up.asked[number]
            assert asked.body == body and asked.header("content-length") == [str(len(body))]
            sent = [] if ("connection", "x-a") in head else head
            assert [pair for pair in asked.headers if pair[0] in ("x-a", "x-b")] == sent
        caller.close()


async def test_each_backend_gets_what_it_may_have(tmp_path: Path) -> None:
    """One connection, one head, two backends, of which one has a header of its own."""
    async with ScriptedBackend(speaking(CHAT)) as up:
        plain, own = (
            CHAT.backend(up.url, models=(model,), headers=extra)
            for model, extra in (("m", {}), ("n", {"x-a": "ours"}))
        )
        async with running_gateway(tmp_path, backends={"b": plain, "c": own}) as gateway:
            caller = await Caller.connect(gateway.port)
            for model in ("m", "n", "m"):
                body = json.dumps(CHAT.request | {"model": model}).encode()
                await caller.ask(CHAT.path, body, [("x-a", "theirs")])
                assert (await caller.whole()).status == 200
            caller.close()
            assert [asked.header("x-a") for asked in up.asked] == [["theirs"], ["ours"], ["theirs"]]


async def test_what_was_refused_once_is_refused_again(tmp_path: Path) -> None:
    async with stage(tmp_path, CHAT, speaking(CHAT)) as on:
        for _ in range(2):
            caller = await Caller.connect(on.port)
            assert (await ask(caller, [])).status == 200
            await caller.send(request(CHAT.path, b"", [("expect", "a miracle")]))
            assert (await caller.whole()).status == 417
            caller.close()
        caller = await Caller.connect(on.port)
        head = f"POST {CHAT.path} HTTP/1.1\r\ncontent-length: 0\r\n\r\n".encode()
        await caller.send(head)
        assert (await caller.whole()).status == 400  # it has no Host
        caller.close()


@pytest.mark.parametrize(
    ("other", "is_like"),
    [
        ([(b"a", b"1"), (b"content-length", b"5"), (b"b", b"2")], True),
        ([(b"a", b"1"), (b"content-length", b"77"), (b"b", b"2")], True),
        ([(b"a", b"2"), (b"content-length", b"5"), (b"b", b"2")], False),
        ([(b"a", b"1"), (b"content-length", b"5"), (b"b", b"3")], False),
        ([(b"a", b"1"), (b"content-length", b"5")], False),
        ([(b"a", b"1")], False),
        ([(b"a", b"1"), (b"b", b"2"), (b"content-length", b"5")], False),
        ([(b"content-length", b"5"), (b"a", b"1"), (b"b", b"2")], False),
        ([(b"a", b"1"), (b"content-lengtH", b"6"), (b"b", b"2")], False),
    ],
)
def test_heads_are_alike_but_for_the_length(
    other: list[tuple[bytes, bytes]], is_like: bool
) -> None:
    known = KnownHead([(b"a", b"1"), (b"content-length", b"5"), (b"b", b"2")])
    assert known.is_like(other) == is_like
    if is_like:
        assert known.fields_of(other) == dict(other)


async def test_facts_do_not_pile_up(tmp_path: Path) -> None:
    """A connection that outlives many configurations."""
    async with keyed(tmp_path) as on:
        caller = await Caller.connect(on.port)
        for number in range(2 * MOST_FACTS):
            settings = on.gateway.gateway.settings
            on.gateway.gateway.apply(replace(settings, rev=str(number)))
            assert (await ask(caller, [ANN])).status == 200
        (connection,) = on.gateway.gateway.door.connections
        assert connection._known is not None and len(connection._known.facts) <= MOST_FACTS
        caller.close()


def test_a_head_that_http_1_0_may_have_is_judged_again_in_http_1_1() -> None:
    known = KnownHead([(b"content-length", b"5")])
    assert known.fault("1.0", at_most_bytes=100) is None
    for _ in range(2):
        fault = known.fault("1.1", at_most_bytes=100)
        assert fault is not None and fault.status == 400
