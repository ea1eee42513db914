"""Tiny random checkpoints, written by transformers, and our model built from a path."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from proto.worker_settings import WeightLayout
from worker.kernels.attention import Prefill, Step
from worker.kernels.sdpa import SdpaAttention
from worker.loading.locate import open_checkpoint
from worker.models.decoder import Decoder
from worker.models.layouts import Layout

SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    # Wide enough for attention and logits to depend on every weight.
    "initializer_range": 0.1,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
PARTIAL_ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25}
HYBRID: dict[str, Any] = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "rope_parameters": PARTIAL_ROPE,
    # With weights of 0.1, transformers' own steps and chunks are 4e-5 apart; so 4e-7.
    "initializer_range": 0.02,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
GEMMA: dict[str, Any] = {
    "sliding_window": 16,
    "query_pre_attn_scalar": 32,
    "final_logit_softcapping": 5.0,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}


@dataclass(frozen=True)
class Kind:
    """A tiny model of one family: its classes and what it changes of the shape."""

    config: type
    model: type
    changes: dict[str, Any]


KINDS = {
    "llama": Kind(LlamaConfig, LlamaForCausalLM, {}),
    "llama_tied": Kind(LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "llama_llama3_rope": Kind(LlamaConfig, LlamaForCausalLM, {"rope_parameters": LLAMA3_ROPE}),
    "llama_linear_rope": Kind(LlamaConfig, LlamaForCausalLM, {"rope_parameters": LINEAR_ROPE}),
    "qwen2": Kind(Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen2_yarn": Kind(Qwen2Config, Qwen2ForCausalLM, {"rope_parameters": YARN_ROPE}),
    "qwen3": Kind(Qwen3Config, Qwen3ForCausalLM, {}),
    "gemma3": Kind(Gemma3TextConfig, Gemma3ForCausalLM, GEMMA),
    "qwen3_5": Kind(Qwen3_5TextConfig, Qwen3_5ForCausalLM, HYBRID),
    "qwen3_5_moe": Kind(Qwen3_5MoeTextConfig, Qwen3_5MoeForCausalLM, HYBRID | EXPERTS),
    "qwen3_next": Kind(
        Qwen3NextConfig, Qwen3NextForCausalLM, HYBRID | EXPERTS | {"mlp_only_layers": [1]}
    ),
}


def write_tiny(kind: str, folder: Path, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """Writes a random checkpoint with shaken norms and biases; returns transformers' model."""
    torch.manual_seed(seed)
    entry = KINDS[kind]
    model = entry.model(entry.config(**{**SHAPE, **entry.changes, **changes})).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or name.endswith(".bias"):
                weight.add_(0.1 * torch.randn_like(weight))
    model.save_pretrained(folder, max_shard_size="200KB")
    return model


def build(path: Path, layout: WeightLayout = "fp32", max_len: int = 512) -> Decoder:
    """Our model from a folder or a GGUF file."""
    checkpoint = open_checkpoint(path)
    return Decoder(
        checkpoint.config,
        checkpoint.tensors,
        SdpaAttention(),
        layout=Layout(layout, torch.device("cpu")),
        max_len=max_len,
    )


@torch.inference_mode()
def logits_in_chunks(model: Decoder, ids: torch.Tensor, chunk: int) -> torch.Tensor:
    """Logits of every row, the ids forwarded in chunks. ids: (rows,); out: (rows, vocab)."""
    cache = model.new_cache(64)
    out = []
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        cache.reserve(start + len(part))
        hidden = model.forward(part, cache, Prefill(start, len(part)))
        out.append(model.logits(hidden))
    return torch.cat(out)


@torch.inference_mode()
def logits_in_steps(model: Decoder, ids: torch.Tensor) -> torch.Tensor:
    """Logits of every row, one id at a time. ids: (rows,); out: (rows, vocab)."""
    cache = model.new_cache(64)
    out = []
    for start in range(len(ids)):
        cache.reserve(start + 1)
        out.append(model.logits(model.forward(ids[start : start + 1], cache, Step(start))))
    return torch.cat(out)


GGUF_ARCHITECTURES = {
    "gemma3_text": "gemma3",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next",
}
GGUF_SHAPE_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}


NO_LINEARS = ("norm", "conv1d", "gate_inp")


def write_gguf_twin(
    model: PreTrainedModel,
    path: Path,
    extra: dict[str, Any] | None = None,
    *,
    is_fused: bool = False,
    codes: str | None = None,
    is_run: bool = False,
) -> None:
    """Writes transformers' model as the converters of llama.cpp would: names, values, row order.

    `extra`: further tensors, by their GGUF names. `is_fused`: gate and up of experts in one tensor.
    `codes`: the type, such as Q4_1, of linears whose inputs can have it. `is_run`: with the keys
    that llama.cpp insists on and we do not read.
    """

    def add(name: str, values: torch.Tensor) -> None:
        is_linear = values.ndim > 1 and name.startswith("blk.")
        is_linear = is_linear and not any(word in name for word in NO_LINEARS)
        if codes is None or not is_linear or values.shape[-1] % 32:
            writer.add_tensor(name, values.contiguous().numpy())
            return
        kind = gguf.GGMLQuantizationType[codes]
        blocks = gguf.quantize(values.contiguous().numpy(), kind)
        writer.add_tensor(name, blocks, raw_dtype=kind)

    config = model.config
    arch = GGUF_ARCHITECTURES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, arch)
    for key, name in GGUF_SHAPE_KEYS.items():
        if isinstance(value := getattr(config, name, None), int):
            writer.add_uint32(f"{arch}.{key}", value)
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", config.rms_norm_eps)
    ropes = config.rope_parameters
    rope = ropes.get("full_attention", ropes)
    writer.add_float32(f"{arch}.rope.freq_base", rope["rope_theta"])
    if "partial_rotary_factor" in rope:
        turning = int(config.head_dim * rope["partial_rotary_factor"])
        writer.add_uint32(f"{arch}.rope.dimension_count", turning)
    if hasattr(config, "linear_value_head_dim"):
        inner = config.linear_value_head_dim * config.linear_num_value_heads
        writer.add_uint32(f"{arch}.ssm.inner_size", inner)
    if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
        writer.add_float32(f"{arch}.final_logit_softcapping", cap)
    if is_run:
        writer.add_string("tokenizer.ggml.model", "none")
        writer.add_uint32(f"{arch}.vocab_size", config.vocab_size)
        writer.add_uint32(f"{arch}.attention.value_length", config.head_dim)
        # Which pairs of dims turn by which position of an image; a text's are all equal.
        writer.add_array(f"{arch}.rope.dimension_sections", [1, 1, 0, 0])
    kinds = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[arch], config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if is_fused and name.endswith("experts.gate_up_proj"):
            add(f"{names.get_name(name)}.weight", weight)
            continue
        for converted, values in _converted(name, weight, arch, config):
            gguf_name = names.get_name(converted, try_suffixes=(".weight", ".bias"))
            add(gguf_name, values)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


Named = list[tuple[str, torch.Tensor]]


def _converted(name: str, weight: torch.Tensor, arch: str, config: Any) -> Named:
    if arch == "llama" and ("q_proj" in name or "k_proj" in name):
        is_query = "q_proj" in name
        heads = config.num_attention_heads if is_query else config.num_key_value_heads
        return [(name, _permuted(weight, heads))]
    if arch not in GGUF_ARCHITECTURES.values():
        return [(name, weight)]
    if name.endswith("norm.weight") and "linear_attn" not in name:
        return [(name, weight + 1)]
    if name.endswith("experts.gate_up_proj"):
        sides = zip(("gate", "up"), weight.chunk(2, dim=1), strict=True)
        return [(name.replace("gate_up", side) + ".weight", half) for side, half in sides]
    if name.endswith("experts.down_proj"):
        return [(name + ".weight", weight)]
    if name.endswith("shared_expert_gate.weight"):
        return [(name, weight[0])]
    if ".linear_attn." in name:
        return _converted_delta(name, weight, arch, config)
    return [(name, weight)]


def _converted_delta(name: str, weight: torch.Tensor, arch: str, config: Any) -> Named:
    # convert_hf_to_gguf.py, Qwen3NextModel and Qwen3_5 models
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    key_dim, value_dim = config.linear_key_head_dim, config.linear_value_head_dim
    group = values // keys
    if name.endswith("dt_bias"):
        name = name.replace("dt_bias", "dt_proj.bias")
    if name.endswith("A_log"):
        weight = -weight.exp()
    if name.endswith("conv1d.weight"):
        weight = weight[:, 0]
    if name.endswith("in_proj_qkvz.weight"):
        dims = [key_dim, key_dim, group * value_dim, group * value_dim]
        parts = weight.view(keys, sum(dims), -1).split(dims, dim=1)
        q, k, v, z = (part.reshape(-1, weight.shape[1]) for part in parts)
        return [
            (name.replace("qkvz", "qkv"), torch.cat((q, k, v))),
            (name.replace("qkvz", "z"), z),
        ]
    if arch == "qwen3next":
        return [(name, weight)]

    def tiled(rows: torch.Tensor) -> torch.Tensor:
        split = rows.reshape(keys, group, -1, *rows.shape[1:])
        return split.transpose(0, 1).reshape(rows.shape)

    if "in_proj_qkv" in name or "conv1d" in name:
        before = 2 * keys * key_dim
        return [(name, torch.cat((weight[:before], tiled(weight[before:]))))]
    if "out_proj" in name:
        return [(name, tiled(weight.T).T)]
    return [(name, weight if name.endswith("norm.weight") else tiled(weight))]


def _permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    # convert_hf_to_gguf.py, LlamaModel.permute
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(weight.shape).contiguous()
