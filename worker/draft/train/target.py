"""The target that a drafter is trained for, loaded for writing. Knows no prompt and no training."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from proto.worker_settings import Launch
from worker.draft.block_config import (
    ORIGIN_KEYS,
    SHARED_KEYS,
    BlockConfig,
    Origin,
    block_config_from_json,
    spread_taps,
)
from worker.draft.train.lanes import LanesAttention
from worker.draft.train.training import TargetTensors
from worker.faults import StartFault
from worker.loading.locate import Checkpoint, open_checkpoint
from worker.models.config import ModelConfig
from worker.models.decoder import Decoder
from worker.models.layouts import Layout
from worker.models.placement import Placement
from worker.settings import Machine, max_len_of
from worker.text.prompt import PromptWriter
from worker.text.sources import masked_ids, template_of, tokenizer_of
from worker.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A loaded model with all that training asks of it. `norm`: a drafter's first, (hidden,)."""

    model: Decoder
    writer: PromptWriter
    end_ids: tuple[int, ...]
    masked: tuple[int, ...]
    mask_id: int
    max_len: int
    origin: Origin
    tensors: TargetTensors
    norm: Tensor


def load_target(launch: Launch, machine: Machine) -> Target:
    """Raises: StartFault for a model that cannot be loaded, or not be written with in lanes."""
    checkpoint = open_checkpoint(Path(launch.model_path))
    config = checkpoint.config
    if config.delta is not None:
        raise StartFault("Drafters are trained for models without delta layers only.")
    tokenizer = tokenizer_of(checkpoint.text)
    template = template_of(checkpoint.text, launch.settings.model)
    max_len = max_len_of(launch, machine, config.max_len)
    layout = Layout(launch.settings.weights, torch.device("cpu"))
    model = Decoder(config, checkpoint.tensors, LanesAttention(), layout=layout, max_len=max_len)
    end_ids = checkpoint.end_ids or tokenizer.ids_of(config.family.end_tokens)
    masked = masked_ids(tokenizer, config.vocab_size)
    head, norm = _borrowed(checkpoint, model)
    return Target(
        model=model,
        writer=PromptWriter(tokenizer, template),
        end_ids=end_ids,
        masked=masked,
        mask_id=_mask_id(tokenizer, masked, end_ids),
        max_len=max_len,
        origin=Origin(checkpoint.weights_hash, tokenizer.hash),
        tensors=TargetTensors(model.embed, head),
        norm=norm,
    )


def drafter_config(
    target: ModelConfig, origin: Origin, *, mask_id: int, layers: int, block: int, taps: int
) -> BlockConfig:
    """A drafter as wide as its target, with so many layers."""
    return block_config_from_json(
        {
            "vocab_size": target.vocab_size,
            "hidden_size": target.hidden_size,
            "intermediate_size": target.intermediate_size,
            "num_hidden_layers": layers,
            "num_attention_heads": target.head_count,
            "num_key_value_heads": target.kv_head_count,
            "head_dim": target.head_dim,
            "rms_norm_eps": target.rms_norm_eps,
            "rope_theta": target.rope.base,
            "max_position_embeddings": target.max_len,
            "num_target_layers": len(target.layers),
            "block_size": block,
            SHARED_KEYS: {
                "mask_token_id": mask_id,
                "target_layer_ids": list(spread_taps(taps, len(target.layers))),
            },
            ORIGIN_KEYS: {
                "weights_hash": origin.weights_hash,
                "tokenizer_hash": origin.tokenizer_hash,
            },
        }
    )


def _borrowed(checkpoint: Checkpoint, model: Decoder) -> tuple[Tensor, Tensor]:
    """Head and final norm as plain tensors: the model itself keeps them packed.

    The norm is made smaller until the head spreads random states by 1: a drafter that has learnt
    nothing should hold nothing for certain.
    """
    config, tensors = checkpoint.config, checkpoint.tensors
    is_centred = config.family.has_centred_norms and not tensors.has_whole_norms
    top = Placement(tensors, model.layout, is_centred=is_centred)
    name = "model.embed_tokens.weight" if config.is_tied else "lm_head.weight"
    head = top.weight(name, config.vocab_size, config.hidden_size)
    norm = top.below("model").multiplier("norm.weight", config.hidden_size)
    spread = (head.float() * norm).square().sum(-1).mean().sqrt()
    return head, norm / spread


def _mask_id(tokenizer: TextTokenizer, masked: Sequence[int], end_ids: Sequence[int]) -> int:
    """An id that no text has: one without a token, else the last control token that ends nothing.

    Raises: StartFault where there is neither.
    """
    if masked:
        return masked[0]
    free = set(tokenizer.control_tokens.values()) - set(end_ids)
    if not free:
        raise StartFault("The model has no token that could stand for a mask.")
    return max(free)
