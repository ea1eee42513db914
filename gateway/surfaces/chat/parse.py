"""A chat completions request becomes a `Call`. Knows no backend; every error names its field.

Source: OpenAI API reference, "Create chat completion", and what real clients send: content may be
text, a list of parts, null, or missing, in any role.
"""

from typing import Any

from gateway.surfaces.answer_format import read_answer_format
from gateway.surfaces.chat.fields import FIELDS, template_args, thinking_wish, top_logprobs
from gateway.surfaces.fields import bad_field, check_dispositions
from gateway.surfaces.params import ManagedRequest, managed_request, read_params
from gateway.surfaces.tools import read_parallel, read_tool_choice, read_tools
from proto.chat import Call, ImagePart, Message, Part, TextPart, ToolCall
from proto.limits import MESSAGES

ROLES = ("system", "developer", "user", "assistant", "tool")


def parse_chat(body: dict[str, Any]) -> ManagedRequest:
    """Reads the JSON body of a request.

    Raises: ApiError 400 that names the field and what to change.
    """
    check_dispositions(body, FIELDS)
    _check_modalities(body)
    tools = read_tools(body)
    choice = read_tool_choice(body, tools)
    call = Call(
        model=body["model"],
        messages=_messages(body),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=read_parallel(body, choice),
        answer_format=read_answer_format(body),
        template_args=template_args(body),
    )
    params = read_params(body, top_logprobs=top_logprobs(body))
    return managed_request(body, call, params, thinking_wish(body))


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


def _check_modalities(body: dict[str, Any]) -> None:
    modalities = body.get("modalities")
    if modalities is not None and modalities != ["text"]:
        raise bad_field("modalities", "'modalities' must be [\"text\"]: this model writes text.")


def _text_or_none(value: Any, where: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise bad_field(where, f"'{where}' must be text.")
    return value
