"""Gemma 3, its text model. Knows only what differs from other families."""

from worker.models.config import Family, GgufForm

FAMILY = Family(
    name="gemma3_text",
    gguf=GgufForm("gemma3", has_post_attention_norm=True, wide_score_layers=62),
    has_head_norms=True,
    has_output_norms=True,
    has_centred_norms=True,
    has_scaled_embedding=True,
    activation="gelu_tanh",
    other_layers="window",
    full_interval=6,
    end_tokens=("<eos>", "<end_of_turn>"),
)
