"""The chunk of a machine: about a second at most, and the same at each start."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tiny_checkpoints import write_tiny

from proto.worker_settings import Launch, PrefillSettings, WorkerSettings
from worker import build
from worker.build import build_engine
from worker.chunk_size import ChunkFingerprint, ChunkSize
from worker.loading.locate import open_checkpoint
from worker.sampling.chooser import Chooser
from worker.sampling.params import Sampling
from worker.settings import Machine
from worker.state.ask import Ask

PRINT = ChunkFingerprint("hash", "bf16", "a CPU", "sdpa", 2, 8192, "2", default=256)
OTHER = ChunkFingerprint("x", "fp32", "b CPU", "flash", 3, 512, "3", default=512)


class Slow:
    """A machine on which a token takes so long; other load makes all but one read slower."""

    def __init__(self, token_s: float) -> None:
        self.token_s = token_s
        self.reads: list[int] = []

    def __call__(self, chunk: int) -> float:
        self.reads.append(chunk)
        load = 1.0 if self.reads.count(chunk) == 3 else 5.0
        return chunk * self.token_s * load


@pytest.mark.parametrize(
    ("token_s", "chunk"), [(0.001, 256), (1 / 256, 256), (0.0045, 128), (0.01, 64), (9.0, 64)]
)
def test_a_chunk_is_halved_until_it_takes_about_a_second(
    tmp_path: Path, token_s: float, chunk: int
):
    with capture_logs() as logs:
        assert ChunkSize(tmp_path / "chunks", PRINT).settle(Slow(token_s)) == chunk
    (line,) = logs
    assert (line["event"], line["tokens"], line["default"]) == ("chunk.chosen", chunk, 256)
    assert line["ms"] == pytest.approx(chunk * token_s * 1000, abs=0.1)


def test_the_next_start_takes_what_was_chosen_and_measures_nothing(tmp_path: Path):
    ChunkSize(tmp_path / "chunks", PRINT).settle(Slow(0.01))
    quicker = Slow(0.0001)
    with capture_logs() as logs:
        assert ChunkSize(tmp_path / "chunks", PRINT).settle(quicker) == 64
    assert not quicker.reads and not logs


@pytest.mark.parametrize("part", [field.name for field in fields(ChunkFingerprint)])
def test_a_worker_that_differs_in_any_part_measures_for_itself(part: str, tmp_path: Path):
    ChunkSize(tmp_path, PRINT).settle(Slow(0.01))
    other = replace(PRINT, **{part: getattr(OTHER, part)})
    assert ChunkSize(tmp_path, other).settle(Slow(0.0001)) == other.default


@pytest.mark.parametrize("value", ["7", '"64"', "1024", "0", "null", "64.0", "true"])
def test_a_file_that_makes_no_sense_is_measured_again(value: str, tmp_path: Path):
    ChunkSize(tmp_path, PRINT).settle(Slow(0.01))
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text().replace('"chunk": 64', f'"chunk": {value}'))
    assert ChunkSize(tmp_path, PRINT).settle(Slow(0.0045)) == 128
    file.write_text("{")
    assert ChunkSize(tmp_path, PRINT).settle(Slow(0.0045)) == 128


def test_a_folder_that_cannot_be_written_is_said_and_stops_nothing(tmp_path: Path):
    (tmp_path / "chunks").write_text("a file where a folder should be")
    with capture_logs() as logs:
        assert ChunkSize(tmp_path / "chunks", PRINT).settle(Slow(0.01)) == 64
    assert [line["event"] for line in logs] == ["chunk.chosen", "chunk.not_stored"]


def _chunk_of_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefill: int) -> int:
    """Of a real engine on a clock on which a token of a chunk takes a hundredth of a second."""
    write_tiny("llama", tmp_path)
    now = [0.0]
    forward = build.Decoder.forward

    def slowly(model, ids, *rest):
        now[0] += 0.01 * len(ids)
        return forward(model, ids, *rest)

    monkeypatch.setattr(build.Decoder, "forward", slowly)
    settings = WorkerSettings(weights="fp32", threads=1, prefill=PrefillSettings(prefill))
    launch = Launch(settings, "tiny", str(tmp_path), "ipc:///x", str(tmp_path / "state"))
    machine = Machine("cpu", threads=1, chunk=prefill or 256, lanes=1, slots=1)
    checkpoint = open_checkpoint(tmp_path)
    engine = build_engine(
        launch, machine, checkpoint, masked_ids=(), end_ids=(2,), clock=lambda: now[0],
        fits_chunk=True,
    )  # fmt: skip
    prompt = tuple([5] * 300)
    slot = engine.open(Ask(prompt, Chooser(Sampling(0.0, 1.0, 0, 0.0, 0), prompt)))
    assert slot.plan.chunk_end(0, 300) == engine.facts.chunk
    return engine.facts.chunk


def test_an_engine_reads_in_the_chunk_that_its_machine_was_measured_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert _chunk_of_engine(tmp_path, monkeypatch, 0) == 64
    assert list((tmp_path / "state" / "chunks").iterdir())


def test_a_chunk_that_was_set_is_never_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert _chunk_of_engine(tmp_path, monkeypatch, 256) == 256
    assert not (tmp_path / "state").exists()
