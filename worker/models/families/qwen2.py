"""Qwen 2 and 2.5, dense. Knows only what differs from other families."""

from worker.models.config import Family, GgufForm

FAMILY = Family(
    name="qwen2",
    gguf=GgufForm("qwen2"),
    has_qkv_bias=True,
    end_tokens=("<|endoftext|>", "<|im_end|>"),
)
