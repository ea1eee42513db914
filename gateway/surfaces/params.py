"""What the OpenAI generation surfaces share: sampling, limits, stop strings, usage wishes.

Knows no prompt and no messages.
"""

from dataclasses import dataclass
from typing import Any

from gateway.surfaces.fields import bad_field, flag, integer, number
from proto.chat import Call, Params
from proto.limits import STOP_STRINGS, STOP_STRINGS_USED

MOST_TOKENS = 2**31 - 1
INT64 = 2**63


@dataclass(frozen=True, slots=True)
class ManagedRequest:
    """A parsed request for our own engine.

    `include_usage`, `seed` None: the client said nothing about usage, gave no seed.
    """

    call: Call
    params: Params
    seed: int | None
    is_stream: bool
    include_usage: bool | None


def read_params(body: dict[str, Any]) -> Params:
    """How to sample and when to end.

    Raises: ApiError 400 that names the field.
    """
    return Params(
        max_tokens=_max_tokens(body),
        stop=_stop(body),
        temperature=number(body, "temperature", low=0, high=2),
        top_p=_top_p(body),
        top_k=integer(body, "top_k", low=0, high=MOST_TOKENS),
        min_p=number(body, "min_p", low=0, high=1),
        cache_prompt=flag(body, "cache_prompt", default=True),
    )


def managed_request(body: dict[str, Any], call: Call, params: Params) -> ManagedRequest:
    """A call and its parameters, with what else the body says about the answer.

    Raises: ApiError 400 that names the field.
    """
    return ManagedRequest(
        call=call,
        params=params,
        seed=integer(body, "seed", low=-INT64, high=INT64 - 1),
        is_stream=flag(body, "stream", default=False),
        include_usage=_include_usage(body),
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


def _top_p(body: dict[str, Any]) -> float | None:
    top_p = number(body, "top_p", low=0, high=1)
    if top_p == 0:
        raise bad_field("top_p", "'top_p' must be above 0 and at most 1.")
    return top_p


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
