"""R38, P13: keys, cookies and prompts turn up nowhere, on good days and on bad ones."""

import asyncio
import base64
import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from tests.e2e.server import Server, serving
from tests.gateway.cases import canary
from tests.gateway.cases.samples import CHAT, SAMPLES, TEXT, Sample, dump
from tests.gateway.cases.scripted import JSON, Link, ScriptedBackend, answering, head, streaming
from tests.gateway.cases.stage import STILL_OPEN, Caller, request

CONFIG = """
server: {{state_dir: STATE_DIR, max_body_mb: 1}}
keys: [{{label: client, secret: "env:CLIENT_KEY"}}]
backends:
  openai: {{kind: openai, base_url: "{url}/v1", models: [m], {more}}}
  anthropic: {{kind: anthropic, base_url: "{url}", models: [claude], {more}}}
  gemini: {{kind: gemini, base_url: "{url}", models: [gem], {more}}}
  nowhere: {{kind: openai, base_url: "http://nowhere.invalid/v1", models: [nowhere], {more}}}
  closed: {{kind: openai, base_url: "https://127.0.0.1:1/v1", models: [closed], {more}}}
"""
MORE = 'keys: [{label: k, secret: "env:BACKEND_KEY"}], first_event_s: 0.2, connect_s: 1'
MODELS = {"chat": "m", "responses": "m", "messages": "claude", "gemini": "gem"}
QUOTED = f"the key {canary.BACKEND_KEY} is wrong, said {canary.PROMPT}"


def said_by(sample: Sample, mood: str) -> bytes | None:
    """What a backend says in a mood; None: it says what the sample says."""
    quoted = json.dumps({"error": {"message": QUOTED}}).encode()
    return {
        "redirects": head(302, JSON, f"location: http://x.invalid/?key={canary.BACKEND_KEY}",
                          "content-length: 0"),
        "refuses the key": answer(401, quoted), "forbids": answer(403, quoted),
        "wants money": answer(402, quoted), "wants a proxy key": answer(407, quoted),
        "fails": answer(500, b'{"error":{"message":"overloaded"}}'),
        "speaks no HTTP": QUOTED.encode() + b"\r\n\r\n",
        "has odd headers": head(200, JSON, f"x-key : {canary.BACKEND_KEY}"),
        "has two lengths": head(200, JSON, "content-length: 5", "content-length: 6") + quoted,
        "sets a cookie": head(200, JSON, f"set-cookie: {canary.COOKIE}", "content-length: 0"),
        "is silent": b"", "dies": b"HTTP/1.1 2",
    }.get(mood)  # fmt: skip


def answer(status: int, body: bytes) -> bytes:
    return head(status, JSON, f"content-length: {len(body)}") + body


MOODS = ("well", "redirects", "refuses the key", "forbids", "wants money", "wants a proxy key",
         "fails", "speaks no HTTP", "has odd headers", "has two lengths", "sets a cookie",
         "is silent", "dies")  # fmt: skip


class World:
    """Everything that answers, and everything it has answered."""

    def __init__(self) -> None:
        self.sample: Sample = CHAT
        self.mood = "well"
        self.replies: list[bytes] = []

    async def backend(self, link: Link) -> None:
        said = said_by(self.sample, self.mood)
        asked = link.asked[-1]
        is_stream = b'"stream": true' in asked.body or "stream" in asked.target
        if said is None:
            whole = self.sample.whole.replace(TEXT.encode(), canary.ANSWER.encode())
            await (streaming(*self.sample.events) if is_stream else answering(whole))(link)
            return
        await link.send(*([said] if said else []))
        if self.mood in ("dies", "speaks no HTTP"):
            link.close()
        if self.mood in ("dies", "speaks no HTTP", "is silent"):
            await link.stay()

    async def ask(self, port: int, model: str, key: str = canary.CLIENT_KEY, *,
                  is_stream: bool = False, body: bytes | None = None) -> None:  # fmt: skip
        """One request that carries every canary."""
        sample = self.sample
        target = sample.target(is_stream=is_stream).replace("/m:", f"/{model}:")
        target += ("&" if "?" in target else "?") + f"key={canary.QUERY_KEY}"
        usual = dump(sample.stream_request if is_stream else sample.request)
        usual = usual.replace(b'"m"', f'"{model}"'.encode())
        usual = usual.replace(b"How is the weather in Tokyo?", canary.PROMPT.encode())
        headers = [("authorization", f"Bearer {key}"), ("cookie", canary.COOKIE),
                   ("x-api-key", canary.HEADER_KEY), ("connection", "close")]  # fmt: skip
        await self.send(port, request(target, usual if body is None else body, headers))

    async def send(self, port: int, data: bytes) -> None:
        caller = await Caller.connect(port)
        with contextlib.suppress(ConnectionError):  # refused before all of it was taken
            await caller.send(data)
        reply = await caller.at_end(most_s=3)
        caller.close()
        assert STILL_OPEN not in reply, reply
        self.replies.append(reply)

    async def live(self, port: int) -> None:
        """Every mood on every surface; backends that are not there; requests that are refused."""
        for self.sample in SAMPLES:
            for self.mood in MOODS:
                for is_stream in (True, False):
                    await self.ask(port, MODELS[self.sample.surface], is_stream=is_stream)
        self.sample, self.mood = CHAT, "well"
        for model in ("nowhere", "closed", "unknown"):
            await self.ask(port, model)
        await self.ask(port, "m", canary.WRONG_KEY)
        whole = dump({"model": "m", "messages": [], "x": canary.PROMPT})
        for body in (whole[:-1], whole + b"}", whole.replace(b"model", b"nodel"),
                     b"[" * 200 + whole, canary.PROMPT.encode(), whole + b" " * 2**20):  # fmt: skip
            await self.ask(port, "m", body=body)
        lines = f"x-api-key: {canary.CLIENT_KEY}\r\nconnection: close\r\n".encode()
        long = canary.QUERY_KEY.encode() * 400
        for first in (b"GET /v1/models", b"GET /v1/nothing", b"GET /metrics", b"GET /readyz",
                      b"GET /v1/dashboard/usage", b"POST /v1/messages?key=" + long):  # fmt: skip
            await self.send(port, first + b" HTTP/1.1\r\nhost: x\r\n" + lines + b"\r\n")
        many = b"x-api-key : %b\r\n" % canary.WRONG_KEY.encode() * 200
        await self.send(port, b"POST /v1/responses HTTP/1.1\r\nhost: x\r\n" + many + b"\r\n")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "tmp").mkdir()
    return {"CLIENT_KEY": canary.CLIENT_KEY, "BACKEND_KEY": canary.BACKEND_KEY,
            "TMPDIR": str(tmp_path / "tmp")}  # fmt: skip


def config(up: ScriptedBackend) -> str:
    return CONFIG.format(url=up.url, more=MORE)


def exported(server: Server, environ: dict[str, str]) -> dict[str, bytes]:
    """What our own commands print."""
    file = str(server.state_dir.parent / "tandem.yaml")
    verbs = [("ledger", "export", "--format", form) for form in ("csv", "jsonl")]
    verbs += [("ledger", "report", "--by", "model,client"), ("check",)]
    running = {
        " ".join(verb): subprocess.Popen(
            [sys.executable, "-m", "gateway.cli", *verb, "--config", file],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ,
        )
        for verb in verbs
    }  # fmt: skip
    found = {verb: process.communicate()[0] for verb, process in running.items()}
    assert found["ledger export --format jsonl"].count(b'"outcome"') > 100
    return found


async def test_no_secret_is_found_after_good_days_and_bad(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """R38: success, backend errors, no name, redirect, silence, death, refusals; the search."""
    world = World()
    async with ScriptedBackend(world.backend) as up:
        with serving(tmp_path, config(up), **environ) as server:
            await world.live(int(server.base.rpartition(":")[2]))
            places = canary.files_below([server.state_dir, tmp_path / "tmp"])  # with its journal
            assert server.stop() == 0
        places |= canary.files_below([server.state_dir, tmp_path / "tmp"])
        places |= exported(server, environ)
        places["the log"] = "".join(server.lines).encode()
    shown = canary.ANSWER.encode()  # to the client who asked, and to nobody else
    assert sum(shown in reply for reply in world.replies) == len(SAMPLES)
    for number, reply in enumerate(world.replies):
        places[f"reply {number}"] = reply.replace(shown, b"")
    assert [asked for asked in up.asked if canary.BACKEND_KEY.encode() in asked.head]
    statuses = {int(reply.split(b" ")[1]) for reply in world.replies}
    assert {200, 400, 401, 404, 413, 500, 502, 504} <= statuses and len(world.replies) > 110
    assert canary.leaks(places) == []


async def test_no_secret_is_found_after_a_hard_kill(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """R38: killed in the middle of a stream: journal, spill file and temporary folder."""

    async def script(link: Link) -> None:
        await link.send(head(200, "text/event-stream", "transfer-encoding: chunked"))
        started.set()
        await link.stay()

    started, world = asyncio.Event(), World()
    async with ScriptedBackend(script) as up:
        with serving(tmp_path, config(up).replace("first_event_s: 0.2", "first_event_s: 60"),
                     **environ) as server:  # fmt: skip
            asking = asyncio.create_task(
                world.ask(int(server.base.rpartition(":")[2]), "m", is_stream=True)
            )
            async with asyncio.timeout(10):
                await started.wait()
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(10)
            await asking
        places = canary.files_below([server.state_dir, tmp_path / "tmp"])
        places["the log"] = "".join(server.lines).encode()
    assert canary.leaks(places) == []


def test_no_secret_is_found_after_a_crash(tmp_path: Path) -> None:
    """R38: a fault of ours in the middle of a request: its traceback, its 500."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gateway.cases.crashing", str(tmp_path)],
        capture_output=True, timeout=60, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"request.crashed" in done.stderr and b"Traceback" in done.stderr
    assert b" 500 " in done.stdout
    assert canary.leaks({"the log": done.stderr, "the reply": done.stdout}) == []


def test_the_search_finds_what_it_looks_for() -> None:
    """R38: each canary as logs, replies and databases would show it."""
    for planted in canary.ALL:
        line = json.dumps({"event": "x", "body": json.dumps({"key": planted})})
        basic = [base64.b64encode(b"x" * shift + planted.encode() + b"y") for shift in range(5)]
        shown = [planted, line, repr(planted.encode()), f"?key={quote(planted)}&x=1",
                 f"?key={quote_plus(planted).lower()}", f"<{planted.encode().hex()}>",
                 *(packed.decode() for packed in basic)]  # fmt: skip
        for text in shown:
            assert canary.leaks({"here": b"\0before " + text.encode() + b" after"}), text
    assert not canary.leaks({"here": b"nothing of that kind: sk-canary, canary/answer, Gr\xc3\xbc"})
