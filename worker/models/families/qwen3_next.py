"""Qwen3-Next. Knows only what differs from other families."""

from worker.models.config import Family, GgufForm

FAMILY = Family(
    name="qwen3_next",
    gguf=GgufForm("qwen3next", has_post_attention_norm=True),
    has_head_norms=True,
    has_output_gate=True,
    has_centred_norms=True,
    other_layers="delta",
    full_interval=4,
    rotary_share=0.25,
    end_tokens=("<|endoftext|>", "<|im_end|>"),
)
