"""Bodies of model calls: what each surface may hold, and members that no surface knows.

Knows no HTTP. A body is text in three parts, because its `model` may be replaced on the way.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

from tests.gateway.varied.json_texts import (
    ESCAPES,
    LONG_NUMBER,
    NUMBERS,
    SPACES,
    TEXTS,
    Pairs,
    Raw,
    Writer,
    nested,
    odd_value,
)

_MARK = "\x00the model\x00"
_NOWHERE = "http://127.0.0.1:9/v1"
_REDIRECTING: dict[str, Any] = {
    "base_url": _NOWHERE,
    "api_base": _NOWHERE,
    "api_key": "somebody-elses",
    "custom_llm_provider": "openai",
    "extra_headers": {"authorization": "Bearer x"},
}
DEEP = 95  # levels; 100 are allowed, some are used around it


@dataclass(frozen=True, slots=True)
class Body:
    """A request body as text. `model` is the JSON string between the two other parts."""

    before: str
    model: str
    after: str

    @property
    def text(self) -> bytes:
        return (self.before + self.model + self.after).encode()

    def with_model(self, literal: str) -> bytes:
        """The same bytes with another model."""
        return (self.before + literal + self.after).encode()


def make_body(surface: str, model: str, rng: Random, *, is_stream: bool) -> Body:
    """An odd but legal body of this surface."""
    escapes = rng.choice(ESCAPES)
    writer = Writer(rng, spaces=rng.choice([*SPACES]), escapes=escapes)
    items = Pairs(_FIELDS[surface](rng).items())
    if surface.startswith("gemini"):
        items += _odd_members(rng)
        rng.shuffle(items)
        return Body(writer.write(items), "", "")
    if is_stream:
        items.append(("stream", True))
    elif rng.random() < 0.5:
        items.append(("stream", False))
    items += _odd_members(rng)
    items.append(("model", Raw(_MARK)))
    rng.shuffle(items)
    before, _, after = writer.write(items).partition(_MARK)
    return Body(before, Writer(rng, escapes=escapes).string(model), after)


def _odd_members(rng: Random) -> Pairs:
    members = Pairs(rng.sample([*_REDIRECTING.items()], k=2))
    members.append((rng.choice(("x_unknown", "", "__proto__", "MODEL", "mode")), odd_value(rng)))
    members.append(("temperature", Raw(rng.choice(NUMBERS))))
    if rng.random() < 0.3:
        members += [("user", "one"), ("user", "two"), ("deep", nested(DEEP))]
    if rng.random() < 0.05:
        members.append(("long", LONG_NUMBER))
    return members


def _schema(rng: Random) -> dict[str, Any]:
    return {
        "type": ["object", "null"],
        "properties": {"a b": {"type": "number", "minimum": Raw(rng.choice(NUMBERS))}},
        "x-odd": odd_value(rng),
    }


def _chat(rng: Random) -> dict[str, Any]:
    function = {"name": "f", "arguments": rng.choice(('{"a": 1.0}', "", "{broken"))}
    call = {"id": "call_1", "type": "function", "index": 0, "status": "x", "function": function}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages: list[Any] = [
        {"role": "system", "content": rng.choice(TEXTS)},
        {"role": "user", "content": [{"type": "text", "text": rng.choice(TEXTS)}, image]},
        rng.choice((
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "assistant", "tool_calls": [call]},
        )),
        {"role": "tool", "tool_call_id": "call_1", "content": rng.choice(TEXTS)},
    ]  # fmt: skip
    tool = {"type": "function", "function": {"name": "f", "parameters": _schema(rng)}}
    return {"messages": messages, "tools": [tool], "tool_choice": "auto", "n": Raw("1")}


def _completions(rng: Random) -> dict[str, Any]:
    prompts = [rng.choice(TEXTS), [rng.choice(TEXTS), "b"], [1, 2, 3], [[1], [2]]]
    return {"prompt": rng.choice(prompts), "max_tokens": Raw("1e2"), "echo": False}


def _responses(rng: Random) -> dict[str, Any]:
    items: list[Any] = [
        {"type": "message", "role": "user", "content": rng.choice(TEXTS)},
        {"type": "reasoning", "id": "rs_1", "encrypted_content": "AAAA", "summary": []},
        {"type": "never_heard_of", "x": odd_value(rng)},
        {"type": "function_call_output", "call_id": "c", "output": rng.choice(TEXTS)},
    ]
    function = {"type": "function", "name": "f", "strict": True, "parameters": _schema(rng)}
    tools = [{"type": "namespace", "name": "n"}, {"type": "web_search"}, function]
    return {"input": rng.choice([items, "hi"]), "tools": tools, "store": False, "include": []}


def _embeddings(rng: Random) -> dict[str, Any]:
    return {"input": rng.choice([[*TEXTS], "x", [[1, 2]]]), "dimensions": Raw("1.0")}


def _messages(rng: Random) -> dict[str, Any]:
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    cached = {"type": "text", "text": rng.choice(TEXTS), "cache_control": {"type": "ephemeral"}}
    messages: list[Any] = [
        {"role": "user", "content": [cached]},
        {"role": "system", "content": rng.choice(TEXTS)},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": []}]},
    ]
    return {
        "messages": messages,
        "max_tokens": rng.choice((Raw("1024.0"), 32_000)),
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [odd_value(rng)]},
        "metadata": {"user_id": '{"device_id":"\u00e9"}'},
        "tools": [{"name": "f", "input_schema": _schema(rng)}],
    }


def _gemini(rng: Random) -> dict[str, Any]:
    name = rng.choice(("parameters", "parametersJsonSchema", "parameters_json_schema"))
    call = {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "skip"}
    return {
        "contents": [{"role": "user", "parts": [{"text": rng.choice(TEXTS)}, call]}],
        "generationConfig": rng.choice([{}, {"maxOutputTokens": Raw("1E2")}]),
        "tools": [{"functionDeclarations": [{"name": "f", name: _schema(rng)}]}],
    }


_FIELDS = {
    "chat": _chat,
    "completions": _completions,
    "responses": _responses,
    "embeddings": _embeddings,
    "messages": _messages,
    "count_tokens": _messages,
    "gemini": _gemini,
    "gemini_count": _gemini,
}
