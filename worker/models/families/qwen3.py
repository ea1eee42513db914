"""Qwen 3, dense. Knows only what differs from other families."""

from worker.models.config import Family

FAMILY = Family(
    name="qwen3",
    has_qkv_bias=False,
    has_head_norms=True,
    has_permuted_gguf=False,
    end_tokens=("<|endoftext|>", "<|im_end|>"),
)
