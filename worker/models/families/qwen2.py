"""Qwen 2 and 2.5. Knows only what differs from other families."""

from worker.models.config import Family

FAMILY = Family(
    name="qwen2",
    has_qkv_bias=True,
    has_head_norms=False,
    has_permuted_gguf=False,
    end_tokens=("<|endoftext|>", "<|im_end|>"),
)
