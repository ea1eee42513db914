"""A completions request becomes a `Call` with a raw prompt. Knows no template and no backend.

Source: OpenAI API reference, "Create completion".
"""

from dataclasses import replace
from typing import Any

from gateway.surfaces.fields import Disposition, bad_field, check_dispositions
from gateway.surfaces.params import ManagedRequest, managed_request, read_params
from proto.chat import Call

DEFAULT_MAX_TOKENS = 128

FIELDS: dict[str, Disposition] = {
    "prompt": "honoured",
    "model": "honoured",
    "stream": "honoured",
    "stream_options": "honoured",
    "max_tokens": "honoured",
    "stop": "honoured",
    "temperature": "honoured",
    "top_p": "honoured",
    "top_k": "honoured",
    "min_p": "honoured",
    "seed": "honoured",
    "cache_prompt": "honoured",
    "user": "neutral",
}
OFF_VALUES: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
}


def parse_completion(body: dict[str, Any]) -> ManagedRequest:
    """Reads the JSON body of a request.

    Raises: ApiError 400 that names the field and what to change.
    """
    check_dispositions(body, FIELDS, OFF_VALUES)
    prompt = body.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise bad_field("prompt", "'prompt' must be one text that is not empty.")
    params = read_params(body)
    if params.max_tokens is None:
        params = replace(params, max_tokens=DEFAULT_MAX_TOKENS)
    call = Call(model=body["model"], messages=(), prompt=prompt)
    return managed_request(body, call, params)
