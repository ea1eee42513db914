"""What becomes of each field of a chat request to our own engine. One table, pinned by a test.

Honoured fields are read by `parse`; neutral ones change nothing in the answer and are accepted;
refused ones get a 400 that names them. A field that nobody defined passes without effect.
"""

from typing import Any

from gateway.surfaces.fields import Disposition, bad_field
from proto.limits import TEMPLATE_ARGS_BYTES

FIELDS: dict[str, Disposition] = {
    "messages": "honoured",
    "model": "honoured",
    "stream": "honoured",
    "stream_options": "honoured",
    "max_tokens": "honoured",
    "max_completion_tokens": "honoured",
    "stop": "honoured",
    "temperature": "honoured",
    "top_p": "honoured",
    "top_k": "honoured",
    "min_p": "honoured",
    "seed": "honoured",
    "modalities": "honoured",
    "cache_prompt": "honoured",
    "chat_template_kwargs": "honoured",
    "user": "neutral",
    "metadata": "neutral",
    "store": "neutral",
    "service_tier": "neutral",
    "prompt_cache_key": "neutral",
    "safety_identifier": "neutral",
    "prediction": "neutral",
    "reasoning_effort": "neutral",
    "max_reasoning_tokens": "neutral",
    "thinking_budget": "neutral",
    "parallel_tool_calls": "neutral",
    "audio": "refused",
    "functions": "refused",
    "function_call": "refused",
    "web_search_options": "refused",
    "verbosity": "refused",
}

# Fields of the API that the engine cannot honour yet: only their "off" value is accepted.
OFF_VALUES: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
}


def template_args(body: dict[str, Any]) -> dict[str, Any] | None:
    """`chat_template_kwargs`: an object of JSON scalars."""
    value = body.get("chat_template_kwargs")
    if value is None:
        return None
    is_flat = isinstance(value, dict) and not any(
        isinstance(item, (dict, list)) or (isinstance(item, int) and abs(item) >= 2**63)
        for item in value.values()
    )
    if not is_flat or len(str(value)) > TEMPLATE_ARGS_BYTES:
        raise bad_field(
            "chat_template_kwargs",
            f"'chat_template_kwargs' must be an object of plain values under "
            f"{TEMPLATE_ARGS_BYTES} bytes.",
        )
    return dict(value)
