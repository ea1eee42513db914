"""Weight layouts: what is packed is what it stands for; what cannot be packed stays in bf16."""

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from near_ties import compared
from structlog.testing import capture_logs
from tiny_checkpoints import (
    KINDS,
    build,
    logits_in_chunks,
    logits_in_steps,
    write_gguf_twin,
    write_tiny,
)

from proto.worker_settings import Launch, WeightLayout, WorkerSettings
from worker.build import build_engine
from worker.engine import Engine
from worker.faults import StartFault
from worker.kernels.packed import (
    FEW_ROWS,
    FourBitProduct,
    MixedProduct,
    four_bit_product,
    int8_product,
    mixed_product,
)
from worker.kernels.product import product_of
from worker.kernels.weight import Codes, Weight, joined, quantised, rounded_to_int8
from worker.loading.locate import open_checkpoint
from worker.loading.quant import codes_of
from worker.models.layouts import WEIGHTS_NOT_PACKED, Layout
from worker.settings import Machine, machine_of

PRODUCT_ERROR = 1e-2  # relative, of a packed product against its dequantised values
HALF_ULP = 2.0**-8  # of bf16, relative: the most that scales and zeros lose
PACKED: tuple[WeightLayout, ...] = ("int8", "q4", "mixed")
ROWS = (1, 2, 4, 5, 17)
HYBRIDS = ("qwen3_5", "qwen3_5_moe", "qwen3_next")


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _file_codes(kind: str, outputs: int, inputs: int) -> tuple[Codes, torch.Tensor]:
    """The codes of a random tensor of a GGUF type, and gguf's own values of it."""
    values = _random(outputs, inputs).numpy() + np.float32(0.3)
    kind_id = GGMLQuantizationType[kind]
    blocks = gguf.quantize(values, kind_id)
    codes = codes_of(blocks, kind, (outputs, inputs))
    assert codes is not None
    return codes, torch.from_numpy(gguf.dequantize(blocks, kind_id).copy())


def _error(made: torch.Tensor, exact: torch.Tensor) -> float:
    return float((made.float() - exact).norm() / exact.norm())


# Products.


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_a_product_with_a_files_codes_is_that_with_the_values_of_the_file(kind: str):
    codes, values = _file_codes(kind, 96, 128)
    product = four_bit_product(codes, None)
    assert isinstance(product, FourBitProduct)
    for rows in ROWS:
        x = _random(rows, 128, seed=1).bfloat16()
        assert _error(product(x), x.float() @ values.T) <= PRODUCT_ERROR


@pytest.mark.parametrize("group", [32, 64])
def test_a_product_with_our_codes_is_that_with_what_they_stand_for(group: int):
    values = _random(96, 128) + 0.3
    codes = quantised(values, group)
    product = four_bit_product(codes, None)
    assert isinstance(product, FourBitProduct)
    for rows in ROWS:
        x = _random(rows, 128, seed=1).bfloat16()
        assert _error(product(x), x.float() @ codes.values().T) <= PRODUCT_ERROR


def test_our_codes_are_the_nearest_that_there_are():
    values = _random(32, 128) + 0.3
    codes = quantised(values, 64)
    steps = codes.scales.float().repeat_interleave(64, dim=1)
    lost = HALF_ULP * (7 * steps + codes.zeros.float().abs().repeat_interleave(64, dim=1))
    assert ((codes.values() - values).abs() <= 0.5 * steps + 2 * lost).all()
    assert (codes.quants.min(), codes.quants.max()) == (0, 15)


def test_groups_of_equal_values_are_kept():
    for value in (0.0, 0.5, -3.0):
        values = torch.full((16, 64), value)
        assert torch.equal(quantised(values, 64).values(), values)
        quants, scales = rounded_to_int8(values)
        assert torch.allclose(quants * scales.float()[:, None], values, rtol=4e-3)


def test_a_product_of_8_bits_is_that_with_what_they_stand_for():
    values = _random(96, 128)
    quants, scales = rounded_to_int8(values)
    exact = quants.float() * scales.float()[:, None]
    largest = values.abs().amax(-1, keepdim=True)
    # Half a step, and what the largest loses where its scale was rounded down.
    assert ((exact - values).abs() <= largest * (0.5 / 127 + 2 * HALF_ULP)).all()
    product = int8_product(values, None)
    assert not isinstance(product, str)
    for rows in ROWS:
        x = _random(rows, 128, seed=1).bfloat16()
        assert _error(product(x), x.float() @ exact.T) <= PRODUCT_ERROR


@pytest.mark.parametrize("pack", [four_bit_product, mixed_product])
def test_packed_products_add_their_bias(pack: object):
    values, bias = _random(96, 128), _random(96, seed=2).bfloat16()
    codes = quantised(values, 64)
    for made in (pack(codes, bias), int8_product(values, bias)):  # type: ignore[operator]
        for rows in (1, 9):
            x = _random(rows, 128, seed=1).bfloat16()
            assert _error(made(x), x.float() @ values.T + bias) <= 0.1
            assert _error(made(x) - bias, x.float() @ values.T) <= 0.1


def test_mixed_takes_codes_for_few_rows_and_their_values_for_many():
    codes = quantised(_random(96, 128), 64)
    few, mixed = four_bit_product(codes, None), mixed_product(codes, None)
    many = product_of(codes.values().bfloat16())
    assert isinstance(mixed, MixedProduct) and isinstance(few, FourBitProduct)
    for rows, other in ((1, few), (FEW_ROWS, few), (FEW_ROWS + 1, many), (64, many)):
        x = _random(rows, 128, seed=1).bfloat16()
        assert torch.equal(mixed(x), other(x))
        assert not torch.equal(few(x), many(x))


# Codes of files.


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_the_codes_of_a_file_are_kept_exactly(kind: str):
    """Only scale and minimum change: they are rounded to bf16."""
    codes, values = _file_codes(kind, 32, 96)
    assert codes.group == 32
    scales, zeros = (
        part.float().repeat_interleave(32, dim=1) for part in (codes.scales, codes.zeros)
    )
    lost = HALF_ULP * ((codes.quants.float() - 8).abs() * scales.abs() + zeros.abs())
    assert ((codes.values() - values).abs() <= 1.01 * lost).all()
    # What gguf makes of the file lies nearest to these codes, of all that there are.
    nearest = ((values - zeros) / scales).round() + 8
    assert torch.equal(nearest, codes.quants.float())


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma3", *HYBRIDS])
@pytest.mark.parametrize("codes_type", ["Q4_0", "Q4_1"])
def test_codes_stand_in_the_order_of_the_values(kind: str, codes_type: str, tmp_path: Path):
    changes = {"linear_value_head_dim": 32} if kind in HYBRIDS else {}
    usual = {"gemma3": {"query_pre_attn_scalar": 16, "num_hidden_layers": 6, "layer_types": None}}
    usual["qwen3_next"] = {"mlp_only_layers": []}
    file = tmp_path / "twin.gguf"
    model = write_tiny(kind, tmp_path / "x", **{**changes, **usual.get(kind, {})})
    write_gguf_twin(model, file, codes=codes_type)
    tensors = open_checkpoint(file).tensors
    compared_count = 0
    for name, weight in model.state_dict().items():
        shape = tuple(weight.shape)
        if not tensors.has(name) or (codes := tensors.codes(name, shape)) is None:
            continue
        values = tensors.read(name, shape)
        assert codes.quants.shape == shape
        assert _error(codes.values(), values) < 4e-3, name
        compared_count += 1
    counts = {"gemma3": 42, "qwen3_5": 31, "qwen3_5_moe": 39, "qwen3_next": 30}
    assert compared_count == counts.get(kind, 28)


def test_heads_that_begin_within_a_group_are_not_taken_by_their_codes(tmp_path: Path):
    file = tmp_path / "twin.gguf"
    model = write_tiny("qwen3_5", tmp_path / "x")  # value heads of 16
    write_gguf_twin(model, file, codes="Q4_1")
    tensors, below = open_checkpoint(file).tensors, "model.layers.0.linear_attn"
    assert tensors.codes(f"{below}.out_proj.weight", (64, 64)) is None
    assert tensors.codes(f"{below}.in_proj_z.weight", (64, 64)) is not None


def test_parts_without_codes_get_some_beside_parts_that_have_them():
    codes, values = _file_codes("Q4_1", 16, 64)
    other = _random(16, 64, seed=5)
    both = joined((Weight(values, codes), Weight(other)))
    assert both.codes is not None and both.codes.group == 32
    assert torch.equal(both.codes.quants[:16], codes.quants)
    assert _error(both.codes.values()[16:], other) < 0.1
    assert joined((Weight(values), Weight(other))).codes is None


# Whole models.


def _engine(path: Path, weights: WeightLayout) -> Engine:
    settings = WorkerSettings(model=str(path), weights=weights, threads=1)
    launch = Launch(settings, "tiny", str(path), "ipc:///x", "/x")
    machine, checkpoint = (
        Machine("cpu", threads=1, chunk=32, lanes=1, slots=2),
        open_checkpoint(path),
    )
    return build_engine(launch, machine, checkpoint, masked_ids=(), end_ids=(2,))


@pytest.mark.parametrize("weights", ["bf16", *PACKED])
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_and_steps_choose_the_same_tokens_but_for_near_ties(
    kind: str, weights: WeightLayout, tmp_path: Path
):
    write_tiny(kind, tmp_path)
    model = build(tmp_path, weights)
    assert model.layout.name == weights
    ids = torch.randint(0, 512, (96,), generator=torch.Generator().manual_seed(1))
    plain = logits_in_steps(model, ids)
    for chunk in (3, 8, 96):
        result = compared(plain, logits_in_chunks(model, ids, chunk))
        assert result.holds(), result


@pytest.mark.parametrize("weights", PACKED)
@pytest.mark.parametrize("kind", ["llama", "qwen3_5", "qwen3_5_moe", "qwen3_next"])
def test_a_packed_model_is_close_to_the_exact_one(kind: str, weights: WeightLayout, tmp_path: Path):
    """From a file with 4-bit codes, so that no second rounding stands between the two."""
    file, ids = tmp_path / "twin.gguf", torch.arange(40)
    changes = {"linear_value_head_dim": 32} if kind in HYBRIDS else {}
    if kind == "qwen3_next":
        changes["mlp_only_layers"] = []
    write_gguf_twin(write_tiny(kind, tmp_path / "x", **changes), file, codes="Q4_1")
    exact = logits_in_chunks(build(file), ids, 40)
    rounded = _error(logits_in_chunks(build(file, "bf16"), ids, 40), exact)
    packed = _error(logits_in_chunks(build(file, weights), ids, 40), exact)
    assert packed <= (3 if weights == "int8" else 2) * rounded


@pytest.mark.parametrize("weights", PACKED)
def test_rows_are_invariant_but_where_two_kernels_share_the_work(
    weights: WeightLayout, tmp_path: Path
):
    write_tiny("qwen3_5_moe", tmp_path)
    engine = _engine(tmp_path, weights)
    assert engine.facts.layout == weights
    assert engine.is_row_invariant() is (weights != "mixed")


def test_gates_of_delta_layers_are_never_packed():
    parts, gates = [Weight(_random(32, 64))], [Weight(_random(4, 64, seed=3))]
    x = _random(3, 64, seed=1).bfloat16()
    for name in PACKED:
        layout = Layout(name, torch.device("cpu"))
        out = layout.product_with_gates(parts, gates)(x)
        assert out.shape == (3, 36)
        assert torch.equal(out[:, 32:], product_of(gates[0].values.bfloat16())(x))
        assert torch.equal(out[:, :32], layout.product(parts[0])(x))
        assert not torch.equal(out[:, :32], product_of(parts[0].values.bfloat16())(x))


# What cannot be packed.


def _wrong(x: torch.Tensor, *rest: object) -> torch.Tensor:
    return torch.ones(x.shape[0], 1).bfloat16() * x.sum()


OPERATIONS = {
    "int8": "_weight_int8pack_mm",
    "q4": "_weight_int4pack_mm_for_cpu",
    "mixed": "_weight_int4pack_mm_for_cpu",
}


@pytest.mark.parametrize("is_missing", [True, False])
@pytest.mark.parametrize("weights", PACKED)
def test_without_a_right_operation_weights_stay_in_bf16_with_one_warning(
    weights: WeightLayout, is_missing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_tiny("llama", tmp_path)
    if is_missing:
        monkeypatch.delattr(torch, OPERATIONS[weights])
    else:
        monkeypatch.setattr(torch, OPERATIONS[weights], _wrong)
    with capture_logs() as lines:
        engine = _engine(tmp_path, weights)
    (line,) = [line for line in lines if line["event"] == WEIGHTS_NOT_PACKED]
    assert (line["log_level"], line["packed"], line["unpacked"]) == ("warning", 0, 16)
    assert ("AttributeError" if is_missing else "wrong result") in str(line["reasons"])
    assert engine.facts.layout == "bf16"
    ids = torch.arange(20)
    ours = logits_in_chunks(build(tmp_path, weights), ids, 20)
    assert torch.equal(ours, logits_in_chunks(build(tmp_path, "bf16"), ids, 20))


def test_a_result_that_is_no_number_is_a_wrong_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "_weight_int8pack_mm", lambda x, *_: x[:, :1] * float("nan"))
    assert "wrong result" in str(int8_product(_random(32, 64), None))


@pytest.mark.parametrize("weights", PACKED)
def test_widths_that_no_operation_has_stay_in_bf16_one_by_one(
    weights: WeightLayout, tmp_path: Path
):
    write_tiny("llama", tmp_path, hidden_size=40)  # what reads `hidden` cannot, others can
    with capture_logs() as lines:
        engine = _engine(tmp_path, weights)
    (line,) = [line for line in lines if line["event"] == WEIGHTS_NOT_PACKED]
    outputs_fit = weights == "int8"  # 40 outputs are no multiple of 16 either
    assert (line["packed"], line["unpacked"]) == ((8, 8) if outputs_fit else (0, 16))
    assert engine.facts.layout == (weights if outputs_fit else "bf16")
    assert "40 inputs" in str(line["reasons"])
    engine.check()


def test_whole_layouts_say_nothing(tmp_path: Path):
    write_tiny("llama", tmp_path)
    for weights in ("bf16", "fp32", *PACKED):
        with capture_logs() as lines:
            _engine(tmp_path, weights)
        assert not [line for line in lines if line["event"] == WEIGHTS_NOT_PACKED]


def test_a_cuda_device_knows_no_packed_weights():
    def launch(**changes: object) -> Launch:
        return Launch(replace(WorkerSettings(), **changes), "x", "/x", "ipc:///x", "/x")

    for weights in PACKED:
        with pytest.raises(StartFault, match=f"{weights}, which runs on a CPU only"):
            machine_of(launch(weights=weights), has_cuda=True)
        assert machine_of(launch(weights=weights, device="cpu"), has_cuda=True).device == "cpu"
        assert machine_of(launch(weights=weights), has_cuda=False).device == "cpu"
    assert machine_of(launch(weights="fp32"), has_cuda=True).device == "cuda"


# The embedded model.


@pytest.mark.model
@pytest.mark.parametrize("weights", ["bf16", *PACKED])
def test_the_embedded_model_chooses_the_same_in_chunks_but_for_near_ties(
    embedded_model: Path, weights: WeightLayout
):
    model = build(embedded_model, weights)
    ids = torch.randint(0, 49_152, (96,), generator=torch.Generator().manual_seed(2))
    plain = logits_in_steps(model, ids)
    for chunk in (FEW_ROWS, 16):
        result = compared(plain, logits_in_chunks(model, ids, chunk))
        print(weights, chunk, result)
        assert result.holds(), result


@pytest.mark.model
@pytest.mark.parametrize("weights", ["q4", "mixed"])
def test_the_embedded_models_own_codes_are_as_good_as_its_rounded_values(
    embedded_model: Path, weights: WeightLayout
):
    ids = torch.randint(0, 49_152, (100,), generator=torch.Generator().manual_seed(1))
    exact = logits_in_chunks(build(embedded_model), ids, 100)
    rounded = _error(logits_in_chunks(build(embedded_model, "bf16"), ids, 100), exact)
    model = build(embedded_model, weights)
    assert model.layout.name == weights
    assert _error(logits_in_chunks(model, ids, 100), exact) <= 1.5 * rounded
