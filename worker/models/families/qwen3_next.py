"""Qwen3-Next, the first of the hybrid Qwens. Knows only what differs from Qwen 3.5."""

from dataclasses import replace

from worker.models.config import GgufForm
from worker.models.families import qwen3_5

FAMILY = replace(
    qwen3_5.FAMILY,
    name="qwen3_next",
    gguf=GgufForm("qwen3next", has_post_attention_norm=True),
)
