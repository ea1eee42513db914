"""Qwen 3.5, dense and with experts. Knows only what differs from other families."""

from dataclasses import replace

from worker.models.config import Family, GgufForm

FAMILY = Family(
    name="qwen3_5_text",
    gguf=GgufForm("qwen35", has_tiled_values=True, has_post_attention_norm=True),
    has_head_norms=True,
    has_output_gate=True,
    has_centred_norms=True,
    other_layers="delta",
    full_interval=4,
    rotary_share=0.25,
    end_tokens=("<|endoftext|>", "<|im_end|>"),
)
WITH_EXPERTS = replace(
    FAMILY, name="qwen3_5_moe_text", gguf=replace(FAMILY.gguf, architecture="qwen35moe")
)
