"""What becomes of each field of a chat request to our own engine. One table, pinned by a test.

Honoured fields are read by `parse` and its helpers; neutral ones change nothing in the answer and
are accepted; refused ones get a 400 that names them. A field that nobody defined passes without
effect.
"""

from typing import Any

from conductor.thinking import Effort, ThinkingWish
from gateway.surfaces.fields import Disposition, bad_field, flag, integer
from gateway.surfaces.params import MOST_TOKENS
from proto.limits import TEMPLATE_ARGS_BYTES, TOP_LOGPROBS

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
    "presence_penalty": "honoured",
    "frequency_penalty": "honoured",
    "repetition_penalty": "honoured",
    "logit_bias": "honoured",
    "logprobs": "honoured",
    "top_logprobs": "honoured",
    "n": "honoured",
    "tools": "honoured",
    "tool_choice": "honoured",
    "parallel_tool_calls": "honoured",
    "response_format": "honoured",
    "structured_outputs": "honoured",
    "reasoning_effort": "honoured",
    "max_reasoning_tokens": "honoured",
    "thinking_budget": "honoured",
    "user": "neutral",
    "metadata": "neutral",
    "store": "neutral",
    "service_tier": "neutral",
    "prompt_cache_key": "neutral",
    "safety_identifier": "neutral",
    "prediction": "neutral",
    "audio": "refused",
    "functions": "refused",
    "function_call": "refused",
    "web_search_options": "refused",
    "verbosity": "refused",
}

EFFORTS: dict[str, Effort] = {
    "none": "none", "off": "none", "disabled": "none", "minimal": "minimal", "low": "low",
    "medium": "medium", "high": "high", "xhigh": "high", "max": "high", "ultra": "high",
}  # fmt: skip


def thinking_wish(body: dict[str, Any]) -> ThinkingWish:
    """What the request says about reasoning. An effort that nobody knows says nothing."""
    limits = (
        integer(body, name, low=0, high=MOST_TOKENS)
        for name in ("max_reasoning_tokens", "thinking_budget")
    )
    given = [limit for limit in limits if limit is not None]
    effort = body.get("reasoning_effort")
    if effort is not None and not isinstance(effort, str):
        raise bad_field("reasoning_effort", "'reasoning_effort' must be text, such as 'low'.")
    is_on = (body.get("chat_template_kwargs") or {}).get("enable_thinking")
    if is_on is not None and not isinstance(is_on, bool):
        name = "chat_template_kwargs"
        raise bad_field(name, f"'{name}.enable_thinking' must be true or false.")
    return ThinkingWish(is_on, given[0] if given else None, EFFORTS.get(effort or ""))


def top_logprobs(body: dict[str, Any]) -> int | None:
    """How many likeliest tokens to show beside the chosen one; None for no log-probabilities."""
    count = integer(body, "top_logprobs", low=0, high=TOP_LOGPROBS)
    if not flag(body, "logprobs", default=False):
        if count:
            message = "'top_logprobs' needs 'logprobs' to be true."
            raise bad_field("top_logprobs", message)
        return None
    return count or 0


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
