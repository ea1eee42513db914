"""The block drafter: its network against plain torch, its cache, its refusals, its trees."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_checkpoints import build, write_tiny
from tiny_drafter import MASK, TAPS, reference_logits, write_drafter

from worker.draft.block import BlockDrafter
from worker.draft.block_config import Origin, block_config_from_json, spread_taps
from worker.draft.block_model import BlockModel, load_block_model
from worker.draft.lattice import SOFTENING, Lattice, lattice_of, tree_of
from worker.faults import LoadFault
from worker.kernels.attention import Prefill
from worker.loading.safetensors import SafetensorsFiles
from worker.models.decoder import Decoder, Taps
from worker.sampling.chooser import Chooser
from worker.sampling.params import Sampling
from worker.sampling.sampler import gumbel_noise
from worker.speculation.tree import DraftTree, Source

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
SAMPLED = replace(GREEDY, temperature=0.8, seed=7)
KNOWN = Origin("a" * 64, "b" * 64)
MAX_LEN = 128
IDS = tuple(range(20, 60))
VARIANTS: dict[str, dict[str, Any]] = {
    "bidirectional": {},
    "causal": {"is_causal": True},
    "windows, causal by default": {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 4,
    },
    "windows, both ways": {
        "layer_types": ["sliding_attention", "sliding_attention"],
        "sliding_window": 3,
        "is_causal": False,
    },
    "scaled": {
        "input_embedding_scale": 8.0,
        "output_multiplier": 0.5,
        "final_logit_softcapping": 2.0,
    },
}


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    write_tiny("llama", path)
    return path


@pytest.fixture(scope="module")
def target(target_folder: Path) -> Decoder:
    return build(target_folder)


@pytest.fixture(scope="module")
def model(target: Decoder, tmp_path_factory: pytest.TempPathFactory) -> BlockModel:
    folder = tmp_path_factory.mktemp("drafter")
    write_drafter(folder)
    return load_block_model(folder, target, KNOWN, max_len=MAX_LEN)


@torch.inference_mode()
def taps_of(target: Decoder, ids: tuple[int, ...], layers: tuple[int, ...] = TAPS) -> torch.Tensor:
    cache, taps = target.new_cache(64), Taps(layers)
    cache.reserve(len(ids))
    target.forward(torch.tensor(ids), cache, Prefill(0, len(ids)), taps)
    return taps.joined()


def drafter_of(model: BlockModel, max_rows: int = 16) -> BlockDrafter:
    return BlockDrafter(model, max_len=MAX_LEN, max_rows=max_rows, step=16)


def chooser_of(sampling: Sampling = GREEDY, number: int = 1) -> Chooser:
    return Chooser(sampling, (), number=number)


def proposed(drafter: BlockDrafter, ctx: tuple[int, ...], room: int = 99) -> DraftTree:
    tree = drafter.propose(ctx, room, chooser_of())
    assert tree is not None
    return tree


# The network.


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_network_is_that_of_plain_torch(
    variant: str, target: Decoder, target_folder: Path, tmp_path: Path
):
    fields, weights = write_drafter(tmp_path, **VARIANTS[variant])
    model = load_block_model(tmp_path, target, KNOWN, max_len=MAX_LEN)
    ids = IDS[:9]
    taps, cache = taps_of(target, ids), model.new_cache(16)
    model.read(taps, cache, 0)
    stored = SafetensorsFiles.open(target_folder)
    exact = reference_logits(
        fields,
        weights,
        embedding=stored.read("model.embed_tokens.weight", (512, 64)),
        head=stored.read("lm_head.weight", (512, 64)),
        taps=taps,
        root=77,
    )
    logits = model.guess(77, cache, len(ids))
    assert logits.shape == (5, 512)
    assert (logits - exact).abs().max() < 2e-5 * exact.abs().max()


def test_half_precision_stays_near_the_exact_network(target_folder: Path, tmp_path: Path):
    write_drafter(tmp_path)
    taps = taps_of(build(target_folder), IDS)
    logits = []
    for layout in ("fp32", "bf16", "q4"):
        model = load_block_model(tmp_path, build(target_folder, layout), KNOWN, max_len=MAX_LEN)
        cache = model.new_cache(16)
        model.read(taps, cache, 0)
        logits.append(model.guess(77, cache, len(IDS)))
    assert 0 < (logits[1] - logits[0]).norm() < 3e-2 * logits[0].norm()
    assert torch.equal(logits[2], logits[1])  # only the target's own linears are packed


def test_a_cache_read_in_chunks_is_one_read_at_once(model: BlockModel, target: Decoder):
    taps = taps_of(target, IDS)
    whole, parts = model.new_cache(16), model.new_cache(16)
    model.read(taps, whole, 0)
    start = 0
    for size in (1, 7, 2, 19, 11):
        model.read(taps[start : start + size], parts, start)
        model.guess(start, parts, start + size)  # a block between them leaves nothing behind
        start += size
    for one, other in zip(whole.freeze(len(IDS)), parts.freeze(len(IDS)), strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert torch.allclose(model.guess(5, whole, 40), model.guess(5, parts, 40), atol=1e-4)


def test_rows_of_a_block_never_stay(model: BlockModel, target: Decoder):
    taps, drafter = taps_of(target, IDS), drafter_of(model)
    drafter.sync(IDS[:30], taps[:30])
    before = drafter.freeze()
    first = proposed(drafter, (*IDS[:30], 3))
    proposed(drafter, (*IDS[:30], 400))
    assert all(map(torch.equal, drafter.freeze(), before))
    assert proposed(drafter, (*IDS[:30], 3)) == first
    assert before[0].shape == (2, 2, 30, 24)


def test_bytes_of_a_cache_are_known_before_it_is_made(model: BlockModel):
    assert model.new_cache(32).kv.size_bytes == model.cache_bytes(32)


# Its files.


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden_size": 32}, "hidden size 32, found 64"),
        ({"vocab_size": 500}, "vocabulary 500, found 512"),
        ({"num_target_layers": 5}, "layers 5, found 4"),
        ({"dflash_config": {"mask_token_id": 512, "target_layer_ids": [0, 2]}}, "below 512"),
        ({"dflash_config": {"mask_token_id": "m", "target_layer_ids": [0]}}, "must be an id"),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, 4]}}, r"\[0, 4\]"),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": []}}, "must be layers"),
        ({"trained_for": {"tokenizer_hash": "c" * 64}}, "tokenizer hash c+, found b+"),
        ({"trained_for": {"weights_hash": "c" * 64}}, "weights hash c+, found a+"),
        ({"block_size": 1}, "2 or more"),
        ({"input_embedding_scale": 0}, "positive number"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "relu"}, "relu"),
    ],
)
def test_a_drafter_of_another_target_is_refused(
    changes: dict[str, Any], sentence: str, target: Decoder, tmp_path: Path
):
    write_drafter(tmp_path, **changes)
    with pytest.raises(LoadFault, match=sentence):
        load_block_model(tmp_path, target, KNOWN, max_len=MAX_LEN)


def test_what_a_published_drafter_does_not_say_is_not_asked(target: Decoder, tmp_path: Path):
    write_drafter(tmp_path, trained_for={"tokenizer_hash": KNOWN.tokenizer_hash})
    load_block_model(tmp_path, target, KNOWN, max_len=MAX_LEN)
    load_block_model(tmp_path, target, Origin(), max_len=MAX_LEN)


@pytest.mark.parametrize(
    "name", ["layers.0.attention_conv.base_kernel", "candidate_selector.hidden_projection.weight"]
)
def test_the_later_form_is_refused_by_name(name: str, target: Decoder, tmp_path: Path):
    write_drafter(tmp_path, extra={name: torch.zeros(2, 3)})
    with pytest.raises(LoadFault, match=name):
        load_block_model(tmp_path, target, KNOWN, max_len=MAX_LEN)


def test_a_damaged_drafter_is_refused(target: Decoder, tmp_path: Path):
    write_drafter(tmp_path, intermediate_size=96)
    config = tmp_path / "config.json"
    config.write_text(
        config.read_text().replace('"intermediate_size": 96', '"intermediate_size": 95')
    )
    with pytest.raises(LoadFault, match="gate_proj"):
        load_block_model(tmp_path, target, KNOWN, max_len=MAX_LEN)
    config.write_text("{")
    with pytest.raises(LoadFault, match="cannot be read"):
        load_block_model(tmp_path, target, KNOWN, max_len=MAX_LEN)


def test_taps_that_are_not_named_are_spread_over_the_target():
    assert spread_taps(5, 36) == (1, 9, 17, 25, 33)
    assert spread_taps(1, 30) == (15,)
    fields = {
        "vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2,
        "num_attention_heads": 2, "max_position_embeddings": 64, "num_target_layers": 30,
        "mask_token_id": 3,
    }  # fmt: skip
    config = block_config_from_json(fields)
    assert (config.taps, config.block_size, config.mask_id) == ((1, 27), 16, 3)


# The drafter of a slot.


def test_b1_a_drafter_that_declined_proposes_again_once_nothing_is_missing(
    model: BlockModel, target: Decoder
):
    taps, drafter, whole = taps_of(target, IDS), drafter_of(model), drafter_of(model)
    drafter.sync(IDS[:11], taps[:10])
    assert drafter.propose(IDS[:13], 9, chooser_of()) is None  # two tokens came without a sync
    drafter.sync(IDS[:13], taps[10:11])
    assert drafter.propose(IDS[:13], 9, chooser_of()) is None  # and one of them is still missing
    drafter.sync(IDS[:13], taps[11:12])
    whole.sync(IDS[:13], taps[:12])
    assert proposed(drafter, IDS[:13]).tokens == proposed(whole, IDS[:13]).tokens


def test_b2_hidden_states_of_another_path_change_the_guess(model: BlockModel, target: Decoder):
    taps = taps_of(target, IDS)
    trees = []
    for rows in (taps[20:24], taps[30:34]):
        drafter = drafter_of(model)
        drafter.sync(IDS[:20], taps[:20])
        drafter.sync(IDS[:24], rows)
        trees.append(proposed(drafter, IDS[:25]))
    assert trees[0].scores != trees[1].scores


def test_it_declines_where_the_block_would_pass_the_context(model: BlockModel, target: Decoder):
    ids = tuple(range(MAX_LEN))
    taps, drafter = taps_of(target, ids), drafter_of(model)
    drafter.sync(ids, taps[:122])
    assert drafter.propose(ids[:123], 9, chooser_of()) is not None  # ends at the last position
    drafter.sync(ids, taps[122:123])
    assert drafter.propose(ids[:124], 9, chooser_of()) is None


def test_it_declines_without_room(model: BlockModel, target: Decoder):
    drafter = drafter_of(model)
    drafter.sync(IDS, taps_of(target, IDS[:-1]))
    assert drafter.propose(IDS, 0, chooser_of()) is None
    assert max(proposed(drafter, IDS, room=2).depths()) == 2
    assert drafter_of(model, max_rows=1).propose(IDS[:1], 9, chooser_of()) is None


def test_a_rewound_drafter_is_one_that_never_went_on(model: BlockModel, target: Decoder):
    taps, drafter, other = taps_of(target, IDS), drafter_of(model), drafter_of(model)
    drafter.sync(IDS, taps)
    drafter.rewind(12)
    assert drafter.propose(IDS, 9, chooser_of()) is None
    other.sync(IDS[:12], taps[:12])
    assert proposed(drafter, IDS[:13]) == proposed(other, IDS[:13])
    drafter.rewind(30)  # nothing comes back
    assert proposed(drafter, IDS[:13]) == proposed(other, IDS[:13])


def test_a_started_drafter_knows_nothing_of_the_sequence_before(model: BlockModel, target: Decoder):
    taps, drafter, other = taps_of(target, IDS), drafter_of(model), drafter_of(model)
    drafter.sync(IDS, taps)
    drafter.start("somebody")
    assert drafter.freeze()[0].shape[2] == 0
    for each in (drafter, other):
        each.sync(IDS[:12], taps[:12])
    assert proposed(drafter, IDS[:13]) == proposed(other, IDS[:13])


def test_a_thawed_drafter_goes_on_as_the_frozen_one(model: BlockModel, target: Decoder):
    taps, drafter, other = taps_of(target, IDS), drafter_of(model), drafter_of(model)
    drafter.sync(IDS[:20], taps[:20])
    frozen, tree = drafter.freeze(), proposed(drafter, IDS[:21])
    drafter.sync(IDS, taps[20:])
    other.sync(IDS, taps.flip(0))  # held something else
    for thawed in (drafter, other):
        thawed.thaw(IDS[:21], frozen)
        assert proposed(thawed, IDS[:21]) == tree
        thawed.sync(IDS[:26], taps[20:25])
        assert thawed.propose(IDS[:26], 9, chooser_of()) is not None


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_it_declines_where_its_logits_are_no_numbers(
    model: BlockModel, target: Decoder, broken: float, monkeypatch: pytest.MonkeyPatch
):
    guess = model.guess

    def overflown(*parts: object) -> torch.Tensor:
        logits = guess(*parts).clone()
        logits[2, 7] = broken
        return logits

    drafter = drafter_of(model)
    drafter.sync(IDS, taps_of(target, IDS[:-1]))
    monkeypatch.setattr(model, "guess", overflown)
    assert drafter.propose(IDS, 9, chooser_of()) is None
    assert drafter.propose(IDS, 2, chooser_of()) is not None  # the row is not looked at


def test_two_slots_do_not_see_each_other(model: BlockModel, target: Decoder):
    taps, one, other = taps_of(target, IDS), drafter_of(model), drafter_of(model)
    one.sync(IDS[:20], taps[:20])
    tree = proposed(one, IDS[:21])
    other.sync(IDS[:30], taps.flip(0)[:30])
    assert proposed(one, IDS[:21]) == tree


# The tree.


def random_lattice(slots: int, width: int, seed: int) -> Lattice:
    source = np.random.default_rng(seed)
    chances = -np.sort(-source.dirichlet(np.full(width + 2, 0.4), size=slots)[:, :width], axis=1)
    tokens = np.stack([source.permutation(50)[:width] for _ in range(slots)])
    return Lattice(tuple(map(tuple, tokens.tolist())), tuple(map(tuple, chances.tolist())))


def paths_of(tree: DraftTree) -> dict[tuple[int, ...], float]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*paths[parent], token) if parent >= 0 else ())
    return dict(zip(paths[1:], tree.scores[1:], strict=True))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("budget", [1, 3, 4, 7, 20, 40])
def test_a_tree_is_the_greedy_chain_and_the_likeliest_paths_beside_it(seed: int, budget: int):
    lattice = random_lattice(slots=4, width=3, seed=seed)
    chances = {
        tuple(lattice.tokens[slot][rank] for slot, rank in enumerate(ranks)): math.prod(
            lattice.chances[slot][rank] for slot, rank in enumerate(ranks)
        )
        for depth in (1, 2, 3, 4)
        for ranks in itertools.product(range(3), repeat=depth)
    }
    chain = [tuple(row[0] for row in lattice.tokens[:depth]) for depth in (1, 2, 3, 4)][:budget]
    others = sorted(set(chances) - set(chain), key=lambda path: -chances[path])
    tree = tree_of(99, lattice, budget)
    found = paths_of(tree)
    assert set(found) == {*chain, *others[: budget - len(chain)]}
    assert all(math.isclose(score, chances[path]) for path, score in found.items())
    assert (tree.tokens[0], tree.drafted) == (99, budget)
    assert tree.sources == (Source(0), *[Source.BLOCK] * budget)
    assert tree.chain().tokens == (99, *chain[-1])


def test_a_small_lattice_is_taken_whole():
    lattice = random_lattice(slots=3, width=2, seed=0)
    assert tree_of(9, lattice, 63).drafted == 2 + 4 + 8


def test_of_equally_likely_tokens_the_chain_has_the_first():
    lattice = Lattice(((5, 6, 7), (8, 9, 10)), ((0.3, 0.3, 0.3), (0.5, 0.5, 0.0)))
    tree = tree_of(1, lattice, 8)
    assert tree.chain().tokens == (1, 5, 8)
    assert [tree.tokens[child] for child in tree.children(0)] == [5, 6, 7]


def test_chances_are_softened_and_over_the_whole_vocabulary():
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(1)) * 3
    lattice = lattice_of(logits, chooser_of())
    exact = (logits / SOFTENING).softmax(-1)
    for slot in range(3):
        best = exact[slot].topk(8)
        assert lattice.tokens[slot] == tuple(best.indices.tolist())
        assert np.allclose(lattice.chances[slot], best.values, rtol=1e-5)


def test_sampled_text_is_guessed_under_the_noise_of_its_numbers():
    # A drafter that knows the target's logits exactly guesses each seeded token.
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(2)) * 3
    number = 17
    lattice = lattice_of(logits, chooser_of(SAMPLED, number))
    for slot in range(6):
        noise = gumbel_noise(SAMPLED, number + slot, np.arange(300))
        drawn = int((logits[slot].numpy() / SAMPLED.temperature + noise).argmax())
        assert lattice.tokens[slot][0] == drawn
        chances = lattice.chances[slot]
        assert sum(chances) <= 1.0 + 1e-9 and list(chances) == sorted(chances, reverse=True)
    assert lattice.tokens != lattice_of(logits, chooser_of(SAMPLED, number + 1)).tokens


def test_a_little_temperature_is_nearly_greedy():
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(2)) * 4
    cold = lattice_of(logits, chooser_of(replace(SAMPLED, temperature=1e-4)))
    greedy = lattice_of(logits, chooser_of())
    assert cold.tokens == greedy.tokens
    assert np.allclose(cold.chances, greedy.chances, atol=2e-2)


def test_the_mask_stands_in_every_row_but_the_first(
    model: BlockModel, target: Decoder, monkeypatch: pytest.MonkeyPatch
):
    seen: list[list[int]] = []
    plain = target.embed
    monkeypatch.setattr(target, "embed", lambda ids: seen.append(ids.tolist()) or plain(ids))
    drafter = drafter_of(model)
    drafter.sync(IDS, taps_of(target, IDS[:-1]))
    proposed(drafter, IDS)
    assert seen == [[IDS[-1], *[MASK] * 5]]
