"""What a checkpoint may look like, and the one sentence about each that may not."""

import json
import math
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file
from tiny_checkpoints import (
    SHAPE,
    YARN_ROPE,
    build,
    logits_in_chunks,
    write_gguf_twin,
    write_tiny,
)  # fmt: skip
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from worker.faults import LoadFault
from worker.loading.gguf import GgufFile
from worker.loading.locate import open_checkpoint
from worker.loading.safetensors import read_header
from worker.models.config import RopeConfig, SamplingDefaults
from worker.models.config_gguf import config_from_gguf
from worker.models.registry import family_of_gguf
from worker.models.rope import inverse_frequencies, magnitude

CONFIG = {"model_type": "llama", **SHAPE}
GEMMA = {
    "model_type": "gemma3_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 16,
}


def _folder(path: Path, **changes: Any) -> Path:
    """A folder with a config and one tensor."""
    path.mkdir(exist_ok=True)
    fields = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
    (path / "config.json").write_text(json.dumps(fields))
    save_file({"x": torch.zeros(2, 3)}, path / "model.safetensors")
    return path


def _fault(path: Path) -> str:
    with pytest.raises(LoadFault) as caught:
        build(path)
    sentence = str(caught.value)
    assert sentence.endswith(".") and "\n" not in sentence
    return sentence


# Where and what.


def test_what_is_no_checkpoint_is_said_by_its_path(tmp_path: Path):
    assert "There is no model at" in _fault(tmp_path / "none.gguf")
    assert "no config.json" in _fault(tmp_path)
    (tmp_path / "model.bin").touch()
    assert "neither" in _fault(tmp_path / "model.bin")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mamba"}, "'mamba'"),
        ({"hidden_size": None}, "'hidden_size'"),
        ({"num_hidden_layers": "4"}, "'num_hidden_layers'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"layer_types": ["full_attention"] * 3 + ["sliding_attention"]}, "sliding window"),
        ({"layer_types": ["full_attention"] * 3 + ["linear_attention"]}, "linear attention"),
        ({"layer_types": ["full_attention"]}, "must name 4 layers"),
        ({"layer_types": ["full_attention"] * 3 + ["mamba"]}, "found 4 of full_attention, mamba"),
        ({"use_sliding_window": True, "model_type": "qwen2"}, "sliding window"),
        (GEMMA | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        (GEMMA | {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (GEMMA | {"hidden_activation": "silu"}, "'silu'"),
        (GEMMA | {"sliding_window": 0}, "'sliding_window'"),
        ({"model_type": "qwen3_5_text", "linear_num_key_heads": 3}, "32 value heads for 3"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "'longrope'"),
    ],
)
def test_a_config_that_is_not_understood_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], words: str
):
    assert words in _fault(_folder(tmp_path, **changes))


def test_a_missing_or_misshapen_tensor_is_named_with_what_was_expected(tmp_path: Path):
    write_tiny("llama", tmp_path)
    path = next(p for p in tmp_path.glob("*.safetensors") if "model.norm.weight" in load_file(p))
    tensors = load_file(path)
    tensors["model.norm.weight"] = torch.zeros(63)
    save_file(tensors, path)
    sentence = _fault(tmp_path)
    assert all(word in sentence for word in ("'model.norm.weight'", "(64,)", "(63,)"))
    index = tmp_path / "model.safetensors.index.json"
    names = json.loads(index.read_text())
    shard = names["weight_map"].pop("model.norm.weight")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / shard)
    assert "no such tensor" in _fault(tmp_path)


def test_a_sharded_checkpoint_with_a_shard_gone_is_refused(tmp_path: Path):
    write_tiny("llama", tmp_path)
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    shards[0].unlink()
    assert shards[0].name in _fault(tmp_path)


def test_an_index_cannot_name_a_file_elsewhere(tmp_path: Path):
    _folder(tmp_path)
    index = {"weight_map": {"x": "../model.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "../model.safetensors" in _fault(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_checkpoints_are_read(tmp_path: Path, dtype: torch.dtype):
    model = write_tiny("llama", tmp_path / "full")
    model.to(dtype).save_pretrained(tmp_path / "half")
    model.to(torch.float32).save_pretrained(tmp_path / "rounded")
    ids = torch.arange(20)
    half = logits_in_chunks(build(tmp_path / "half"), ids, 20)
    assert torch.equal(half, logits_in_chunks(build(tmp_path / "rounded"), ids, 20))


# Headers of safetensors, before anything else reads the file.


def _raw(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def _entry(start: int, end: int, shape: list[Any], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        (b"{oops", b"", "damaged"),
        (b"[]", b"", "not an object"),
        (b'{"a":{},"a":{}}', b"", "twice"),
        ({"a": {"dtype": "F32"}}, b"", "declared wrongly"),
        ({"a": _entry(0, 4, [1], "F8_E4M3")}, b"1234", "'F8_E4M3'"),
        ({"a": _entry(0, 1, [1], "I8")}, b"1", "'I8'"),
        ({"a": _entry(0, 8, [1])}, b"12345678", "does not fit"),
        ({"a": _entry(0, -4, [-1])}, b"", "does not fit"),
        ({"a": _entry(0, 4, [True])}, b"1234", "does not fit"),
        ({"a": _entry(4, 8, [1])}, b"12345678", "gaps"),
        ({"a": _entry(0, 4, [1]), "b": _entry(0, 4, [1])}, b"1234", "overlap"),
        ({"a": _entry(0, 4, [1])}, b"12", "header says 4"),
        ({"a": _entry(0, 4, [1])}, b"123456", "header says 4"),
    ],
)
def test_a_header_that_does_not_fit_its_file_is_refused(
    tmp_path: Path, header: Any, data: bytes, words: str
):
    with pytest.raises(LoadFault, match=words):
        read_header(_raw(tmp_path / "x.safetensors", header, data))


@pytest.mark.parametrize("length", [10**6, 2**62])
def test_a_header_longer_than_its_file_is_refused(tmp_path: Path, length: int):
    with pytest.raises(LoadFault, match="header of"):
        read_header(_raw(tmp_path / "x.safetensors", {}, length=length))


def test_metadata_is_no_tensor(tmp_path: Path):
    header = {"__metadata__": {"format": "pt"}, "a": _entry(0, 4, [1])}
    assert read_header(_raw(tmp_path / "x.safetensors", header, b"1234")) == {"a": (1,)}


# GGUF.


def test_damaged_and_foreign_gguf_files_are_refused(tmp_path: Path):
    good = tmp_path / "good.gguf"
    write_gguf_twin(write_tiny("llama", tmp_path / "folder"), good)
    data = good.read_bytes()
    cases = {
        "not a GGUF": b"GGML" + data[4:],
        "too many": data[:8] + struct.pack("<Q", 2**40) + data[16:],
        "damaged or cut short": data[: len(data) // 2],
    }
    for words, damaged in cases.items():
        path = tmp_path / "bad.gguf"
        path.write_bytes(damaged)
        assert words in _fault(path)


def test_a_gguf_with_delta_layers_that_cannot_be_is_refused():
    with pytest.raises(LoadFault, match="3 value heads for 2 key heads"):
        config_from_gguf(
            {
                **dict.fromkeys(("attention.head_count", "block_count"), 4),
                **dict.fromkeys(("embedding_length", "feed_forward_length"), 64),
                "context_length": 512,
                "ssm.time_step_rank": 3,
                "ssm.group_count": 2,
                "ssm.state_size": 16,
                "ssm.inner_size": 48,
                "ssm.conv_kernel": 4,
            },
            family_of_gguf("qwen35"),
            embedding_rows=512,
            is_tied=True,
        )


def test_a_quantisation_that_is_not_supported_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    blocks = np.zeros((1, 18), dtype=np.uint8)
    writer.add_tensor("token_embd.weight", blocks, raw_dtype=GGMLQuantizationType.IQ4_NL)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    sentence = _fault(path)
    assert "IQ4_NL" in sentence and "'token_embd.weight'" in sentence


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16"])
def test_quantised_values_are_those_of_the_format(tmp_path: Path, kind: str):
    path, kind_id = tmp_path / "x.gguf", GGMLQuantizationType[kind]
    packed = quantize(np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32), kind_id)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", packed, raw_dtype=kind_id)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    values = GgufFile.open(path).values("token_embd.weight")
    assert values.shape == (4, 64)
    assert np.array_equal(values.numpy(), dequantize(packed, kind_id))


# Rope.


@pytest.mark.parametrize("factor", [4.0, 1.0])
def test_yarn_is_that_of_transformers(factor: float):
    rope = {**YARN_ROPE, "factor": factor}
    config = LlamaConfig(**{**SHAPE, "rope_parameters": rope})
    theirs, scale = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    ours = RopeConfig("yarn", base=10_000.0, factor=factor, original_len=128)
    assert torch.allclose(inverse_frequencies(ours, 16), theirs, rtol=1e-6)
    assert magnitude(ours) == pytest.approx(scale)


def test_frequency_divisors_of_a_gguf_take_the_place_of_llama3_scaling(tmp_path: Path):
    folder, file = tmp_path / "folder", tmp_path / "twin.gguf"
    model = write_tiny("llama_llama3_rope", folder)
    scaled = open_checkpoint(folder).config.rope
    plain = RopeConfig(base=scaled.base)
    divisors = inverse_frequencies(plain, 16) / inverse_frequencies(scaled, 16)
    write_gguf_twin(model, file, {"rope_freqs.weight": divisors.numpy()})
    ids = torch.arange(150)
    ours = logits_in_chunks(build(folder), ids, 64)
    assert torch.allclose(logits_in_chunks(build(file), ids, 64), ours, atol=1e-5)
    assert not math.isclose(float(divisors.max()), 1.0)


# What else a checkpoint says.


def test_ends_and_sampling_come_from_the_generation_config(tmp_path: Path):
    _folder(tmp_path, eos_token_id=7)
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.end_ids, checkpoint.sampling) == ((7,), SamplingDefaults())
    generation = {"eos_token_id": [1, 2], "do_sample": False, "temperature": 0.6, "top_k": 20}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.end_ids == (1, 2)
    assert checkpoint.sampling == SamplingDefaults(temperature=0.6, top_p=1.0, top_k=20)


def test_the_template_is_found_wherever_it_is_kept(tmp_path: Path):
    _folder(tmp_path)
    assert open_checkpoint(tmp_path).text.template is None
    several = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    for template, expected in (("x", "x"), (several, "b")):
        marks = {"chat_template": template, "bos_token": {"content": "<s>"}}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(marks))
        text = open_checkpoint(tmp_path).text
        assert (text.template, text.special["bos_token"]) == (expected, "<s>")
    (tmp_path / "chat_template.jinja").write_text("file")
    assert open_checkpoint(tmp_path).text.template == "file"


def test_the_hash_of_weights_tells_models_apart(tmp_path: Path):
    write_tiny("llama", tmp_path / "a", seed=0)
    write_tiny("llama", tmp_path / "b", seed=0)
    write_tiny("llama", tmp_path / "c", seed=1)
    hashes = [open_checkpoint(tmp_path / name).weights_hash for name in "abc"]
    assert hashes[0] == hashes[1] != hashes[2]


def test_the_hash_of_weights_covers_the_whole_header(tmp_path: Path):
    hashes = set()
    for name in ("t990", "u990"):
        folder = _folder(tmp_path / name)
        # Blocks of the samples lie 64 KiB apart; the name stands between the first two.
        tensors = {f"t{i}": torch.zeros(1) for i in range(200)}
        save_file(
            {"big": torch.zeros(2**20), name: torch.zeros(1), **tensors},
            folder / "model.safetensors",
        )
        text = (folder / "model.safetensors").read_bytes()[:20_000]
        assert 4096 < text.index(name.encode()) < 15_000
        hashes.add(open_checkpoint(folder).weights_hash)
    assert len(hashes) == 2


@pytest.mark.model
def test_the_embedded_model_ends_its_turns_with_either_of_two_tokens(embedded_model: Path):
    checkpoint = open_checkpoint(embedded_model)
    assert checkpoint.end_ids == (0, 2)
    assert checkpoint.config.is_tied
    assert checkpoint.text.template is not None
