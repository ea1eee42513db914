"""Llama, and models of its shape such as SmolLM2. Knows only what differs from other families."""

from worker.models.config import Family

FAMILY = Family(
    name="llama",
    has_qkv_bias=False,
    has_head_norms=False,
    has_permuted_gguf=True,
    end_tokens=("<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"),
)
