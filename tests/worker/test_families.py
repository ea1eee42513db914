"""What families beyond the plain decoder must hold: states, windows, checkpoints in other forms."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from decoding import NO_DRAFTS, begun
from safetensors.torch import load_file, save_file
from tiny_checkpoints import build, logits_in_chunks, write_tiny

from worker.kernels.attention import Prefill, Step
from worker.models.decoder import Decoder
from worker.models.delta import inner_chunks
from worker.sampling.chooser import Chooser
from worker.sampling.params import Sampling
from worker.state.cache import SequenceCache

HYBRIDS = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
TOLERANCE = 1e-5
LENGTH = 100
SPLITS = (1, 2, 3, 4, 15, 16, 17, 63, 64, 65, 99)  # edges of convolution, window, inner chunk


def _ids(length: int = LENGTH, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 512, (length,), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def _read(model: Decoder, cache: SequenceCache, ids: torch.Tensor, start: int = 0) -> torch.Tensor:
    """Logits of the rows: (rows, vocab)."""
    cache.reserve(start + len(ids))
    return model.logits(model.forward(ids, cache, Prefill(start, len(ids))))


@pytest.mark.parametrize("kind", ["llama", "gemma3", *HYBRIDS])
def test_a_prompt_split_anywhere_gives_the_same_logits_and_states(kind: str, tmp_path: Path):
    write_tiny(kind, tmp_path)
    model, ids = build(tmp_path), _ids()
    whole = model.new_cache(64)
    logits = _read(model, whole, ids)
    for split in SPLITS:
        cache = model.new_cache(64)
        parts = (_read(model, cache, ids[:split]), _read(model, cache, ids[split:], split))
        assert (torch.cat(parts) - logits).abs().max() <= TOLERANCE, split
        if cache.delta is not None and whole.delta is not None:
            assert (cache.delta.recurrent - whole.delta.recurrent).abs().max() <= TOLERANCE
            assert (cache.delta.conv - whole.delta.conv).abs().max() <= TOLERANCE


@pytest.mark.parametrize("kind", HYBRIDS)
def test_states_are_those_of_transformers(kind: str, tmp_path: Path):
    theirs_model = write_tiny(kind, tmp_path)
    model, ids = build(tmp_path), _ids()
    with torch.inference_mode():
        theirs = theirs_model(ids[None], use_cache=True)
    cache: Any = getattr(theirs, "cache", None) or theirs.past_key_values
    ours = model.new_cache(64)
    _read(model, ours, ids)
    assert ours.delta is not None
    for index in range(3):
        recurrent = cache.get_recurrent_state(index)[0]
        assert recurrent.abs().max() > 1e-3
        assert (ours.delta.recurrent[index] - recurrent).abs().max() <= TOLERANCE
        kept = cache.get_conv_state(index, state_idx=0)[0, :, -3:].T
        assert (ours.delta.conv[index] - kept).abs().max() <= TOLERANCE


@pytest.mark.parametrize("kind", ["gemma3", *HYBRIDS])
def test_a_used_slot_reads_a_prompt_as_a_new_one_does(kind: str, tmp_path: Path):
    write_tiny(kind, tmp_path)
    model, ids = build(tmp_path), _ids()
    chooser = Chooser(Sampling(0.0, 1.0, 0, 0.0, 0), ())
    slot = begun(model.new_cache(64), NO_DRAFTS, (1,), chooser)
    _read(model, slot.cache, _ids(seed=2))
    slot.begin(tuple(ids.tolist()), chooser, slot.plan, None)
    assert torch.equal(_read(model, slot.cache, ids), _read(model, model.new_cache(64), ids))


@pytest.mark.parametrize("kind", HYBRIDS)
def test_where_a_chunk_starts_changes_no_bit_if_the_inner_cuts_are_the_same(
    kind: str, tmp_path: Path
):
    write_tiny(kind, tmp_path)
    model, ids = build(tmp_path), _ids(192)
    whole, cut = model.new_cache(64), model.new_cache(64)
    _read(model, whole, ids)
    for start in (0, 64, 128):
        _read(model, cut, ids[start : start + 64], start)
    assert whole.delta is not None and cut.delta is not None
    assert torch.equal(whole.delta.recurrent[0], cut.delta.recurrent[0])


def test_rows_are_cut_at_absolute_multiples_of_the_inner_chunk():
    assert inner_chunks(0, 64) == [(0, 64)]
    assert inner_chunks(60, 10) == [(60, 64), (64, 70)]
    assert inner_chunks(64, 130) == [(64, 128), (128, 192), (192, 194)]


@torch.inference_mode()
def test_a_window_of_16_sees_16_tokens_in_chunks_and_in_steps(tmp_path: Path):
    """A token 16 before a row is out of its sight; 15 before, it is seen."""
    write_tiny("gemma3", tmp_path, layer_types=["sliding_attention"], num_hidden_layers=1)
    model, ids = build(tmp_path), _ids(40)

    def last_row(changed_at: int | None, is_step: bool) -> torch.Tensor:
        other = ids.clone()
        if changed_at is not None:
            other[changed_at] = (other[changed_at] + 1) % 512
        cache = model.new_cache(64)
        if not is_step:
            return _read(model, cache, other)[-1]
        _read(model, cache, other[:-1])
        return model.logits(model.forward(other[-1:], cache, Step(39)))[0]

    for is_step in (False, True):
        plain = last_row(None, is_step)
        assert torch.equal(last_row(39 - 16, is_step), plain)
        assert not torch.equal(last_row(39 - 15, is_step), plain)


def _rewritten(folder: Path, to: Path, rename: Any, fields: Any) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        for name, tensor in load_file(path).items():
            tensors |= rename(name, tensor)
    to.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, to / "m.safetensors")
    (to / "config.json").write_text(
        json.dumps(fields(json.loads((folder / "config.json").read_text())))
    )


@pytest.mark.parametrize("kind", ["gemma3", "qwen3_5"])
@pytest.mark.parametrize("place", ["before", "within"])
def test_the_text_model_of_a_multimodal_checkpoint_is_found(kind: str, place: str, tmp_path: Path):
    """Names carry `language_model.`, the fields stand under `text_config`; the rest is ignored."""
    folder, wrapped = tmp_path / "plain", tmp_path / "wrapped"
    write_tiny(kind, folder)

    def rename(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        within = name.replace("model.", "model.language_model.", 1)
        renamed = within if place == "within" else f"language_model.{name}"
        return {renamed: tensor, "model.visual.patch.weight": torch.ones(2)}

    def nested(fields: dict[str, Any]) -> dict[str, Any]:
        return {"model_type": "qwen3_5", "text_config": fields, "vision_config": {}}

    _rewritten(folder, wrapped, rename, nested)
    ids = _ids()
    ours = logits_in_chunks(build(wrapped), ids, 64)
    assert torch.equal(ours, logits_in_chunks(build(folder), ids, 64))


@pytest.mark.parametrize("kind", ["qwen3_5_moe", "qwen3_next"])
def test_experts_may_be_stored_one_by_one_or_together(kind: str, tmp_path: Path):
    folder, other = tmp_path / "saved", tmp_path / "other"
    write_tiny(kind, folder)
    names = [name for path in folder.glob("*.safetensors") for name in load_file(path)]
    is_together = any(name.endswith("experts.gate_up_proj") for name in names)
    gathered: dict[str, dict[int, dict[str, torch.Tensor]]] = {}

    def rename(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        stem, found, rest = name.partition(".experts.")
        if not found:
            return {name: tensor}
        if is_together and rest == "down_proj":
            return {f"{stem}.experts.{i}.down_proj.weight": part for i, part in enumerate(tensor)}
        if is_together:
            halves = [part.chunk(2) for part in tensor]
            return {
                f"{stem}.experts.{i}.{side}_proj.weight": half
                for i, both in enumerate(halves)
                for side, half in zip(("gate", "up"), both, strict=True)
            }
        number, side, _ = rest.split(".")
        parts = gathered.setdefault(stem, {}).setdefault(int(number), {})
        parts[side] = tensor
        experts = [gathered[stem][i] for i in sorted(gathered[stem])]
        if len(experts) < 4 or any(len(expert) < 3 for expert in experts):
            return {}
        gate_up = [torch.cat((e["gate_proj"], e["up_proj"])) for e in experts]
        return {
            f"{stem}.experts.gate_up_proj": torch.stack(gate_up),
            f"{stem}.experts.down_proj": torch.stack([e["down_proj"] for e in experts]),
        }

    _rewritten(folder, other, rename, lambda fields: fields)
    ids = _ids()
    ours = logits_in_chunks(build(other), ids, 64)
    assert torch.equal(ours, logits_in_chunks(build(folder), ids, 64))


def test_rows_of_a_mixture_do_not_depend_on_the_rows_beside_them(tmp_path: Path):
    write_tiny("qwen3_5_moe", tmp_path, layer_types=["full_attention"], num_hidden_layers=1)
    model, ids = build(tmp_path), _ids(40)
    whole = _read(model, model.new_cache(64), ids)
    first = _read(model, model.new_cache(64), ids[:1])
    assert torch.equal(first[0], whole[0])
