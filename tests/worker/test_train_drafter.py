"""Training of block drafters: recording, learning, going on, and what comes of it."""

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_checkpoints import KINDS, write_tiny
from tiny_text import tiny_tokenizer
from torch import Tensor
from torch.nn.functional import kl_div

from proto.codec import to_wire
from proto.worker_settings import Launch, WorkerSettings
from worker.draft.block import BlockDrafter
from worker.draft.block_config import BlockConfig, Origin, block_config_to_json
from worker.draft.block_model import BlockModel, load_block_model
from worker.draft.train import loss as loss_module
from worker.draft.train.__main__ import STOPPED_STATUS, main
from worker.draft.train.evaluation import Yield, likeliest_part, replay, replay_all
from worker.draft.train.lanes import Lanes, LanesAttention, Likeliest
from worker.draft.train.loss import Wanted, loss_of, slot_weights, vocabulary_of
from worker.draft.train.network import Blocks, Network, fresh_weights, with_scaled_taps
from worker.draft.train.prompts import read_prompts, seed_prompts
from worker.draft.train.recording import Recording, Sample, Writer, is_greedy, is_held_out
from worker.draft.train.target import drafter_config
from worker.draft.train.training import Recipe, TargetTensors, Trainer, channel_scale
from worker.faults import StartFault
from worker.kernels.attention import Prefill
from worker.loading.locate import open_checkpoint
from worker.models.decoder import Decoder, Taps
from worker.models.layouts import Layout
from worker.sampling.chooser import Chooser
from worker.speculation.tree import DraftTree, Source, ordered

TAPS, SHIFTED = (0, 1, 2), (1, 2, 3)
MASK, END = 95, 94
# Small weights: what a random model with large ones writes is noise, and cannot be learnt.
SMALL = {"vocab_size": 96, "tie_word_embeddings": True, "initializer_range": 0.05}
PROMPTS = [tuple((7 * i + 3 * j) % 90 for j in range(3 + i % 4)) for i in range(60)]
MAX_LEN = 512
Tiny = tuple[Decoder, BlockConfig, TargetTensors, Tensor]


def lanes_model(folder: Path) -> Decoder:
    checkpoint = open_checkpoint(folder)
    layout = Layout("fp32", torch.device("cpu"))
    return Decoder(
        checkpoint.config, checkpoint.tensors, LanesAttention(), layout=layout, max_len=MAX_LEN
    )


@pytest.fixture(scope="module", autouse=True)
def a_process_as_it_was() -> Iterator[None]:
    """The command is made for a process of its own: it changes what all tests share."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    threads, handlers = torch.get_num_threads(), [signal.getsignal(each) for each in numbers]
    umask = os.umask(0o022)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    os.umask(umask)
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("target")
    write_tiny("llama", folder, **SMALL)
    model = lanes_model(folder)
    config = drafter_config(model.config, Origin(), mask_id=MASK, layers=1, block=5, taps=1)
    config = replace(config, taps=TAPS)
    head = open_checkpoint(folder).tensors.read("model.embed_tokens.weight", (96, 64))
    norm = torch.ones(64) / head.square().sum(-1).mean().sqrt()
    return model, config, TargetTensors(model.embed, head), norm


def write(
    model: Decoder, recording: Recording, tokens: int, prompts: Sequence[tuple[int, ...]] = PROMPTS
) -> None:
    Writer(
        model,
        recording,
        prompts,
        taps=TAPS,
        lanes=8,
        answer=48,
        end_ids=(END,),
        masked=(MASK,),
        seed=5,
    ).write(lambda written: written < tokens)


@pytest.fixture(scope="module")
def recording(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    recording = Recording(tmp_path_factory.mktemp("recording"))
    write(tiny[0], recording, 5000)
    return recording


def trainer_of(tiny: Tiny, recording: Recording) -> Trainer:
    _, config, tensors, norm = tiny
    recipe = Recipe(sequences=4, blocks=32, rate=5e-3)
    scale = channel_scale(recording, recording.samples)
    return Trainer(config, fresh_weights(config, norm, seed=1), scale, tensors, recipe)


def export(folder: Path, trainer: Trainer, config: BlockConfig) -> None:
    folder.mkdir(exist_ok=True)
    weights = {name: value.detach() for name, value in trainer.weights.items()}
    save_file(with_scaled_taps(weights, trainer.scale), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(block_config_to_json(config)))


def drafter_of(model: BlockModel, max_rows: int = 16) -> BlockDrafter:
    return BlockDrafter(model, max_len=MAX_LEN, max_rows=max_rows, step=64)


def trial(model: BlockModel, samples: Sequence[Sample]) -> Yield:
    return replay_all(samples, [drafter_of(model)], max_rows=16, is_chain=True)


@torch.no_grad()
def alone(model: Decoder, ids: Tensor, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Taps and logits of a sequence by itself."""
    cache, taps = model.new_cache(64), Taps(layers)
    cache.reserve(len(ids))
    hidden = model.forward(ids, cache, Prefill(0, len(ids)), taps)
    return taps.joined(), model.logits(hidden)


# Writing.


@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen3"])
def test_sequences_in_lanes_are_those_of_each_alone(kind: str, tmp_path: Path):
    # What lanes get to is longer than the window of layers that have one.
    assert KINDS[kind].changes.get("sliding_window", 16) < 18 + 12
    write_tiny(kind, tmp_path)
    model = lanes_model(tmp_path)
    lanes = Lanes(model, lanes=3, capacity=48, taps=TAPS, masked=(7,))
    ids = [list(range(20, 25)), list(range(60, 78)), [9]]
    taps: list[list[Tensor]] = []
    for lane, prompt in enumerate(ids):
        rows, likeliest = lanes.read(lane, prompt)
        taps.append([rows])
        prompt.append(int(likeliest.ids[0, 0]))
    for _ in range(12):
        rows, likeliest = lanes.step(torch.tensor([sequence[-1] for sequence in ids]))
        for lane, sequence in enumerate(ids):
            taps[lane].append(rows[lane : lane + 1])
            sequence.append(int(likeliest.ids[lane, 0]))
    for lane, sequence in enumerate(ids):
        exact, logits = alone(model, torch.tensor(sequence[:-1]), TAPS)
        assert torch.allclose(torch.cat(taps[lane]), exact, atol=1e-4)
        logits[:, 7] = -torch.inf
        assert logits[-13:].argmax(-1).tolist() == sequence[-13:]
        best = logits[-1].log_softmax(-1).topk(64)
        assert torch.allclose(likeliest.logprobs[lane], best.values, atol=1e-4)


def test_a_recording_holds_what_the_target_makes_of_its_text(tiny: Tiny, recording: Recording):
    for at in (recording.samples[0], recording.samples[70]):
        sample = recording.load(at)
        taps, logits = alone(tiny[0], sample.ids[:-1], TAPS)
        assert (len(sample.ids), sample.prompt) == (at.tokens, at.prompt)
        assert (sample.taps.float() - taps).norm() < 5e-3 * taps.norm()  # half precision on disk
        wanted = logits[sample.prompt :]
        wanted[:, MASK] = -torch.inf
        assert torch.equal(sample.likeliest.ids[:, 0], wanted.argmax(-1))
        best = wanted.log_softmax(-1).topk(64).values
        assert torch.allclose(sample.likeliest.logprobs, best, atol=2e-2)
        if at.is_greedy:
            assert torch.equal(sample.ids[sample.prompt + 1 :], sample.likeliest.ids[:, 0])
        assert MASK not in sample.ids[sample.prompt :]


def test_some_answers_are_sampled_and_those_to_held_out_prompts_never(recording: Recording):
    kinds = {(at.is_greedy, is_held_out(at.number, 60)) for at in recording.samples}
    assert kinds == {(True, True), (True, False), (False, False)}
    sampled = [recording.load(at) for at in recording.samples if not at.is_greedy]
    assert any(not torch.equal(s.ids[s.prompt + 1 :], s.likeliest.ids[:, 0]) for s in sampled)
    assert all(at.is_greedy == is_greedy(at.number, 60) for at in recording.samples)


def test_a_recording_goes_on_where_it_was_stopped(tiny: Tiny, tmp_path: Path):
    recording = Recording(tmp_path)
    recording.seconds = 12.5
    write(tiny[0], recording, 900)
    again = Recording(tmp_path)
    assert (again.samples, again.seconds) == (recording.samples, 12.5)
    assert again.written > 600
    write(tiny[0], again, 1800)
    numbers = [at.number for at in Recording(tmp_path).samples]
    assert len(numbers) == len(set(numbers)) > len(recording.samples)


def test_prompts_are_a_persons_lines_or_thousands_of_our_own(tmp_path: Path):
    ours = seed_prompts()
    assert len(ours) == len(set(ours)) > 2500
    assert not any("{" in prompt or "[" in prompt[:1] for prompt in ours)
    (tmp_path / "b.txt").write_text("two\n\n one \n")
    (tmp_path / "a.txt").write_text("one\nthree\n")
    (tmp_path / "c.md").write_text("four\n")
    assert read_prompts(tmp_path) == ["one", "three", "two"]
    assert read_prompts(tmp_path / "b.txt") == ["two", "one"]
    with pytest.raises(StartFault, match="cannot be read"):
        read_prompts(tmp_path / "d.txt")
    (tmp_path / "b.txt").write_text("\n")
    with pytest.raises(StartFault, match="no prompt"):
        read_prompts(tmp_path / "b.txt")


# Learning.


def test_the_network_that_learns_is_the_one_that_serves(tiny: Tiny, tmp_path: Path):
    model, config, tensors, norm = tiny
    config = replace(
        config, shape=replace(config.shape, layers=("full", "full")), causal=(False,) * 2
    )
    source = torch.Generator().manual_seed(4)
    weights = {
        name: value + 0.1 * torch.randn(value.shape, generator=source)
        for name, value in fresh_weights(config, norm, seed=1).items()
    }
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(block_config_to_json(config)))
    serving = load_block_model(tmp_path, model, Origin(), max_len=MAX_LEN)
    taps = torch.randn(2, 20, 3 * 64, generator=source)
    anchors, roots = torch.tensor([[3, 9, 15], [1, 10, 20]]), torch.tensor([[5, 6, 7], [8, 9, 10]])
    blocks = Blocks(
        taps,
        anchors,
        tensors.embed(roots.flatten()).view(2, 3, 64),
        tensors.embed(torch.tensor(MASK)),
    )
    states = Network(config, weights).states(blocks)
    assert states.shape == (2, 3, 4, 64)
    for sequence in range(2):
        for block in range(3):
            start = int(anchors[sequence, block])
            cache = serving.new_cache(64)
            serving.read(taps[sequence, :start], cache, 0)
            logits = serving.guess(int(roots[sequence, block]), cache, start)
            learning = states[sequence, block] @ tensors.head.T
            assert torch.allclose(learning, logits, atol=1e-4 * logits.abs().max())


def test_the_loss_is_cross_entropy_and_divergence_weighted_by_slot():
    source = torch.Generator().manual_seed(3)
    states, head = torch.randn(6, 16, generator=source), torch.randn(50, 16, generator=source)
    target = (torch.randn(6, 50, generator=source) * 2).log_softmax(-1)
    best = target.topk(50)
    weights = slot_weights(3).repeat(2)
    assert torch.allclose(weights, torch.tensor([1, 0.8, 0.64, 1, 0.8, 0.64]))
    wanted = Wanted(best.indices, best.values, weights)
    found, is_right = loss_of(states, head, wanted, vocabulary_of(wanted, 50, source))
    logprobs = (states @ head.T).log_softmax(-1)
    crossed = -logprobs.gather(1, best.indices[:, :1])[:, 0]
    divergence = kl_div(logprobs, target, log_target=True, reduction="none").sum(-1)
    exact = ((crossed + 0.5 * divergence) * weights).sum() / weights.sum()
    assert torch.allclose(found, exact, rtol=1e-5)
    assert torch.equal(is_right, logprobs.argmax(-1) == best.indices[:, 0])


def test_a_part_of_the_vocabulary_stands_for_all_of_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loss_module, "OTHERS", 200)
    source = torch.Generator().manual_seed(3)
    states, head = torch.randn(4, 16, generator=source), torch.randn(2000, 16, generator=source)
    best = (states @ head.T).log_softmax(-1)[:, :900].topk(5)
    wanted = Wanted(best.indices, best.values, torch.ones(4))
    sums = []
    for _ in range(400):
        vocabulary = vocabulary_of(wanted, 2000, source)
        assert len(vocabulary.ids.unique()) == len(vocabulary.ids) == vocabulary.named + 200
        logits = states @ head[vocabulary.ids].T + vocabulary.offsets
        sums.append(logits.double().exp().sum(-1))
    exact = (states @ head.T).double().exp().sum(-1)
    assert torch.allclose(torch.stack(sums).mean(0), exact, rtol=0.1)


def test_learning_that_was_stopped_ends_with_the_weights_of_learning_that_was_not(
    tiny: Tiny, recording: Recording, tmp_path: Path
):
    whole, first = trainer_of(tiny, recording), trainer_of(tiny, recording)
    samples = recording.samples[:40]
    for step in range(8):
        whole.learn(recording, samples, step / 8)
    for step in range(5):
        first.learn(recording, samples, step / 8)
    first.save(tmp_path / "state.safetensors", seconds=33.0)
    second = trainer_of(tiny, recording)
    assert second.restore(tmp_path / "state.safetensors") == 33.0
    for step in range(5, 8):
        second.learn(recording, samples, step / 8)
    assert (second.step, whole.step) == (8, 8)
    assert all(torch.equal(second.weights[name], whole.weights[name]) for name in whole.weights)
    assert not torch.equal(first.weights["fc.weight"], whole.weights["fc.weight"])


def test_a_batch_asks_each_slot_for_what_the_target_chose_behind_it(
    tiny: Tiny, recording: Recording
):
    trainer, slots = trainer_of(tiny, recording), 4
    at = min(recording.samples, key=lambda at: at.tokens - at.prompt)
    sample, source = recording.load(at), torch.Generator().manual_seed(9)
    batch = trainer._batch(recording, [at], source)
    blocks, rows = batch.blocks, iter(range(len(batch.kept)))
    assert torch.allclose(blocks.taps[0] * trainer.scale, sample.taps.float(), rtol=1e-5)
    for block, anchor in enumerate(blocks.anchors[0].tolist()):
        assert sample.prompt <= anchor < len(sample.ids) - 1
        assert torch.equal(blocks.roots[0, block], tiny[2].embed(sample.ids[anchor]))
        for slot in range(slots):
            behind = anchor + slot - sample.prompt  # among the written tokens
            place = block * slots + slot
            assert (place in batch.kept.tolist()) == (behind < len(sample.likeliest.ids))
            if behind < len(sample.likeliest.ids):
                row = next(rows)
                assert torch.equal(batch.wanted.ids[row], sample.likeliest.ids[behind])
                assert torch.isclose(batch.wanted.weights[row], torch.tensor(0.8**slot))


def test_blocks_learn_only_what_is_behind_their_root(tiny: Tiny, recording: Recording):
    # What the target makes of later tokens must not reach a block: it will not be there.
    trainer = trainer_of(tiny, recording)
    samples = recording.samples[:1]
    source = torch.Generator().manual_seed(9)
    batch = trainer._batch(recording, samples, source)
    begin = int(batch.blocks.anchors.min())
    states = trainer._network.states(batch.blocks)
    at = batch.blocks.anchors == begin
    batch.blocks.taps[:, begin:] = 100.0
    moved = trainer._network.states(batch.blocks)
    assert torch.equal(states[at], moved[at])
    batch.blocks.taps[:, begin - 1] = 100.0
    assert not torch.equal(states[at], trainer._network.states(batch.blocks)[at])


@pytest.fixture(scope="module")
def trained(tiny: Tiny, recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, trainer = tmp_path_factory.mktemp("trained"), trainer_of(tiny, recording)
    export(folder / "before", trainer, tiny[1])
    learnt = [at for at in recording.samples if not is_held_out(at.number, 60)]
    for step in range(200):
        trainer.learn(recording, learnt, step / 200)
    export(folder / "after", trainer, tiny[1])
    return folder


def held_out(recording: Recording) -> list[Sample]:
    return [recording.load(at) for at in recording.samples if is_held_out(at.number, 60)]


def test_200_steps_raise_what_is_accepted(trained: Path, tiny: Tiny, recording: Recording):
    found = []
    for name in ("before", "after"):
        model = load_block_model(trained / name, tiny[0], Origin(), max_len=MAX_LEN)
        found.append(trial(model, held_out(recording)))
    assert found[0].tokens == found[1].tokens > 100
    assert found[1].tokens_per_round > found[0].tokens_per_round + 0.5


def test_b56_a_drafter_accepts_less_when_its_taps_come_from_the_next_layer(
    trained: Path, tiny: Tiny, recording: Recording
):
    model = load_block_model(trained / "after", tiny[0], Origin(), max_len=MAX_LEN)
    samples = [recording.load(at) for at in recording.samples if at.is_greedy]
    shifted = [replace(each, taps=alone(tiny[0], each.ids[:-1], SHIFTED)[0]) for each in samples]
    exact = [replace(each, taps=alone(tiny[0], each.ids[:-1], TAPS)[0]) for each in samples]
    right, wrong = (trial(model, each) for each in (exact, shifted))
    assert right.tokens_per_round > wrong.tokens_per_round + 0.1


@torch.inference_mode()
def test_b56_taps_are_the_residual_stream_behind_their_layer(tmp_path: Path):
    theirs = write_tiny("llama", tmp_path)
    ids = torch.arange(30, 50)
    states = theirs(ids[None], output_hidden_states=True).hidden_states
    taps, _ = alone(lanes_model(tmp_path), ids, (2, 0))
    wanted = torch.cat((states[3][0], states[1][0]), dim=-1)
    assert torch.allclose(taps, wanted, atol=1e-4)


# The trial.


class Scripted:
    """Proposes what comes next in a known text, and after `right` tokens something else."""

    source, tapped = Source.LOOKUP, ()

    def __init__(self, text: Sequence[int], right: int, wrong: int) -> None:
        self._text, self._right, self._wrong = list(text), right, wrong
        self.synced: list[int] = []

    def start(self, salt: str | None, kept: int = 0) -> None:
        self.synced = [0]

    def rewind(self, length: int) -> None: ...

    def sync(self, ctx: Sequence[int], taps: Tensor | None) -> None:
        assert taps is None
        self.synced.append(len(ctx))

    def propose(self, ctx: Sequence[int], room: int, chooser: Chooser) -> DraftTree | None:
        tokens = self._text[len(ctx) : len(ctx) + self._right] + [99] * self._wrong
        tokens = [ctx[-1], *tokens[:room]]
        return ordered(
            tokens, range(-1, len(tokens) - 1), [0.9**i for i in range(len(tokens))],
            [self.source] * len(tokens),
        )  # fmt: skip

    def freeze(self) -> tuple[Tensor, ...]:
        return ()

    def thaw(self, ctx: Sequence[int], tensors: tuple[Tensor, ...]) -> None: ...


def text_of(tokens: int, prompt: int) -> Sample:
    likeliest = Likeliest(torch.zeros(0, 1), torch.zeros(0, 1))
    return Sample(torch.arange(10, 10 + tokens), prompt, torch.zeros(tokens - 1, 4), likeliest)


def test_a_replay_commits_what_is_right_and_one_more():
    sample = text_of(tokens=26, prompt=5)  # 20 tokens behind the first written one
    three, none = Scripted(sample.ids.tolist(), 3, 1), Scripted(sample.ids.tolist(), 0, 2)
    found = replay(sample, [three], max_rows=16)
    assert (found.rounds, found.tokens, found.tokens_per_round) == (5, 20, 4.0)
    assert three.synced == [0, 6, 10, 14, 18, 22, 26]
    assert replay(sample, [none], max_rows=16).tokens_per_round == 1.0
    assert replay(sample, [], max_rows=16) == Yield(20, 20, 20)
    assert replay(sample, [none, three], max_rows=16).tokens_per_round == 4.0
    assert replay(sample, [none], max_rows=16).rows_per_round > 2.5
    assert replay_all([sample, sample], [three], max_rows=16) == Yield(10, 40, found.rows * 2)


def test_only_the_likeliest_rows_are_verified():
    sample = text_of(tokens=26, prompt=5)
    three = Scripted(sample.ids.tolist(), 3, 1)
    assert replay(sample, [three], max_rows=3) == Yield(7, 20, 21)
    tree = ordered([1, 2, 3, 4, 5], [-1, 0, 1, 0, 3], [1, 0.6, 0.2, 0.4, 0.3], [Source.BLOCK] * 5)
    assert likeliest_part(tree, 4).tokens == (1, 2, 4, 5)
    assert likeliest_part(tree, 9) == tree


# The whole.


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    folder = tmp_path / "model"
    write_tiny("llama", folder)
    (folder / "tokenizer.json").write_text(tiny_tokenizer().serialized)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    settings = WorkerSettings(model=str(folder), weights="fp32", threads=1)
    return Launch(settings, "tiny", str(folder), "ipc:///x", str(tmp_path / "state"))


def train(launch: Launch, *options: str) -> int:
    told = json.dumps(to_wire(launch))
    small = ("--lanes", "4", "--answer", "12", "--layers", "1", "--block", "4", "--taps", "2")
    return main(["--launch", told, *small, *options])


def test_the_command_makes_a_drafter_that_the_engine_loads(
    launch: Launch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    assert train(launch, "--tokens", "900", "--steps", "2") == 0
    out = tmp_path / "state" / "drafters" / "model"
    checkpoint = open_checkpoint(Path(launch.model_path))
    origin = Origin(checkpoint.weights_hash, tiny_tokenizer().hash)
    model = load_block_model(out, lanes_model(Path(launch.model_path)), origin, max_len=256)
    assert model.config.origin == origin
    assert (model.config.block_size, model.config.taps) == (4, (1, 1)) or model.config.taps
    said = capfd.readouterr().err
    for part in (
        "writing",
        "learning",
        "before learning, block  chain: 1.",
        "after learning",
        "done",
    ):
        assert part in said
    assert all(path.stat().st_mode & 0o077 == 0 for path in out.rglob("*"))


def test_the_command_goes_on_where_it_was_stopped(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stopped = tmp_path / "stopped"
    options = ("--tokens", "900", "--steps", "6", "--out", str(stopped))
    learn: Callable[..., object] = Trainer.learn
    with monkeypatch.context() as patch:

        def stop_at_two(trainer: Trainer, *rest: object) -> object:
            if trainer.step == 1:
                os.kill(os.getpid(), signal.SIGINT)
            return learn(trainer, *rest)

        patch.setattr(Trainer, "learn", stop_at_two)
        assert train(launch, *options) == STOPPED_STATUS
    learnt: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            Trainer, "learn", lambda self, *rest: (learnt.append(self.step), learn(self, *rest))[1]
        )
        assert train(launch, *options) == 0
    assert learnt == [2, 3, 4, 5]
    whole = tmp_path / "whole"
    assert train(launch, "--tokens", "900", "--steps", "6", "--out", str(whole)) == 0
    one, other = ((each / "model.safetensors").read_bytes() for each in (stopped, whole))
    assert one == other


def test_nothing_to_learn_from_is_said(launch: Launch, capfd: pytest.CaptureFixture[str]):
    assert train(launch, "--tokens", "0") == 2
    assert "Nothing was written" in capfd.readouterr().err
