"""What a tensor is called in a GGUF file. Knows no file and no tensor.

Source: gguf-py `tensor_mapping`, and the converters of llama.cpp.
"""

from worker.models.config import Family

TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}

# GGUF names below `blk.N.`, by transformers' names below `model.layers.N.`.
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
# The same name stands at two places: where layers have one norm after attention, it is the MLP's.
OUTPUT_NORM_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
# Names that have no `.weight` behind them, or another one there.
WHOLE_NAMES = {
    "linear_attn.rate": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
}


def gguf_name_of(name: str, family: Family) -> str | None:
    """The GGUF name of a tensor with this transformers name; None where there is none."""
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    index, _, rest = name.removeprefix("model.layers.").partition(".")
    if rest in WHOLE_NAMES:
        return f"blk.{index}.{WHOLE_NAMES[rest]}"
    stem, _, kind = rest.rpartition(".")
    names = LAYER_NAMES
    if family.gguf.has_post_attention_norm:
        names = LAYER_NAMES | OUTPUT_NORM_NAMES
    return f"blk.{index}.{names[stem]}.{kind}" if stem in names else None
