"""The model families, and what a registry name implies. Knows no tensors.

Adding a family is one file in `families/` and its line in `FAMILIES`; nothing else asks for a
model's name.
"""

from worker.faults import LoadFault
from worker.models.config import Family, SamplingDefaults
from worker.models.families import gemma3, llama, qwen2, qwen3, qwen3_5, qwen3_next

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY, qwen2.FAMILY, qwen3.FAMILY, gemma3.FAMILY, qwen3_5.FAMILY, qwen3_5.WITH_EXPERTS,
    qwen3_next.FAMILY,
)  # fmt: skip

# Registry names of `worker.model`: how their makers recommend to sample, and a template of ours
# (in `text/templates`) where their own knows no tools.
NAMED_TEMPLATES = {"smollm2": "smollm2.jinja"}
NAMED_DEFAULTS = {"smollm2": SamplingDefaults(temperature=0.2, top_p=0.9)}


def family_of(model_type: str) -> Family:
    """The family of a `model_type` of config.json. Raises: LoadFault for one nobody here knows."""
    return _found({family.name: family for family in FAMILIES}, model_type)


def family_of_gguf(architecture: str) -> Family:
    """The family of a `general.architecture` of a GGUF file. Raises: LoadFault, as `family_of`."""
    return _found({family.gguf.architecture: family for family in FAMILIES}, architecture)


def _found(known: dict[str, Family], name: str) -> Family:
    if name not in known:
        raise LoadFault(f"The model is of kind {name!r}; this engine runs: {', '.join(known)}.")
    return known[name]
