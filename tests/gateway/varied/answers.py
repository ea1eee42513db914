"""What a model says on each surface: whole answers and events, with the tokens they report.

Knows no HTTP. Events come as (name, JSON value) pairs, in order.
"""

from random import Random
from typing import Any

from tests.gateway.varied.json_texts import NUMBERS, TEXTS, Pairs, Raw, odd_value

Tokens = tuple[int, int]  # prompt, completion (0: the call makes none)
Event = tuple[str, Any]
STREAMING = ("chat", "completions", "responses", "messages", "gemini")


def whole(surface: str, rng: Random) -> tuple[Any, Tokens]:
    """A whole answer of a surface, with members that nobody knows."""
    tokens = rng.randrange(1, 10_000), rng.randrange(1, 5_000)
    text = rng.choice(TEXTS) + "x"
    items = Pairs(_WHOLE[surface](text, tokens).items())
    items += [("x_unknown", odd_value(rng)), ("x_number", Raw(rng.choice(NUMBERS)))]
    rng.shuffle(items)
    return items, tokens if surface in STREAMING else (tokens[0], 0)


def events(surface: str, rng: Random, *, huge_bytes: int = 0) -> tuple[list[Event], Tokens]:
    """A streamed answer; `huge_bytes`: the length of one of its texts."""
    tokens = rng.randrange(1, 10_000), rng.randrange(1, 5_000)
    texts = [rng.choice(TEXTS) + "." for _ in range(rng.randrange(1, 4))]
    if huge_bytes:
        texts.append("h" * huge_bytes)
    return _EVENTS[surface](texts, tokens), tokens


def _chat(text: str, tokens: Tokens) -> dict[str, Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": text, "tool_calls": [call]}
    return {
        "id": "x",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]},
    }


def _completions(text: str, tokens: Tokens) -> dict[str, Any]:
    return {
        "object": "text_completion",
        "choices": [{"index": 0, "text": text, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]},
    }


def _responses(text: str, tokens: Tokens) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "object": "response",
        "status": "completed",
        "output": [{"type": "message", "content": [part]}, {"type": "never_heard_of"}],
        "usage": {"input_tokens": tokens[0], "output_tokens": tokens[1]},
    }


def _messages(text: str, tokens: Tokens) -> dict[str, Any]:
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": tokens[0], "output_tokens": tokens[1]},
    }


def _gemini(text: str, tokens: Tokens) -> dict[str, Any]:
    content = {"role": "model", "parts": [{"text": text}]}
    return {
        "candidates": [{"content": content, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": tokens[0], "candidatesTokenCount": tokens[1]},
    }


def _embeddings(text: str, tokens: Tokens) -> dict[str, Any]:
    numbers = [Raw("0.10"), Raw("-1e-7"), Raw("1.0"), Raw("5E-324")]
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": numbers}],
        "usage": {"prompt_tokens": tokens[0], "total_tokens": tokens[0]},
    }


def _count_tokens(text: str, tokens: Tokens) -> dict[str, Any]:
    return {"input_tokens": tokens[0]}


def _gemini_count(text: str, tokens: Tokens) -> dict[str, Any]:
    return {"totalTokens": tokens[0]}


_WHOLE = {
    "chat": _chat,
    "completions": _completions,
    "responses": _responses,
    "messages": _messages,
    "gemini": _gemini,
    "embeddings": _embeddings,
    "count_tokens": _count_tokens,
    "gemini_count": _gemini_count,
}


def _chat_events(texts: list[str], tokens: Tokens) -> list[Event]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return "", {"object": "chat.completion.chunk", "choices": [choice]}

    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}
    deltas = [chunk({"content": text}) for text in texts]
    end = [chunk({}, "stop"), ("", {"choices": [], "usage": usage})]
    return [chunk({"role": "assistant", "content": ""}), *deltas, *end]


def _completions_events(texts: list[str], tokens: Tokens) -> list[Event]:
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}
    choices: list[Any] = [{"index": 0, "text": text, "finish_reason": None} for text in texts]
    last = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}], "usage": usage}
    return [*(("", {"choices": [choice]}) for choice in choices), ("", last)]


def _responses_events(texts: list[str], tokens: Tokens) -> list[Event]:
    bodies: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"object": "response", "status": "in_progress"}},
        *({"type": "response.output_text.delta", "delta": text} for text in texts),
        {"type": "response.never_heard_of", "x": Raw("1.0")},
        {"type": "response.completed", "response": _responses("".join(texts), tokens)},
    ]
    return [(body["type"], body) for body in bodies]


def _messages_events(texts: list[str], tokens: Tokens) -> list[Event]:
    start = {"type": "message", "content": [], "usage": {"input_tokens": tokens[0]}}
    block = {"type": "text", "text": ""}
    bodies: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "ping"},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": t}}
            for t in texts
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": tokens[1]},
        },
        {"type": "message_stop"},
    ]
    return [(body["type"], body) for body in bodies]


def _gemini_events(texts: list[str], tokens: Tokens) -> list[Event]:
    contents = [{"role": "model", "parts": [{"text": text}]} for text in texts]
    parts: list[Any] = [{"candidates": [{"content": content}]} for content in contents]
    return [*(("", part) for part in parts), ("", _gemini("", tokens))]


_EVENTS = {
    "chat": _chat_events,
    "completions": _completions_events,
    "responses": _responses_events,
    "messages": _messages_events,
    "gemini": _gemini_events,
}
