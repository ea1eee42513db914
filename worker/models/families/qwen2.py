"""Qwen 2 and 2.5, dense. Knows only what differs from other families."""

from worker.models.config import Family

FAMILY = Family(
    name="qwen2",
    gguf_name="qwen2",
    has_qkv_bias=True,
    end_tokens=("<|endoftext|>", "<|im_end|>"),
)
