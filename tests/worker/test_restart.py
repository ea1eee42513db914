"""What outlives a worker's process: conversations by a planned stop, prefixes by a disk tier."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors import safe_open
from scripted import submit
from started import WAIT_S, WorkerProcess, launch_of, write_served
from tiny_text import tiny_tokenizer
from wire import Gateway

from proto.chat import Call
from proto.messages import Ack, Delta, Done, Hello, Queued, Ready
from proto.worker_settings import (
    CacheSettings,
    DiskSettings,
    PrefillSettings,
    SpeculationSettings,
    WorkerSettings,
)
from worker.state.state_file import owner_of

CHUNK, CHUNKS = 32, 3  # tokens of a chunk; whole ones of a first prompt
TOKENIZER = tiny_tokenizer()
# Each of them a token beside any other, so that an answer's text gives its ids again.
BIAS = {str(TOKENIZER.encode_literal(digit)[0]): 100.0 for digit in "0123456789"}
PARAMS = {"max_tokens": 16, "temperature": 1.0, "logit_bias": BIAS, "top_logprobs": 0}
FIRST = " ".join(f"Text number {number} is read." for number in range(7))
MORE = " and what comes after that?"
NEARLY = 1e-4  # of log-probabilities: rows of chunks and of steps are rounded differently


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt and what was said to it. `prompt_tokens`: of which `cached_tokens` were kept."""

    prompt: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    prompt_tokens: int
    cached_tokens: int
    source: str

    @property
    def next_prompt(self) -> str:
        """What the conversation goes on with."""
        return self.prompt + self.text + MORE

    @property
    def held_tokens(self) -> int:
        """All that was forwarded: the last token of an answer is not."""
        return self.prompt_tokens + len(self.ids) - 1


class Served:
    """A worker process that answers raw prompts, one after another."""

    def __init__(self, worker: WorkerProcess, gateway: Gateway) -> None:
        self._worker = worker
        self._gateway = gateway
        self._runs = 0
        gateway.say(Hello("g", "i", 1, 1))
        assert isinstance(gateway.hear(), Ready)

    def answer(self, prompt: str, salt: str, *, is_cold: bool = False) -> Turn:
        """A turn. `is_cold`: nothing that is kept is used, and nothing is kept."""
        self._runs += 1
        run_id = f"r{self._runs}"
        params = {**PARAMS, "cache_prompt": not is_cold}
        call = Call("m", (), prompt=prompt)
        self._gateway.say(submit(run_id, call=call, params=params, cache_salt=salt))
        heard = self._gateway.hear_until(Done)
        queued, done = heard[0], heard[-1]
        assert isinstance(queued, Queued) and isinstance(done, Done)
        assert (done.finish, done.detail) == ("length", "max_tokens")
        self._gateway.say(Ack(run_id, done.last_token, done=True))
        deltas = [message for message in heard if isinstance(message, Delta)]
        return Turn(
            prompt,
            tuple(one for delta in deltas for one in delta.ids),
            tuple(one.chosen.logprob for delta in deltas for one in delta.logprobs or () if one),
            "".join(piece for delta in deltas for piece in delta.pieces),
            queued.prompt_tokens,
            done.usage.cached_tokens,
            done.cache_source,
        )

    def goes_on(self, turn: Turn, salt: str) -> Turn:
        """The next turn, which says what it says without any kept state."""
        answer = self.answer(turn.next_prompt, salt)
        cold = self.answer(turn.next_prompt, salt, is_cold=True)
        assert (cold.source, cold.cached_tokens) == ("none", 0)
        assert answer.ids == cold.ids and len(set(answer.ids)) > 1
        # Which tell of a wrong state where the tokens happen to be the same.
        assert len(cold.logprobs) == len(cold.ids)
        most = 0.0 if answer.source == "disk" else NEARLY  # what is on disk gives the same bits
        assert answer.logprobs == pytest.approx(cold.logprobs, abs=most)
        return answer

    def stop(self) -> None:
        """A planned stop."""
        self._worker.process.send_signal(signal.SIGTERM)
        assert self._worker.wait() == 0

    def kill(self) -> None:
        """No time for anything."""
        self._worker.process.kill()
        self._worker.wait()

    def refusals(self) -> list[str]:
        """Of files, in the order in which they were found, after the end of the process."""
        lines = [json.loads(line) for line in self._worker.lines if line.startswith("{")]
        return [line["reason"] for line in lines if line["event"] == "kept_files.refused"]


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    # Weights that are wide enough for each answer to depend on what is kept.
    write_served(request.param, folder, initializer_range=0.1)
    return folder


@contextmanager
def _served(
    model: Path, folder: Path, *, has_disk: bool = False, is_drafting: bool = False
) -> Iterator[Served]:
    disk = DiskSettings(dir=str(folder / "disk") if has_disk else None, min_hits=1)
    settings = WorkerSettings(
        model=str(model),
        weights="fp32",
        threads=1,
        prefill=PrefillSettings(chunk=CHUNK),
        speculation=SpeculationSettings(enabled=is_drafting, max_rows=4),
        cache=CacheSettings(disk=disk),
    )
    worker = WorkerProcess(launch_of(model, folder, settings=settings))
    try:
        with Gateway(f"ipc://{folder}/w.sock") as gateway:
            yield Served(worker, gateway)
    finally:
        worker.close()


def _files(folder: Path, salt: str) -> dict[str, Path]:
    """What is kept for a salt, by kind and first position."""
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            says = file.metadata()
            ends = len(file.get_tensor("ids")) + int(says["start"])
        if says["owner"] == owner_of(salt):
            found[f"{says['kind']} to {ends}"] = path
    return found


def _wait_for_files(folder: Path, salt: str, names: set[str]) -> dict[str, Path]:
    deadline = time.monotonic() + WAIT_S
    while (found := _files(folder, salt)).keys() != names:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


def _flip(path: Path) -> None:
    """Another bit in a file's payload, between its header and its ids, which are its end."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_x12_a_killed_worker_goes_on_from_disk_and_any_damage_costs_only_speed(
    model: Path, tmp_path: Path
):
    disk = tmp_path / "disk"
    chunks = {f"rows to {CHUNK * number}" for number in range(1, CHUNKS + 1)}
    states = {f"state to {CHUNK * CHUNKS}"} if "qwen3_5" in str(model) else set()
    turns, files = {}, {}
    with _served(model, tmp_path, has_disk=True) as worker:
        for salt in ("sound", "damaged"):
            first = worker.answer(FIRST, salt)
            assert (first.source, first.prompt_tokens // CHUNK) == ("none", CHUNKS)
            turns[salt] = worker.goes_on(first, salt)
            assert turns[salt].cached_tokens == first.held_tokens
            files[salt] = _wait_for_files(disk, salt, chunks | states)
        worker.kill()
    assert not (tmp_path / "spill").exists()
    broken = files["damaged"][f"rows to {CHUNK}"]
    _flip(broken)
    with _served(model, tmp_path, has_disk=True) as worker:
        third = worker.goes_on(turns["sound"], "sound")
        assert (third.source, third.cached_tokens) == ("disk", CHUNK * CHUNKS)
        third = worker.goes_on(turns["damaged"], "damaged")
        assert (third.source, third.cached_tokens) == ("none", 0)
        assert not broken.exists() and all(path.exists() for path in files["sound"].values())
        worker.kill()
        assert worker.refusals() == ["damaged"]


def test_x12_a_stopped_worker_goes_on_from_its_spill_and_a_killed_one_from_nothing(
    model: Path, tmp_path: Path
):
    spill, turns = tmp_path / "spill", {}
    salts = ("sound", "short", "flipped")  # one more than there are slots
    with _served(model, tmp_path, is_drafting=True) as worker:
        turns = {salt: worker.goes_on(worker.answer(FIRST, salt), salt) for salt in salts}
        worker.kill()
    assert not spill.exists()
    with _served(model, tmp_path, is_drafting=True) as worker:
        for salt, turn in turns.items():
            turns[salt] = third = worker.goes_on(turn, salt)
            assert (third.source, third.cached_tokens) == ("none", 0)
        worker.stop()
    name = {salt: f"session to {turn.held_tokens}" for salt, turn in turns.items()}
    files = {salt: _files(spill, salt) for salt in salts}
    assert {salt: list(found) for salt, found in files.items()} == {s: [name[s]] for s in salts}
    short, flipped = files["short"][name["short"]], files["flipped"][name["flipped"]]
    short.write_bytes(short.read_bytes()[:-1])
    _flip(flipped)
    with _served(model, tmp_path, is_drafting=True) as worker:
        assert not short.exists() and flipped.exists()  # a payload is read when it is needed
        fourth = worker.goes_on(turns["sound"], "sound")
        assert (fourth.source, fourth.cached_tokens) == ("spill", turns["sound"].held_tokens)
        for salt in ("short", "flipped"):
            fourth = worker.goes_on(turns[salt], salt)
            assert (fourth.source, fourth.cached_tokens) == ("none", 0)
        assert list(spill.iterdir()) == []
        worker.kill()
        assert worker.refusals() == ["damaged", "damaged"]
