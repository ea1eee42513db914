"""`python -m worker` as the gateway starts it: a real process over a real socket."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted import submit
from started import WAIT_S, WorkerProcess, launch_of, write_served
from wire import Gateway

from proto.chat import Call, Message, TextPart
from proto.codec import to_wire
from proto.messages import Ack, Cancel, Delta, Done, Drain, Hello, Progress, Queued, Ready, Refused
from proto.worker_settings import SpeculationSettings, WeightLayout, WorkerSettings

HELLO = Hello("g", "i", 1, 1)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a tokenizer of its own and a ChatML template."""
    folder = tmp_path_factory.mktemp("checkpoint")
    write_served("llama", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture
def start(tmp_path: Path, checkpoint: Path) -> Iterator[Any]:
    started: list[WorkerProcess] = []

    def start_one(*options: str, **changes: Any) -> WorkerProcess:
        started.append(WorkerProcess(launch_of(checkpoint, tmp_path, **changes), *options))
        return started[-1]

    yield start_one
    for worker in started:
        worker.close()


def _endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/w.sock"


def test_a_run_from_hello_to_its_end_and_a_drain(start: Any, tmp_path: Path):
    worker = start()
    with Gateway(_endpoint(tmp_path)) as gateway:
        gateway.say(HELLO)
        ready = gateway.hear()
        assert isinstance(ready, Ready)
        assert (ready.model, ready.families, ready.layout) == ("tiny", ("llama",), "fp32")
        assert (ready.max_len, ready.row_invariant, ready.slots) == (512, True, 2)
        assert worker.started.wait(WAIT_S)
        said = next(json.loads(line) for line in worker.lines if "worker.started" in line)
        assert (said["device"], said["attention"]) == ("cpu", "sdpa")
        params = {"temperature": 0.9, "max_tokens": 12}
        texts = []
        for run_id in ("r1", "r2"):
            gateway.say(submit(run_id, "What is the capital of France?", params=params))
            heard = gateway.hear_until(Done)
            assert isinstance(heard[0], Queued)
            deltas = [m for m in heard if isinstance(m, Delta)]
            assert [d.first for d in deltas] == list(range(1, 13))
            done = heard[-1]
            assert isinstance(done, Done)
            assert (done.finish, done.detail, done.last_token) == ("length", "max_tokens", 12)
            texts.append([d.ids for d in deltas])
            gateway.say(Ack(run_id, done.last_token, done=True))
        assert texts[0] == texts[1]  # the same seed
        _drain_while_running(worker, gateway)
    finished = [json.loads(line) for line in worker.lines if "run.finished" in line]
    assert [(line["run_id"], line["finish"]) for line in finished] == [
        ("r1", "length"), ("r2", "length"), ("late", "refused"), ("long", "cancelled"),
    ]  # fmt: skip
    assert not (tmp_path / "w.sock").exists()


def _drain_while_running(worker: WorkerProcess, gateway: Gateway) -> None:
    long = {"temperature": 0.0, "max_tokens": 400}
    gateway.say(submit("long", "a", params=long, credit=3))
    while not (isinstance(m := gateway.hear(), Delta) and m.first == 3):
        assert isinstance(m, Queued | Progress | Delta)
    worker.process.send_signal(signal.SIGTERM)
    assert isinstance(gateway.hear(), Drain)
    gateway.say(submit("late", "a"))
    refused = gateway.hear()
    assert isinstance(refused, Refused)
    assert (refused.run_id, refused.code) == ("late", "draining")
    assert worker.process.poll() is None  # it waits for the run
    gateway.say(Cancel("long", 1, "gone"))
    done = gateway.hear()
    assert isinstance(done, Done)
    gateway.say(Ack("long", done.last_token, done=True))
    assert worker.wait() == 0


def test_a_stopped_worker_leaves_its_conversations_to_the_next(start: Any, tmp_path: Path):
    long = " ".join(f"word {number}" for number in range(60))
    said, sources = [], []
    for run_id in ("r1", "r2"):
        worker = start()
        with Gateway(_endpoint(tmp_path)) as gateway:
            gateway.say(HELLO)
            assert isinstance(gateway.hear(), Ready)
            gateway.say(submit(run_id, long, params={"temperature": 0.0, "max_tokens": 8}))
            heard = gateway.hear_until(Done)
            said.append([m.ids for m in heard if isinstance(m, Delta)])
            gateway.say(Ack(run_id, heard[-1].last_token, done=True))
            worker.process.send_signal(signal.SIGTERM)
            assert worker.wait() == 0
        lines = [json.loads(line) for line in worker.lines]
        sources += [line["cache_source"] for line in lines if line["event"] == "run.finished"]
        assert [line["conversations"] for line in lines if line["event"] == "spill.written"] == [1]
    assert sources == ["none", "spill"]
    assert said[0] == said[1]
    assert len(list((tmp_path / "spill").iterdir())) == 1


def test_a_second_worker_on_the_same_socket_does_not_start(start: Any, tmp_path: Path):
    first = start()
    assert first.started.wait(WAIT_S)
    second = start()
    assert second.wait() == 2
    assert [line for line in second.lines if "already listens" in line] == second.lines[-1:]
    with Gateway(_endpoint(tmp_path)) as gateway:
        gateway.say(HELLO)
        assert isinstance(gateway.hear(), Ready)


def test_a_worker_ends_with_its_parent(start: Any):
    worker = start("--exit-with-parent")
    assert worker.started.wait(WAIT_S)
    assert worker.process.poll() is None
    worker.process.stdin.close()
    worker.process.wait(WAIT_S)


def test_a_killed_worker_leaves_nothing_that_stops_the_next(start: Any, tmp_path: Path):
    first = start()
    assert first.started.wait(WAIT_S)
    first.process.kill()
    first.wait()
    assert (tmp_path / "w.sock").exists()
    start()
    with Gateway(_endpoint(tmp_path)) as gateway:
        gateway.say(HELLO)
        assert isinstance(gateway.hear(), Ready)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_path": "/nowhere/model.gguf"}, "There is no model at"),
        ({"endpoint": "tcp://0.0.0.0:5555"}, "not on loopback"),
    ],
)
def test_what_cannot_start_says_one_sentence(start: Any, tmp_path: Path, changes: Any, words: str):
    worker = start(**changes)
    assert worker.wait() == 2
    assert len(worker.lines) == 1
    assert words in worker.lines[0] and worker.lines[0].endswith(".\n")
    assert not (tmp_path / "w.sock").exists()


def _events(worker: WorkerProcess, start: str) -> list[str]:
    events = [json.loads(line)["event"] for line in worker.lines if line.startswith("{")]
    return [event for event in events if event.startswith(start)]


def test_prices_are_measured_at_the_first_start_or_when_asked_and_read_at_the_next(
    start: Any, checkpoint: Path, tmp_path: Path
):
    first = start()
    assert first.started.wait(WAIT_S)
    assert _events(first, "prices.") == ["prices.calibrated"]
    (stored,) = (tmp_path / "prices").iterdir()
    assert stored.stat().st_mode & 0o777 == 0o600
    parts, measured = json.loads(stored.read_text())["fingerprint"], stored.read_text()
    assert (parts["layout"], parts["threads"], parts["max_len"]) == ("fp32", 1, 512)
    command = [sys.executable, "-m", "worker", "--launch"]
    command += [json.dumps(to_wire(launch_of(checkpoint, tmp_path))), "--calibrate"]
    beside = subprocess.run(command, capture_output=True, text=True)
    assert (beside.returncode, beside.stdout) == (2, "")
    assert "already listens" in beside.stderr
    first.close()
    asked = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = asked.stdout.splitlines()
    assert [line.split()[0] for line in lines if line][1:4] == ["rows", "plain", "chain"]
    assert lines[-1] == f"Stored as {stored}."
    again = stored.read_text()
    assert again != measured
    last = start()
    assert last.started.wait(WAIT_S)
    assert (_events(last, "prices."), stored.read_text()) == ([], again)


def test_without_speculation_nothing_is_measured(start: Any, checkpoint: Path, tmp_path: Path):
    off = SpeculationSettings(enabled=False)
    settings = replace(launch_of(checkpoint, tmp_path).settings, speculation=off)
    worker = start(settings=settings)
    assert worker.started.wait(WAIT_S)
    assert _events(worker, "prices.") == [] and not (tmp_path / "prices").exists()
    asked = start("--calibrate", settings=settings, endpoint=f"ipc://{tmp_path}/other.sock")
    assert asked.wait() == 2
    assert asked.lines[-1].startswith("Nothing guesses tokens")


@pytest.mark.model
@pytest.mark.parametrize("weights", ["bf16", "int8", "q4", "mixed"])
def test_the_embedded_model_knows_the_capital_of_france(
    embedded_model: Path, tmp_path: Path, weights: WeightLayout
):
    # Measuring prices would take twenty seconds of each start.
    settings = WorkerSettings(weights=weights, speculation=SpeculationSettings(enabled=False))
    launch = launch_of(embedded_model, tmp_path, settings=settings)
    worker = WorkerProcess(launch)
    try:
        with Gateway(_endpoint(tmp_path)) as gateway:
            gateway.say(HELLO)
            ready = gateway.hear()
            assert isinstance(ready, Ready) and ready.layout == weights
            question = "What is the capital of France?"
            chat = Call("m", (Message("user", (TextPart(question),)),))
            raw = Call("m", (), prompt="The capital of France is")
            for run_id, call in (("chat", chat), ("raw", raw)):
                params = {"temperature": 0.0, "max_tokens": 16}
                gateway.say(submit(run_id, call=call, params=params))
                heard = gateway.hear_until(Done)
                text = "".join(p for m in heard if isinstance(m, Delta) for p in m.pieces)
                assert "Paris" in text
    finally:
        worker.close()


def test_a_log_line_goes_out_in_one_write():
    """The gateway writes to the same pipe: what goes out in two pieces may have a line between."""
    code = (
        "import os, sys, structlog; from worker.logs import configure_logging\n"
        "class Pipe:\n"
        "    def __init__(self): self.writes = []\n"
        "    def write(self, text): self.writes.append(text)\n"
        "    def flush(self): pass\n"
        "sys.stderr = pipe = Pipe(); configure_logging()\n"
        "structlog.get_logger().info('a.line')\n"
        "print(len(pipe.writes), pipe.writes[0].endswith('\\n'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["1", "True"], done.stderr
