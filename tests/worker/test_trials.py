"""What the engine measures of itself: through the functions that serve, beside every slot."""

import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from decoding import opened, read, write_on
from scripted import Clock
from tiny_checkpoints import write_tiny

from proto.worker_settings import Launch, SpeculationSettings, WorkerSettings
from worker.build import build_engine, settled
from worker.engine import Engine
from worker.kernels.attention import Step, Tree
from worker.loading.locate import open_checkpoint
from worker.models.decoder import Decoder
from worker.sampling.chooser import Chooser
from worker.sampling.params import Sampling
from worker.settings import Machine
from worker.speculation.calibration import Calibration, Cell, scope_of, trial_tree
from worker.speculation.prices import Prices
from worker.state.cache import SequenceCache

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
PLAIN = trial_tree(Cell(256, "plain", 1), 500)
CHAIN = trial_tree(Cell(256, "chain", 8), 500)
FORK = trial_tree(Cell(256, "tree", 8), 500)
CUDA = torch.device("cuda")


@pytest.fixture(scope="module", params=["llama", "qwen3_5_moe"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    write_tiny(request.param, path)
    return path


def _engine(path: Path, **changes: object) -> Engine:
    settings = replace(WorkerSettings(model=str(path), weights="fp32", threads=1))
    clock = changes.pop("clock", None)
    settings = replace(settings, **changes)
    return build_engine(
        Launch(settings, "tiny", str(path), "ipc:///x", "/x"),
        Machine("cpu", threads=1, chunk=32, lanes=1, slots=2),
        open_checkpoint(path),
        masked_ids=(511,),
        end_ids=(2,),
        **({} if clock is None else {"clock": clock}),
    )


class LazyDevice:
    """A device that is told what to do and does it later: a launch takes 1 ms, a row of a forward
    10, moving rows 3."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.clock, self._due_s = Clock(), 0.0
        forward, commit = Decoder.forward, SequenceCache.commit

        def launched(model: Decoder, ids: torch.Tensor, *rest: object) -> torch.Tensor:
            self._launch(0.010 * len(ids))
            return forward(model, ids, *rest)

        def moved(cache: SequenceCache, *rest: object) -> None:
            self._launch(0.003)
            commit(cache, *rest)

        patch.setattr(Decoder, "forward", launched)
        patch.setattr(SequenceCache, "commit", moved)
        patch.setattr(torch.cuda, "synchronize", self._wait)

    def _launch(self, work_s: float) -> None:
        self.clock.now += 0.001
        self._due_s += work_s

    def _wait(self, device: torch.device) -> None:
        self.clock.now, self._due_s = self.clock.now + self._due_s, 0.0


def test_b7_a_trial_is_timed_until_the_device_is_done(folder: Path, monkeypatch):
    device = LazyDevice(monkeypatch)
    trial = _engine(folder, clock=settled(device.clock, CUDA)).trials(300)
    assert trial(256, *PLAIN) == pytest.approx((11.0, 0.0))
    assert trial(256, *CHAIN) == pytest.approx((81.0, 4.0))
    assert trial(256, *FORK) == pytest.approx((81.0, 4.0))


def test_trials_run_what_rounds_run(folder: Path, monkeypatch):
    seen = []
    forward, logits = Decoder.forward, Decoder.logits
    monkeypatch.setattr(Decoder, "forward", lambda *given: seen.append(given[3]) or forward(*given))
    monkeypatch.setattr(
        Decoder, "logits", lambda *given: seen.append(len(given[1])) or logits(*given)
    )
    trial = _engine(folder).trials(300)
    for tree, path in (PLAIN, CHAIN, FORK):
        trial(256, tree, path)
    plain, one, chain, eight, fork, _ = seen
    assert isinstance(plain, Step) and plain.start == 256 and one == 1
    assert isinstance(chain, Tree) and (chain.start, chain.count, eight) == (256, 8, 8)
    assert int(chain.positions.max()) == 256 + 7 and int(fork.positions.max()) == 256 + 4


def test_a_trials_room_is_taken_once_and_given_back(folder: Path, monkeypatch):
    engine = _engine(folder)
    made = []
    new_cache = Decoder.new_cache
    monkeypatch.setattr(
        Decoder, "new_cache", lambda *given: made.append(new_cache(*given)) or made[-1]
    )
    trial = engine.trials(264)
    (cache,) = made
    held = cache.kv.size_bytes + (0 if cache.delta is None else cache.delta.size_bytes)
    assert held == engine.cache_bytes(264)
    for context in (1, 256, 17, 256):
        trial(context, *CHAIN)
    assert (len(made), cache.kv.capacity) == (1, 264)
    seen = weakref.ref(made.pop())
    del cache, trial
    assert seen() is None


def test_trials_leave_every_byte_of_the_slots(folder: Path):
    engine = _engine(folder)
    prompt = tuple(range(5, 60))
    slot = opened(engine, prompt, Chooser(GREEDY, prompt))
    read(engine, slot)
    frozen, free = slot.freeze(), engine.free_slots
    trial = engine.trials(300)
    for tree, path in (PLAIN, CHAIN, FORK, PLAIN):
        trial(200, tree, path)
    assert (slot.freeze() == frozen, engine.free_slots) == (True, free)
    assert len(write_on(engine, slot, 5)) == 5


def test_a_worker_without_guesses_needs_no_prices(folder: Path):
    assert _engine(folder).is_drafting
    assert not _engine(folder, speculation=SpeculationSettings(enabled=False)).is_drafting


def test_a_round_is_priced_by_the_rows_that_were_verified(folder: Path):
    engine = _engine(folder)
    column = {1: 10.0, 2: 11.0, 64: 12.0}
    engine.use_prices(
        Prices({256: 10.0}, {256: {"chain": column, "tree": column}}, {"chain": 0.5, "tree": 0.5})
    )
    prompt = (*range(5, 40), *range(5, 20))  # ends in what stood at its beginning
    # The first token is the one that the copy goes on with.
    slot = opened(engine, prompt, Chooser(replace(GREEDY, logit_bias={20: 100.0}), prompt))
    read(engine, slot)
    made = engine.round(slot, 60, lambda _: True)
    rows = len(made.tree)
    assert rows > 2
    assert made.price_ms == pytest.approx(11.0 + (rows - 2) / 62 + 0.5)  # what guessing took apart


def test_a_tiny_model_is_measured_whole_in_no_time(folder: Path):
    torch.set_num_threads(1)
    engine = _engine(folder)
    scope = scope_of(max_len=512, most_rows=64, vocab_size=512, samples=1, limit_s=1e9)
    calibration = Calibration(scope, clock := Clock())
    trial = engine.trials(calibration.length)
    while calibration.step(trial):
        continue
    prices = calibration.prices()
    assert clock.now == 1000.0
    assert set(prices.verify[256]["tree"]) == set(scope.rows)
