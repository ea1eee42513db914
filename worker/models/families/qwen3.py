"""Qwen 3, dense. Knows only what differs from other families."""

from worker.models.config import Family

FAMILY = Family(
    name="qwen3",
    gguf_name="qwen3",
    has_head_norms=True,
    end_tokens=("<|endoftext|>", "<|im_end|>"),
)
