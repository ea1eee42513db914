"""Vectors of real tiny models against transformers' states, pooled by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from decoding import opened, write_on
from scripted import END, TOKENIZER, Bench, submit
from tiny_checkpoints import build, write_tiny

from proto.messages import Delta, Embed, Embedded
from proto.worker_settings import Launch, WorkerSettings
from worker.build import build_engine
from worker.embedding.embedder import Embedder
from worker.engine import Engine
from worker.faults import LoadFault
from worker.loading.locate import open_checkpoint
from worker.loading.pooling import Pooling
from worker.sampling.chooser import Chooser
from worker.sampling.params import Sampling
from worker.settings import Machine

TOLERANCE = 1e-5
IDS = tuple(torch.randint(0, 512, (150,), generator=torch.Generator().manual_seed(1)).tolist())
LENGTHS = (1, 2, 63, 64, 65, 150)
SEEDED = Sampling(temperature=1.0, top_p=0.95, top_k=50, min_p=0.0, seed=11)
KINDS = ("llama", "qwen3", "qwen2", "gemma3", "qwen3_5")
POOLED: dict[Pooling, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": lambda states: states.mean(0),
    "last": lambda states: states[-1],
    "first": lambda states: states[0],
}
FLAGS: dict[Pooling, str] = {
    "mean": "pooling_mode_mean_tokens",
    "last": "pooling_mode_lasttoken",
    "first": "pooling_mode_cls_token",
}


def _write_pooling(folder: Path, fields: dict[str, Any], modules: Any = None) -> None:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(fields))
    if modules is not None:
        (folder / "modules.json").write_text(json.dumps(modules))


def _engine(path: Path, chunk: int = 64) -> Engine:
    settings = WorkerSettings(model=str(path), weights="fp32", threads=1)
    launch = Launch(settings, "tiny", str(path), "ipc:///x", "/x")
    machine = Machine("cpu", threads=1, chunk=chunk, lanes=1, slots=2)
    checkpoint = open_checkpoint(path)
    unknown = tuple(range(len(TOKENIZER.token_bytes), 512))
    return build_engine(launch, machine, checkpoint, masked_ids=unknown, end_ids=(END,))


def _vector(embedder: Embedder, ids: tuple[int, ...]) -> torch.Tensor:
    embedder.start(ids)
    while (vector := embedder.read_chunk()) is None:
        continue
    return torch.tensor(vector)


@pytest.fixture(scope="module", params=KINDS)
def known(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A checkpoint of each kind, and transformers' states behind the final norm by text length."""
    folder = tmp_path_factory.mktemp(request.param)
    theirs = write_tiny(request.param, folder)
    with torch.inference_mode():
        states = {
            length: theirs.model(torch.tensor([IDS[:length]])).last_hidden_state[0]
            for length in LENGTHS
        }
    return folder, states


@pytest.mark.parametrize("pooling", POOLED)
def test_vectors_are_the_states_of_transformers_pooled_at_unit_length(known: Any, pooling: Pooling):
    folder, states = known
    model = build(folder)
    for chunk in (7, 64, 256):
        embedder = Embedder(model, pooling, chunk)
        for length in LENGTHS:
            pooled = POOLED[pooling](states[length])
            theirs = pooled / pooled.norm()
            ours = _vector(embedder, IDS[:length])
            assert (ours - theirs).abs().max() <= TOLERANCE, (chunk, length)
            assert abs(ours.norm().item() - 1) <= TOLERANCE


def test_poolings_and_texts_are_told_apart(known: Any):
    """The oracle could not fail if all of them were much the same."""
    model = build(known[0])
    vectors = [_vector(Embedder(model, pooling, 64), IDS) for pooling in POOLED]
    vectors.append(_vector(Embedder(model, "last", 64), IDS[1:]))
    vectors.append(_vector(Embedder(model, "last", 64), IDS[:-1]))
    for index, one in enumerate(vectors):
        for other in vectors[index + 1 :]:
            assert (one - other).abs().max() > 100 * TOLERANCE


def test_a_text_has_the_same_vector_whatever_was_read_before_it(known: Any):
    embedder = Embedder(build(known[0]), "mean", 64)
    alone = _vector(embedder, IDS[:65])
    embedder.stop()
    for before in (IDS, IDS[:3]):
        _vector(embedder, before)
        assert torch.equal(_vector(embedder, IDS[:65]), alone)


def test_no_byte_of_a_slot_is_changed_and_its_run_goes_on_as_it_would(known: Any):
    def read(engine: Engine) -> Any:
        slot = opened(engine, IDS[:90], Chooser(SEEDED, IDS[:90]), salt="theirs")
        engine.read_chunk(slot, 64)
        engine.read_chunk(slot, 90)
        return slot

    engine, undisturbed = _engine(known[0]), _engine(known[0])
    slot, other = read(engine), read(undisturbed)
    embedder = engine.embedder("mean")
    for _ in range(3):
        before = slot.freeze()
        _vector(embedder, IDS)
        assert slot.freeze() == before
        assert write_on(engine, slot, 3) == write_on(undisturbed, other, 3)
    assert slot.freeze() == other.freeze()
    assert engine.free_slots == 1


@pytest.mark.parametrize("kind", ["llama", "qwen3_5"])
def test_a_long_answer_is_written_as_if_nothing_was_asked(kind: str, tmp_path: Path):
    write_tiny(kind, tmp_path)
    written = []
    for is_asked in (False, True):
        engine = _engine(tmp_path, chunk=8)
        bench = Bench(embeds=True, engine=engine, embedder=engine.embedder("last"))
        bench.hello()
        bench.say(submit(params={"temperature": 1.0, "max_tokens": 60}))
        for number in range(12):
            bench.turn(4)
            if is_asked:
                bench.say(Embed(f"q{number}", ("the quick brown fox jumps " * 4, "a")))
        bench.turn_until_done("r1")
        written.append([index for delta in bench.messages(Delta) for index in delta.ids])
        assert len(bench.messages(Embedded)) >= 3 * is_asked
    assert written[0] == written[1]
    assert len(written[0]) == 60


def test_a_pooled_state_without_direction_is_a_fault(tmp_path: Path, monkeypatch: Any):
    write_tiny("llama", tmp_path)
    model = build(tmp_path)
    monkeypatch.setattr(model, "states", lambda hidden: hidden * 0)
    with pytest.raises(ValueError, match="direction"):
        _vector(Embedder(model, "mean", 64), IDS)


# What a folder says.


@pytest.mark.parametrize("pooling", FLAGS)
def test_a_folder_says_how_to_pool(tmp_path: Path, pooling: Pooling):
    write_tiny("llama", tmp_path)
    assert open_checkpoint(tmp_path).pooling is None
    flags = {flag: flag == FLAGS[pooling] for flag in FLAGS.values()}
    _write_pooling(tmp_path, {"word_embedding_dimension": 64, **flags, "include_prompt": True})
    assert open_checkpoint(tmp_path).pooling == pooling
    spelled = {"mean": "mean", "last": "lasttoken", "first": "cls"}[pooling]
    _write_pooling(tmp_path, {"pooling_mode": spelled})
    assert open_checkpoint(tmp_path).pooling == pooling


@pytest.mark.parametrize(
    ("fields", "modules", "reason"),
    [
        ({}, None, "of no mode"),
        ({"pooling_mode_max_tokens": True}, None, "max"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, None, "mean and cls"),
        ({"pooling_mode": "weightedmean"}, None, "weightedmean"),
        (
            {"pooling_mode_mean_tokens": True},
            [{"type": f"sentence_transformers.models.{kind}"} for kind in ("Pooling", "Dense")],
            "Dense",
        ),
    ],
)
def test_a_pooling_that_is_not_served_is_said_and_not_guessed(
    tmp_path: Path, capsys: Any, fields: Any, modules: Any, reason: str
):
    write_tiny("llama", tmp_path)
    _write_pooling(tmp_path, fields, modules)
    assert open_checkpoint(tmp_path).pooling is None
    said = capsys.readouterr().out
    assert "pooling.unsupported" in said and reason in said


def test_the_modules_of_an_embedding_model_are_known(tmp_path: Path):
    write_tiny("llama", tmp_path)
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [{"type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    _write_pooling(tmp_path, {"pooling_mode_lasttoken": True}, modules)
    assert open_checkpoint(tmp_path).pooling == "last"


def test_a_damaged_pooling_is_one_sentence(tmp_path: Path):
    write_tiny("llama", tmp_path)
    _write_pooling(tmp_path, {})
    (tmp_path / "1_Pooling" / "config.json").write_text("{")
    with pytest.raises(LoadFault, match="is not JSON"):
        open_checkpoint(tmp_path)


def test_a_checkpoint_that_was_saved_without_a_head_has_names_without_a_prefix(tmp_path: Path):
    theirs = write_tiny("qwen3", tmp_path, tie_word_embeddings=True)
    whole = _vector(Embedder(build(tmp_path), "last", 64), IDS)
    for file in tmp_path.glob("model*"):
        file.unlink()
    theirs.model.save_pretrained(tmp_path)
    assert torch.equal(_vector(Embedder(build(tmp_path), "last", 64), IDS), whole)
