"""Other ways to write a message on the chat surface, the same to every reader. Knows no client."""

import json

from tests.conductor.recorded.talk import Fields


def in_parts(message: Fields) -> Fields:
    """Text as two parts; a reader joins them."""
    text = message["content"]
    if not isinstance(text, str) or not text:
        return message
    middle = len(text) // 2
    parts = [{"type": "text", "text": piece} for piece in (text[:middle], text[middle:])]
    return {**message, "content": parts}


def in_one_text(message: Fields) -> Fields:
    """Parts as one text."""
    content = message["content"]
    if not isinstance(content, list):
        return message
    return {**message, "content": "".join(part["text"] for part in content)}


def with_other_ids(message: Fields) -> Fields:
    """Other ids of calls, and arguments with blanks and escapes."""
    message = {**message, "tool_calls": [_again(call) for call in message.get("tool_calls", [])]}
    if "tool_call_id" in message:
        message["tool_call_id"] = f"item_{message['tool_call_id']}"
    return message if message["tool_calls"] else _without(message, "tool_calls")


def _again(call: Fields) -> Fields:
    function = call["function"]
    arguments = json.dumps(json.loads(function["arguments"]), indent=2, ensure_ascii=True)
    return {**call, "id": f"item_{call['id']}", "function": {**function, "arguments": arguments}}


def without_reasoning(message: Fields) -> Fields:
    return _without(message, "reasoning_content")


def without_content(message: Fields) -> Fields:
    """`null` beside calls."""
    return {**message, "content": None} if message.get("tool_calls") else message


def _without(message: Fields, name: str) -> Fields:
    return {key: value for key, value in message.items() if key != name}
