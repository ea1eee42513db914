"""What the OpenAI generation surfaces share: sampling, limits, stop strings, usage wishes.

Knows no prompt and no messages.
"""

from dataclasses import dataclass
from typing import Any

from conductor.thinking import ThinkingWish
from gateway.surfaces.fields import bad_field, flag, integer, number
from proto.chat import Call, Params
from proto.limits import CHOICES, LOGIT_BIASES, STOP_STRINGS, STOP_STRINGS_USED

MOST_TOKENS = 2**31 - 1
INT64 = 2**63
NO_THINKING = ThinkingWish(is_on=False)


@dataclass(frozen=True, slots=True)
class ManagedRequest:
    """A parsed request for our own engine. `choices`: how many answers it asks for.

    `include_usage`, `seed` None: the client said nothing about usage, gave no seed.
    """

    call: Call
    params: Params
    seed: int | None
    is_stream: bool
    include_usage: bool | None
    choices: int = 1
    thinking: ThinkingWish = ThinkingWish()


def read_params(body: dict[str, Any], *, top_logprobs: int | None = None) -> Params:
    """How to sample and when to end.

    Raises: ApiError 400 that names the field.
    """
    return Params(
        max_tokens=_max_tokens(body),
        stop=_stop(body),
        temperature=number(body, "temperature", low=0, high=2),
        top_p=_above_zero(body, "top_p", high=1),
        top_k=integer(body, "top_k", low=0, high=MOST_TOKENS),
        min_p=number(body, "min_p", low=0, high=1),
        presence_penalty=_or(number(body, "presence_penalty", low=-2, high=2), 0.0),
        frequency_penalty=_or(number(body, "frequency_penalty", low=-2, high=2), 0.0),
        repetition_penalty=_above_zero(body, "repetition_penalty", high=2) or 1.0,
        logit_bias=_logit_bias(body),
        top_logprobs=top_logprobs,
        cache_prompt=flag(body, "cache_prompt", default=True),
    )


def managed_request(
    body: dict[str, Any],
    call: Call,
    params: Params,
    thinking: ThinkingWish = NO_THINKING,
) -> ManagedRequest:
    """A call and its parameters, with what else the body says about the answer.

    Raises: ApiError 400 that names the field.
    """
    is_stream = flag(body, "stream", default=False)
    choices = integer(body, "n", low=1, high=CHOICES) or 1
    if choices > 1 and is_stream:
        raise bad_field("n", "'n' above 1 cannot be streamed; leave 'stream' or 'n' out.")
    if choices > 1 and call.tools:
        raise bad_field("n", "'n' above 1 does not go with 'tools'; leave one of them out.")
    return ManagedRequest(
        call=call,
        params=params,
        seed=integer(body, "seed", low=-INT64, high=INT64 - 1),
        is_stream=is_stream,
        include_usage=_include_usage(body),
        choices=choices,
        thinking=thinking,
    )


def _max_tokens(body: dict[str, Any]) -> int | None:
    """The completion limit where both are given; zero and below mean no limit."""
    limits = [
        integer(body, name, low=-MOST_TOKENS, high=MOST_TOKENS)
        for name in ("max_completion_tokens", "max_tokens")
    ]
    return next((limit for limit in limits if limit is not None and limit > 0), None)


def _stop(body: dict[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop")
    if stop is None:
        return ()
    strings = [stop] if isinstance(stop, str) else stop
    if not isinstance(strings, list) or not all(isinstance(s, str) and s for s in strings):
        raise bad_field("stop", "'stop' must be text or a list of texts, none of them empty.")
    if len(strings) > STOP_STRINGS:
        raise bad_field("stop", f"'stop' holds more than {STOP_STRINGS} texts.")
    return tuple(strings[:STOP_STRINGS_USED])


def _above_zero(body: dict[str, Any], name: str, *, high: float) -> float | None:
    value = number(body, name, low=0, high=high)
    if value == 0:
        raise bad_field(name, f"'{name}' must be above 0 and at most {high:g}.")
    return value


def _logit_bias(body: dict[str, Any]) -> dict[str, float] | None:
    bias = body.get("logit_bias")
    if bias is None:
        return None
    if not isinstance(bias, dict) or len(bias) > LOGIT_BIASES:
        message = f"'logit_bias' must be an object of at most {LOGIT_BIASES} token ids."
        raise bad_field("logit_bias", message)
    for value in bias.values():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not -100 <= value <= 100:
            raise bad_field("logit_bias", "The values of 'logit_bias' must be from -100 to 100.")
    return {token: float(value) for token, value in bias.items()}


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _include_usage(body: dict[str, Any]) -> bool | None:
    options = body.get("stream_options")
    if options is None:
        return None
    if not isinstance(options, dict):
        raise bad_field("stream_options", "'stream_options' must be an object.")
    wanted = options.get("include_usage")
    if wanted is not None and not isinstance(wanted, bool):
        name = "stream_options.include_usage"
        raise bad_field(name, f"'{name}' must be true or false.")
    return wanted
