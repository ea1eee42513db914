"""The model families, and what a registry name implies. Knows no tensors.

Adding a family is one file in `families/` and its line in `FAMILIES`; nothing else asks for a
model's name.
"""

from worker.faults import LoadFault
from worker.models.config import Family, SamplingDefaults
from worker.models.families import llama, qwen2, qwen3

FAMILIES: tuple[Family, ...] = (llama.FAMILY, qwen2.FAMILY, qwen3.FAMILY)

# Registry names of `worker.model` whose makers recommend a way of sampling.
NAMED_DEFAULTS = {"smollm2": SamplingDefaults(temperature=0.2, top_p=0.9)}


def family_of(model_type: str) -> Family:
    """The family of a `model_type` (config.json) or `general.architecture` (GGUF).

    Raises: LoadFault for a kind nobody here knows.
    """
    for family in FAMILIES:
        if family.name == model_type:
            return family
    known = ", ".join(family.name for family in FAMILIES)
    raise LoadFault(f"The model is of kind {model_type!r}; this engine runs: {known}.")
