"""What a model's shape says about memory, before any is taken. Knows no tensor and no device."""

import torch

from worker.models.config import ModelConfig
from worker.models.delta import INNER_CHUNK
from worker.models.layers import Head

FLOAT = torch.float32.itemsize


def kv_bytes(config: ModelConfig, dtype: torch.dtype, length: int) -> int:
    """Keys and values of `length` tokens, all layers."""
    width = config.kv_head_count * config.head_dim
    return 2 * config.attention_layers * width * dtype.itemsize * length


def state_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Recurrent and conv state of all delta layers, which is also what an anchor of them takes."""
    if (shape := config.delta) is None:
        return 0
    state = shape.value_heads * shape.key_dim * shape.value_dim * FLOAT
    conv = (shape.conv_width - 1) * shape.conv_channels * dtype.itemsize
    return config.delta_layers * (state + conv)


def workspace_bytes(
    config: ModelConfig, dtype: torch.dtype, *, rows: int, logit_rows: int, length: int = 0,
    tapped: int = 0,
) -> int:  # fmt: skip
    """What a forward takes while it runs, beside the cache that it writes into.

    `logit_rows`: rows whose logits are made; more than one are those of a tree. `length`: tokens
    that the last row sees, itself included. `tapped`: layers whose output a drafter reads.
    """
    size, hidden = dtype.itemsize, config.hidden_size
    wide, narrow = config.head_count * config.head_dim, config.kv_head_count * config.head_dim
    linears = size * (3 * _mlp_width(config) + 4 * wide + 4 * narrow)
    taps = 2 * tapped * hidden * FLOAT  # of each layer, and side by side
    taken = rows * (6 * hidden * FLOAT + linears + taps)
    taken += _delta_bytes(config, size, rows, is_tree=logit_rows > 1)
    if rows > 1 and length > rows:
        # Who sees whom: as bits, for each kind of layer, and in the dtype that scores have.
        taken += rows * length * (size + (2 if config.window else 1))
    return taken + logit_rows * _logit_bytes(config, size)


def _mlp_width(config: ModelConfig) -> int:
    """Of one expert at a time, at worst with all rows."""
    if (experts := config.experts) is None:
        return config.intermediate_size
    return max(config.intermediate_size, experts.width, experts.shared_width)


def _delta_bytes(config: ModelConfig, size: int, rows: int, *, is_tree: bool) -> int:
    if (shape := config.delta) is None:
        return 0
    widths = shape.key_dim + shape.value_dim
    taken = FLOAT * rows * shape.value_heads * (4 * widths + INNER_CHUNK)
    if is_tree:  # what every layer keeps of the rows until a path is committed
        kept = FLOAT * shape.value_heads * (widths + 1) + size * shape.conv_channels
        taken += config.delta_layers * rows * kept
    return taken


def _logit_bytes(config: ModelConfig, size: int) -> int:
    """Of one row: fp32, and below fp32 the product itself or the rows that are computed again."""
    taken = config.vocab_size * FLOAT
    if size < FLOAT:
        exact = min(Head.RECOMPUTED, config.vocab_size) * config.hidden_size * (size + FLOAT)
        taken += max(config.vocab_size * size, exact)
    return taken if config.logit_cap is None else taken + 2 * config.vocab_size * FLOAT
