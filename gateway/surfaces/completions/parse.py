"""A completions request becomes a `Call`: the prompt as it is, or a conversation for a `suffix`.

Knows no template and no backend. Source: OpenAI API reference, "Create completion".
"""

from dataclasses import replace
from typing import Any

from gateway.surfaces.fields import Disposition, bad_field, check_dispositions, integer
from gateway.surfaces.params import ManagedRequest, managed_request, read_params
from proto.chat import Call, Message, TextPart

DEFAULT_MAX_TOKENS = 128
TOP_LOGPROBS = 5
INSERTING = "You complete code. Reply with the text between the two parts and with nothing else."

FIELDS: dict[str, Disposition] = {
    "prompt": "honoured",
    "suffix": "honoured",
    "model": "honoured",
    "stream": "honoured",
    "stream_options": "honoured",
    "max_tokens": "honoured",
    "stop": "honoured",
    "temperature": "honoured",
    "top_p": "honoured",
    "top_k": "honoured",
    "min_p": "honoured",
    "presence_penalty": "honoured",
    "frequency_penalty": "honoured",
    "repetition_penalty": "honoured",
    "logit_bias": "honoured",
    "logprobs": "honoured",
    "n": "honoured",
    "best_of": "honoured",
    "seed": "honoured",
    "cache_prompt": "honoured",
    "user": "neutral",
}
OFF_VALUES: dict[str, tuple[Any, ...]] = {"echo": (False,)}


def parse_completion(body: dict[str, Any]) -> ManagedRequest:
    """Reads the JSON body of a request.

    Raises: ApiError 400 that names the field and what to change.
    """
    check_dispositions(body, FIELDS, OFF_VALUES)
    prompt = body.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise bad_field("prompt", "'prompt' must be one text that is not empty.")
    if body.get("best_of") not in (None, body.get("n") or 1):
        raise bad_field("best_of", "'best_of' must equal 'n': every answer is returned.")
    top_logprobs = integer(body, "logprobs", low=0, high=TOP_LOGPROBS)
    params = read_params(body, top_logprobs=top_logprobs)
    if params.max_tokens is None:
        params = replace(params, max_tokens=DEFAULT_MAX_TOKENS)
    return managed_request(body, _call(body["model"], prompt, body.get("suffix")), params)


def _call(model: str, prompt: str, suffix: Any) -> Call:
    if suffix is None or suffix == "":
        return Call(model=model, messages=(), prompt=prompt)
    if not isinstance(suffix, str):
        raise bad_field("suffix", "'suffix' must be text.")
    parts = f"Before the gap:\n{prompt}\n\nAfter the gap:\n{suffix}\n\nThe text in the gap:\n"
    messages = (
        Message("system", (TextPart(INSERTING),)),
        Message("user", (TextPart(parts),)),
    )
    return Call(model=model, messages=messages)
