"""Models of every family with random weights, made where they are used. Knows no file.

Weights are drawn so that every part of a layer matters: products keep the size of what goes in,
norms are shaken, so that a lost one is seen.
"""

import hashlib
import math
from typing import Any

import torch
from torch import Tensor

from bench.gpu.notes import Stage
from worker.kernels.attention import Attention
from worker.models.config import ModelConfig
from worker.models.config_json import config_from_json
from worker.models.decoder import Decoder
from worker.models.layouts import Layout
from worker.models.registry import family_of

SHAKE = 0.1  # of norms and biases
DECAY_RATES = (0.1, 4.0)  # of delta layers: from heads that remember long to those that do not
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
GEMMA = {
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 32,
    "sliding_window": 48,
    "sliding_window_pattern": 2,
    "final_logit_softcapping": 30.0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "gemma3_text": GEMMA,
    "qwen3_5_text": {},
    "qwen3_5_moe_text": EXPERTS,
    "qwen3_next": EXPERTS,
}
# Source: transformers 5.24, the defaults of Qwen3_5TextConfig: a model of about 9 billion weights.
NINE_B = {
    "vocab_size": 248_320,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 32_768,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}

# Layers of the width of a model of a billion weights, in any family.
WIDE = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
# About a billion weights; a hybrid has 9 delta layers of them.
ONE_B = {**WIDE, "vocab_size": 32_768, "num_hidden_layers": 12}


def small(kind: str, stage: Stage, **changes: Any) -> ModelConfig:
    """A model of four layers of a family."""
    width = 64 if stage.is_tiny else 256
    fields = {
        "vocab_size": 512 if stage.is_tiny else 4096,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": width // 4,
        "max_position_embeddings": 4096,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": width // 4,
        "linear_value_head_dim": width // 4,
        **FAMILIES[kind],
        **changes,
    }
    return config_from_json(fields, family_of(kind))


def nine_b(stage: Stage, layers: int) -> ModelConfig:
    """The hybrid of 9 billion weights, or its first layers."""
    if stage.is_tiny:
        return small("qwen3_5_text", stage)
    return config_from_json({**NINE_B, "num_hidden_layers": layers}, family_of("qwen3_5_text"))


class RandomTensors:
    """Whatever tensor is asked for, the same at each asking. `device`: where values are drawn.

    `branch_scale`: of what attention and MLP add to the residual stream.
    """

    has_whole_norms = False

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device,
        dtype: torch.dtype,
        branch_scale: float = 1.0,
    ) -> None:
        self._branch_scale = branch_scale
        self.element_counts: dict[str, int] = {}
        self._family = config.family
        self._is_grouped = config.family.name == "qwen3_next"
        self._device = device
        self._dtype = dtype

    def has(self, name: str) -> bool:
        """As the family's checkpoints are; experts stand together."""
        if name.endswith(("in_proj_qkvz.weight", "in_proj_ba.weight")):
            return self._is_grouped
        return name.endswith("experts.gate_up_proj")

    def codes(self, name: str, shape: tuple[int, ...]) -> None:
        """There are no 4-bit codes."""

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Drawn anew, by the name."""
        self.element_counts[name] = math.prod(shape)
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])
        source = torch.Generator(self._device).manual_seed(seed)
        if name.endswith("A_log"):
            low, high = DECAY_RATES
            drawn = torch.rand(shape, generator=source, device=self._device)
            return (low + (high - low) * drawn).log()
        drawn = torch.randn(shape, generator=source, device=self._device, dtype=self._dtype)
        if name.endswith("norm.weight"):
            is_never_centred = name.endswith("linear_attn.norm.weight")
            is_centred = self._family.has_centred_norms and not is_never_centred
            return SHAKE * drawn + (0.0 if is_centred else 1.0)
        if name.endswith("bias"):
            return SHAKE * drawn
        if name.endswith("embed_tokens.weight"):
            return drawn * shape[1] ** -0.5 if self._family.has_scaled_embedding else drawn
        is_branch = name.removesuffix(".weight").endswith(("o_proj", "out_proj", "down_proj"))
        return drawn.mul_(shape[-1] ** -0.5 * (self._branch_scale if is_branch else 1.0))


def build(
    config: ModelConfig,
    tensors: RandomTensors,
    attention: Attention,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> Decoder:
    """The engine's own decoder over random weights."""
    layout = Layout("fp32" if dtype == torch.float32 else "bf16", device)
    return Decoder(config, tensors, attention, layout=layout, max_len=config.max_len)


def random_ids(count: int, vocab_size: int, device: torch.device) -> Tensor:
    """(count,) int64, always the same."""
    ids = torch.randint(0, vocab_size, (count,), generator=torch.Generator().manual_seed(1))
    return ids.to(device)
