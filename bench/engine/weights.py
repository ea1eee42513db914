"""The same weights for every contender: files rewritten, and random models of each family.

Knows files and transformers' classes; measures nothing.
"""

from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from safetensors.torch import save_file
from transformers import PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

FILE_TYPES = {"BF16": 32, "Q8_0": 7}  # llama_ftype of llama.h

# Large enough for a step of a few ms, small enough for all families in a few minutes.
SHAPE: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
HYBRID: dict[str, Any] = {
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
}
# Names of transformers' classes, without `Config` and `ForCausalLM`.
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("Llama", "Llama", {}),
    "qwen2": ("Qwen2", "Qwen2", {}),
    "qwen3": ("Qwen3", "Qwen3", {}),
    "gemma3": ("Gemma3Text", "Gemma3", {"query_pre_attn_scalar": 64, "sliding_window": 128}),
    "qwen3_5": ("Qwen3_5Text", "Qwen3_5", HYBRID),
    "qwen3_5_moe": ("Qwen3_5MoeText", "Qwen3_5Moe", HYBRID | EXPERTS),
    "qwen3_next": ("Qwen3Next", "Qwen3Next", HYBRID | EXPERTS),
}


def write_random(family: str, folder: Path, seed: int = 0) -> None:
    """A random checkpoint of a family, in bf16, so that both dtypes have the same weights."""
    config_name, model_name, changes = FAMILIES[family]
    config = getattr(transformers, f"{config_name}Config")(**{**SHAPE, **changes})
    torch.manual_seed(seed)
    model = getattr(transformers, f"{model_name}ForCausalLM")(config)
    _save(model, folder)


def write_safetensors(source: Path, folder: Path) -> None:
    """A llama GGUF as a folder for transformers, in bf16.

    transformers refuses to save what it loaded from a GGUF, and asks for accelerate to load one;
    these are the functions that it calls.
    """
    config = transformers.LlamaConfig(**load_gguf_checkpoint(source)["config"])
    model = transformers.LlamaForCausalLM(config)
    loaded = load_gguf_checkpoint(source, return_tensors=True, model_to_load=model)
    missing, unexpected = model.load_state_dict(loaded["tensors"], strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected
    model.tie_weights()
    _save(model, folder)


def _save(model: PreTrainedModel, folder: Path) -> None:
    folder.mkdir(parents=True)
    is_tied = model.config.tie_word_embeddings
    tensors = {
        name: weight.to(torch.bfloat16).contiguous()
        for name, weight in model.state_dict().items()
        if not (is_tied and name == "lm_head.weight")
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)


def rewrite_gguf(source: Path, target: Path, kind: str) -> None:
    """The same file with its matrices as BF16 or Q8_0; norms as they are."""
    reader = gguf.GGUFReader(source)
    fields = reader.fields
    writer = gguf.GGUFWriter(target, fields["general.architecture"].contents())
    for name, field in fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = FILE_TYPES[kind] if name == "general.file_type" else field.contents()
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], sub_type=inner)
    wanted = gguf.GGMLQuantizationType[kind]
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if len(tensor.shape) < 2:  # a norm
            writer.add_tensor(tensor.name, values)
            continue
        writer.add_tensor(tensor.name, gguf.quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
