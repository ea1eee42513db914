"""Qwen 3, dense. Knows only what differs from other families."""

from worker.models.config import Family, GgufForm

FAMILY = Family(
    name="qwen3",
    gguf=GgufForm("qwen3"),
    has_head_norms=True,
    end_tokens=("<|endoftext|>", "<|im_end|>"),
)
