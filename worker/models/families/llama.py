"""Llama and its kin, SmolLM among them. Knows only what differs from other families."""

from worker.models.config import Family

FAMILY = Family(
    name="llama",
    gguf_name="llama",
    has_permuted_gguf=True,
    end_tokens=("<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"),
)
