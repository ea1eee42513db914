"""Llama and its kin, SmolLM among them. Knows only what differs from other families."""

from worker.models.config import Family, GgufForm

FAMILY = Family(
    name="llama",
    gguf=GgufForm("llama", has_pairwise_rows=True),
    end_tokens=("<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"),
)
