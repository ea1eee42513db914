"""A gateway process without an engine: relay, books, reports, reload and drain, as run for real."""

import contextlib
import http.server
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import Server, serving

CONFIG = """
server: {{state_dir: STATE_DIR}}
backends:
  b: {{kind: openai, base_url: "{url}/v1", models: [one, two]}}
prices:
  - {{backend: b, model: one, currency: EUR, per_mtok: {{input: 2, cached_input: 1, output: 10}}}}
keys:
  - {{label: alice, secret: "env:ALICE"}}
  - {{label: bob, secret: "env:BOB"}}
{ledger}
"""
KEYS = {"ALICE": "key-of-alice", "BOB": "key-of-bob"}


class Answering(http.server.BaseHTTPRequestHandler):
    """Answers with a usage that depends on the request, or holds a stream open until told."""

    protocol_version = "HTTP/1.1"
    go_on = threading.Event()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        count = len(body["messages"])
        usage = {"prompt_tokens": 10 * count, "completion_tokens": count,
                 "prompt_tokens_details": {"cached_tokens": count}}  # fmt: skip
        choice = {"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}
        if body.get("stream"):
            self._stream(usage)
            return
        answer = json.dumps({"choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _stream(self, usage: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        first = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}
        self.wfile.write(f"data: {json.dumps(first)}\n\n".encode())
        self.wfile.flush()
        Answering.go_on.wait(20)
        self.wfile.write(f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n".encode())

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as backend:
        thread = threading.Thread(target=backend.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{backend.server_port}"
        backend.shutdown()
        thread.join()


@contextlib.contextmanager
def gateway(folder: Path, url: str, ledger: str = "", **environ: str) -> Iterator[Server]:
    config = CONFIG.format(url=url, ledger=ledger)
    with serving(folder, config, **KEYS, **environ) as server:
        yield server


def ask(server: Server, key: str, model: str, count: int) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}] * count}
    headers = {"authorization": f"Bearer {KEYS[key]}"}
    answer = httpx.post(f"{server.base}/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text


def tandem(server: Server, *arguments: str, **environ: str) -> str:
    file = server.state_dir.parent / "tandem.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", *arguments, "--config", str(file)],
        capture_output=True, text=True, env={**KEYS, **environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The configuration's ledger section, and the environment it needs."""
    if request.param == "sqlite":
        return "", {}
    url = request.getfixturevalue("postgres_url")
    return 'ledger: {url: "env:LEDGER_URL"}', {"LEDGER_URL": url}


def test_the_report_agrees_with_the_rows_on_both_databases(
    ledger: tuple[str, dict[str, str]], url: str, tmp_path: Path
) -> None:
    section, environ = ledger
    with gateway(tmp_path, url, section, **environ) as server:
        for number in range(24):
            ask(server, "ALICE" if number % 3 else "BOB", "one" if number % 2 else "two",
                number % 5 + 1)  # fmt: skip
        until_s = time.monotonic() + 10
        while True:
            lines = tandem(server, "ledger", "export", "--format", "jsonl", **environ).splitlines()
            rows = [row for row in map(json.loads, lines) if row["outcome"] is not None]
            if len(rows) == 24 or time.monotonic() > until_s:
                break
        by = ["ledger", "report", "--by", "model,client,day", "--format", "json"]
        report = json.loads(tandem(server, *by, **environ))
        web = httpx.get(f"{server.base}/v1/dashboard/usage?by=model,client,day").json()
        table = tandem(server, "ledger", "report", "--by", "model", **environ)
        same = tandem(server, "ledger", "reprice", **environ)
    assert len(rows) == 24
    requests, prompt, cost = Counter[Any](), Counter[Any](), Counter[Any]()
    for row in rows:
        key = (row["model"], row["client_id"])
        requests[key] += 1
        prompt[key] += row["prompt_tokens"]
        cost[key] += row.get("cost_micros", 0)
        uncached = row["upstream_input_tokens"] - row["upstream_cached_tokens"]
        expected = 2 * uncached + row["upstream_cached_tokens"] + 10 * row["upstream_output_tokens"]
        assert row.get("cost_micros") == (expected if row["model"] == "one" else None)
    lines_found = [line for line in report["lines"] if line["requests"]]
    assert len(requests) == 4
    assert {(line["model"], line["client"]): line["requests"] for line in lines_found} == requests
    assert {(line["model"], line["client"]): line["prompt"] for line in lines_found} == prompt
    for line in lines_found:
        micros = Decimal(line["cost"].get("EUR", "0")) * 1_000_000
        assert micros == cost[line["model"], line["client"]]
    assert web["lines"] == report["lines"]
    assert "one" in table and "total" in table
    assert "nothing was written without --yes" in same


def test_sighup_reads_the_configuration_again_and_a_faulty_one_changes_nothing(
    url: str, tmp_path: Path
) -> None:
    with gateway(tmp_path, url) as server:
        file = tmp_path / "tandem.yaml"
        good = file.read_text()
        file.write_text(good.replace("models: [one, two]", "models: [one, two, three]"))
        server.process.send_signal(signal.SIGHUP)
        wait_for(server, "settings.applied")
        ask(server, "ALICE", "three", 1)
        file.write_text("serverr: {}\n")
        server.process.send_signal(signal.SIGHUP)
        wait_for(server, "settings.refused")
        ask(server, "ALICE", "three", 1)


def test_sighup_reads_profiles_and_packages_again_and_a_faulty_one_changes_nothing(
    url: str, tmp_path: Path
) -> None:
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    with gateway(tmp_path, url) as server:
        (profiles / "own.yaml").write_text("name: own\nextends: coding\n")
        server.process.send_signal(signal.SIGHUP)
        wait_for(server, "settings.applied")
        (profiles / "own.yaml").write_text("name: own\nextends: codng\n")
        server.process.send_signal(signal.SIGHUP)
        wait_for(server, "settings.refused")
        (profiles / "own.yaml").unlink()
        (tmp_path / "packages").mkdir()
        package = "---\nid: a\ntitle: A\n---\nRead the log.\n"
        (tmp_path / "packages/a.md").write_text(package)
        server.process.send_signal(signal.SIGHUP)
        wait_for(server, "settings.applied", count=2)
    started, *applied = [line["config_rev"] for line in told(server) if "config_rev" in line]
    assert len({started, *applied}) == 3
    (problem,) = next(line["problems"] for line in told(server) if "problems" in line)
    nearest = "extends: no profile is named 'codng'; nearest: 'coding'"
    assert problem == f"{profiles}/own.yaml:2: {nearest}"


def told(server: Server) -> list[dict[str, Any]]:
    """What was logged of configurations."""
    lines = [json.loads(line) for line in server.lines if line.startswith("{")]
    events = ("gateway.started", "settings.applied", "settings.refused")
    return [line for line in lines if line["event"] in events]


def wait_for(server: Server, event: str, count: int = 1) -> None:
    until_s = time.monotonic() + 10
    while len(server.said(event)) < count:
        assert time.monotonic() < until_s, server.lines[-5:]
        time.sleep(0.02)


def test_sigterm_lets_a_relayed_stream_finish_and_flushes_the_books(
    url: str, tmp_path: Path
) -> None:
    Answering.go_on.clear()
    body = {"model": "one", "messages": [{}], "stream": True}
    headers = {"x-api-key": KEYS["ALICE"]}
    with gateway(tmp_path, url) as server:
        path = f"{server.base}/v1/chat/completions"
        with httpx.stream("POST", path, json=body, headers=headers, timeout=30) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            while httpx.get(f"{server.base}/health").status_code != 503:
                time.sleep(0.01)
            late = httpx.post(path, json=body, headers=headers)
            Answering.go_on.set()
            rest = list(lines)
        assert (late.status_code, late.headers["retry-after"]) == (503, "30")
        assert "data: [DONE]" in rest
        assert server.process.wait(30) == 0
        rows = [json.loads(line) for line in tandem(server, "ledger", "export", "--format", "jsonl")
                .splitlines()]  # fmt: skip
    assert sorted(row["outcome"] for row in rows) == ["refused", "succeeded"]


def test_no_line_and_no_row_holds_text_or_keys(url: str, tmp_path: Path) -> None:
    with gateway(tmp_path, url) as server:
        body = {"model": "one", "messages": [{"role": "user", "content": "canary-of-the-prompt"}]}
        for key in (KEYS["ALICE"], "canary-of-a-wrong-key"):
            httpx.post(
                f"{server.base}/v1/chat/completions?key=canary-of-the-query", json=body,
                headers={"authorization": f"Bearer {key}", "cookie": "canary-of-a-cookie"},
            )  # fmt: skip
        assert server.stop() == 0
        written = "".join(server.lines) + tandem(server, "ledger", "export", "--format", "jsonl")
        for path in server.state_dir.rglob("*"):
            if path.is_file():
                written += path.read_bytes().decode("latin-1")
    assert "canary" not in written
    assert not any(key in written for key in KEYS.values())
