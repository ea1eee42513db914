"""What becomes of each field of a chat request to our own engine. One table, pinned by a test.

Honoured fields are read by `parse`; neutral ones change nothing in the answer and are accepted;
refused ones get a 400 that names them. A field that nobody defined passes without effect.
"""

from typing import Any, Literal

from gateway.errors import ApiError
from proto.limits import TEMPLATE_ARGS_BYTES

Disposition = Literal["honoured", "neutral", "refused"]

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


def check_dispositions(body: dict[str, Any]) -> None:
    """Raises: ApiError 400 for a field that is refused or cannot be honoured yet."""
    for name, value in body.items():
        if value is None:
            continue
        if FIELDS.get(name) == "refused":
            raise bad_field(name, f"'{name}' is not supported by this model; leave it out.")
        if name in OFF_VALUES and not any(_is_same(value, off) for off in OFF_VALUES[name]):
            raise bad_field(name, f"'{name}' is not supported by this model yet; leave it out.")


def number(body: dict[str, Any], name: str, *, low: float, high: float) -> float | None:
    """A number in [low, high], or None when it is absent."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise bad_field(name, f"'{name}' must be a number from {low:g} to {high:g}.")
    if not low <= value <= high:
        raise bad_field(name, f"'{name}' must be from {low:g} to {high:g}; it is {value:g}.")
    return float(value)


def integer(body: dict[str, Any], name: str, *, low: int, high: int) -> int | None:
    """A whole number in [low, high], or None when it is absent. A bool is no integer."""
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:
        raise bad_field(name, f"'{name}' must be a whole number from {low} to {high}.")
    return value


def flag(body: dict[str, Any], name: str, *, default: bool) -> bool:
    """A boolean, or the default when it is absent."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise bad_field(name, f"'{name}' must be true or false.")
    return value


def template_args(body: dict[str, Any]) -> dict[str, Any] | None:
    """`chat_template_kwargs`: an object of JSON scalars."""
    value = body.get("chat_template_kwargs")
    if value is None:
        return None
    is_flat = isinstance(value, dict) and not any(
        isinstance(item, (dict, list)) for item in value.values()
    )
    if not is_flat or len(str(value)) > TEMPLATE_ARGS_BYTES:
        raise bad_field(
            "chat_template_kwargs",
            f"'chat_template_kwargs' must be an object of plain values under "
            f"{TEMPLATE_ARGS_BYTES} bytes.",
        )
    return dict(value)


def bad_field(name: str, message: str) -> ApiError:
    """A 400 that names the field."""
    return ApiError(400, "invalid_request", message, param=name)


def _is_same(value: Any, off: Any) -> bool:
    return bool(value == off) and isinstance(value, bool) == isinstance(off, bool)
