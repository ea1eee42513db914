"""A chat completions request becomes a `Call`. Knows no backend; every error names its field.

Source: OpenAI API reference, "Create chat completion", and what real clients send: content may be
text, a list of parts, null, or missing, in any role.
"""

from dataclasses import dataclass
from typing import Any

from gateway.surfaces.chat.fields import (
    bad_field,
    check_dispositions,
    flag,
    integer,
    number,
    template_args,
)
from proto.chat import Call, ImagePart, Message, Params, Part, TextPart, ToolCall
from proto.limits import MESSAGES, STOP_STRINGS, STOP_STRINGS_USED

ROLES = ("system", "developer", "user", "assistant", "tool")
MOST_TOKENS = 2**31 - 1
INT64 = 2**63


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A parsed request. `include_usage` None: the client said nothing about usage.

    `seed` None: the client gave none.
    """

    call: Call
    params: Params
    seed: int | None
    is_stream: bool
    include_usage: bool | None


def parse_chat(body: dict[str, Any]) -> ChatRequest:
    """Reads the JSON body of a request.

    Raises: ApiError 400 that names the field and what to change.
    """
    check_dispositions(body)
    _check_modalities(body)
    call = Call(model=body["model"], messages=_messages(body), template_args=template_args(body))
    params = Params(
        max_tokens=_max_tokens(body),
        stop=_stop(body),
        temperature=number(body, "temperature", low=0, high=2),
        top_p=_top_p(body),
        top_k=integer(body, "top_k", low=0, high=MOST_TOKENS),
        min_p=number(body, "min_p", low=0, high=1),
        cache_prompt=flag(body, "cache_prompt", default=True),
    )
    return ChatRequest(
        call=call,
        params=params,
        seed=integer(body, "seed", low=-INT64, high=INT64 - 1),
        is_stream=flag(body, "stream", default=False),
        include_usage=_include_usage(body),
    )


def _messages(body: dict[str, Any]) -> tuple[Message, ...]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad_field("messages", "'messages' must be a list with at least one message.")
    if len(messages) > MESSAGES:
        raise bad_field("messages", f"'messages' holds more than {MESSAGES} messages.")
    return tuple(_message(item, f"messages[{index}]") for index, item in enumerate(messages))


def _message(item: Any, where: str) -> Message:
    if not isinstance(item, dict):
        raise bad_field(where, f"'{where}' must be an object.")
    role = item.get("role")
    if role not in ROLES:
        raise bad_field(f"{where}.role", f"'{where}.role' must be one of {', '.join(ROLES)}.")
    return Message(
        role=role,
        content=_content(item.get("content"), f"{where}.content"),
        calls=_calls(item.get("tool_calls"), f"{where}.tool_calls"),
        call_id=_text_or_none(item.get("tool_call_id"), f"{where}.tool_call_id"),
        name=_text_or_none(item.get("name"), f"{where}.name"),
        reasoning=_text_or_none(item.get("reasoning_content"), f"{where}.reasoning_content"),
    )


def _content(content: Any, where: str) -> tuple[Part, ...]:
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        return (TextPart(content),)
    if not isinstance(content, list):
        raise bad_field(where, f"'{where}' must be text or a list of parts.")
    return tuple(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: Any, where: str) -> Part:
    if isinstance(part, str):
        return TextPart(part)
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("text", "input_text", "refusal") and isinstance(part.get("text", ""), str):
        return TextPart(part.get("text") or part.get("refusal") or "")
    if kind == "image_url":
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else image
        if isinstance(url, str):
            return ImagePart(url)
    raise bad_field(where, f"'{where}' must be a part of type 'text' or 'image_url'.")


def _calls(calls: Any, where: str) -> tuple[ToolCall, ...]:
    if calls is None:
        return ()
    if not isinstance(calls, list):
        raise bad_field(where, f"'{where}' must be a list of calls.")
    return tuple(_call(call, f"{where}[{index}]") for index, call in enumerate(calls))


def _call(call: Any, where: str) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str):
        raise bad_field(where, f"'{where}' must be a call with 'id' and 'function.name'.")
    arguments = function.get("arguments")
    return ToolCall(
        id=_text_or_none(call.get("id"), f"{where}.id") or "",
        name=name,
        arguments=arguments if isinstance(arguments, str) else "{}",
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


def _check_modalities(body: dict[str, Any]) -> None:
    modalities = body.get("modalities")
    if modalities is not None and modalities != ["text"]:
        raise bad_field("modalities", "'modalities' must be [\"text\"]: this model writes text.")


def _text_or_none(value: Any, where: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise bad_field(where, f"'{where}' must be text.")
    return value
