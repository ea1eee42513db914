"""One conversation as each relayed surface speaks it: request, whole answer, stream. In our words.

Each answer says `TEXT`, whose characters take 1, 2, 3 and 4 bytes, calls the tool `weather`, and
states `TOKENS`. Source of the forms: the public API references. Knows no gateway but its settings.
"""

import json
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from gateway.settings.types import BackendKind, BackendSettings, Surface
from tests.wire.grammar import chat, gemini, messages, responses

TEXT = "Grüße aus 東京 🚲!"
DELTAS = ("Grüße ", "aus 東", "京 🚲!")
ARGUMENTS = ('{"city":', ' "東京🗼"}')
TOKENS = {"prompt_tokens": 21, "cached_tokens": 5, "completion_tokens": 13}


@dataclass(frozen=True)
class Sample:
    """A surface's request and answers. `events`: the stream, one record each.

    `first_text`, `finish_at`: the numbers of the records with the first text and with the end.
    """

    surface: Surface
    kind: BackendKind
    path: str
    stream_path: str
    request: dict[str, Any]
    stream_request: dict[str, Any]
    whole: bytes
    events: tuple[bytes, ...]
    first_text: int
    finish_at: int
    grammar: ModuleType

    @property
    def stream(self) -> bytes:
        """The whole stream."""
        return b"".join(self.events)

    def backend(self, url: str, **settings: Any) -> BackendSettings:
        """A backend that speaks this surface and has one model named `m`."""
        base = f"{url}/v1" if self.kind == "openai" else url
        return BackendSettings(
            **{"kind": self.kind, "base_url": base, "models": ("m",), **settings}
        )

    def body(self, *, is_stream: bool) -> bytes:
        """The request's bytes."""
        return dump(self.stream_request if is_stream else self.request)

    def target(self, *, is_stream: bool) -> str:
        """The path, and the query where the surface needs one."""
        return self.stream_path if is_stream else self.path

    def __str__(self) -> str:
        return self.surface


def dump(value: Any) -> bytes:
    """JSON with its characters as they are."""
    return json.dumps(value, ensure_ascii=False).encode()


def data(value: Any, name: str = "") -> bytes:
    """One record of a stream."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + dump(value) + b"\n\n"


def typed(value: dict[str, Any]) -> bytes:
    """One record whose name is its type."""
    return data(value, value["type"])


DONE = b"data: [DONE]\n\n"
_ASK = [{"role": "user", "content": "How is the weather in Tokyo?"}]
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
_FUNCTION = {"name": "weather", "parameters": _SCHEMA}
_USAGE = {"prompt_tokens": 21, "completion_tokens": 13, "total_tokens": 34,
          "prompt_tokens_details": {"cached_tokens": 5}}  # fmt: skip


def chat_chunk(delta: dict[str, Any], finish: str | None = None, index: int = 0) -> bytes:
    """One chunk with one choice."""
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return data({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m-1",
                 "choices": [choice]})  # fmt: skip


def chat_usage(usage: dict[str, Any] | None = None) -> bytes:
    """The chunk with usage and no choice."""
    return data({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m-1",
                 "choices": [], "usage": usage or _USAGE})  # fmt: skip


def _call(arguments: str, **more: Any) -> dict[str, Any]:
    name = {"name": "weather"} if more else {}
    return {"tool_calls": [{"index": 0, **more, "function": {**name, "arguments": arguments}}]}


_CHAT_REQUEST = {"model": "m", "messages": _ASK,
                 "tools": [{"type": "function", "function": _FUNCTION}]}  # fmt: skip
CHAT = Sample(
    surface="chat", kind="openai", path="/v1/chat/completions", stream_path="/v1/chat/completions",
    request=_CHAT_REQUEST,
    stream_request={**_CHAT_REQUEST, "stream": True, "stream_options": {"include_usage": True}},
    whole=dump({
        "id": "c1", "object": "chat.completion", "model": "m-1",
        "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
            "role": "assistant", "content": TEXT,
            "tool_calls": [{"id": "call_1", "type": "function", "function": {
                "name": "weather", "arguments": "".join(ARGUMENTS)}}]}}],
        "usage": _USAGE,
    }),
    events=(
        chat_chunk({"role": "assistant", "content": ""}),
        *(chat_chunk({"content": text}) for text in DELTAS),
        chat_chunk(_call("", id="call_1", type="function")),
        *(chat_chunk(_call(arguments)) for arguments in ARGUMENTS),
        chat_chunk({}, "tool_calls"),
        chat_usage(),
        DONE,
    ),
    first_text=1, finish_at=7, grammar=chat,
)  # fmt: skip


def completion_chunk(text: str, finish: str | None = None) -> bytes:
    """One chunk of the legacy surface."""
    return data({"id": "t1", "object": "text_completion", "created": 1, "model": "m-1",
                 "choices": [{"index": 0, "text": text, "finish_reason": finish}]})  # fmt: skip


_COMPLETION_REQUEST = {"model": "m", "prompt": "How is the weather in Tokyo?"}
COMPLETIONS = Sample(
    surface="completions", kind="openai", path="/v1/completions", stream_path="/v1/completions",
    request=_COMPLETION_REQUEST,
    stream_request={**_COMPLETION_REQUEST, "stream": True,
                    "stream_options": {"include_usage": True}},
    whole=dump({
        "id": "t1", "object": "text_completion", "model": "m-1", "usage": _USAGE,
        "choices": [{"index": 0, "text": TEXT, "finish_reason": "stop"}],
    }),
    events=(
        *map(completion_chunk, DELTAS),
        completion_chunk("", "stop"),
        data({"id": "t1", "object": "text_completion", "created": 1, "model": "m-1",
              "choices": [], "usage": _USAGE}),
        DONE,
    ),
    first_text=0, finish_at=3, grammar=chat,
)  # fmt: skip


_OPEN: dict[str, Any] = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m-1",
                         "status": "in_progress", "output": []}  # fmt: skip
_PART = {"type": "output_text", "text": TEXT, "annotations": []}
_MESSAGE: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant",
                            "status": "completed", "content": [_PART]}  # fmt: skip
_FUNCTION_CALL: dict[str, Any] = {
    "id": "fc_1", "type": "function_call", "status": "completed", "call_id": "call_1",
    "name": "weather", "arguments": "".join(ARGUMENTS),
}  # fmt: skip
FINAL_RESPONSE: dict[str, Any] = {
    **_OPEN, "status": "completed", "output": [_MESSAGE, _FUNCTION_CALL],
    "usage": {"input_tokens": 21, "output_tokens": 13, "total_tokens": 34,
              "input_tokens_details": {"cached_tokens": 5}},
}  # fmt: skip


def numbered(*events: dict[str, Any]) -> tuple[bytes, ...]:
    """Records of the Responses surface, counted from 0."""
    return tuple(typed({**event, "sequence_number": number}) for number, event in enumerate(events))


_TEXT_AT = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
_CALL_AT = {"item_id": "fc_1", "output_index": 1}
RESPONSE_EVENTS: tuple[dict[str, Any], ...] = (
    {"type": "response.created", "response": _OPEN},
    {"type": "response.in_progress", "response": _OPEN},
    {"type": "response.output_item.added", "output_index": 0,
     "item": {**_MESSAGE, "status": "in_progress", "content": []}},
    {"type": "response.content_part.added", **_TEXT_AT, "part": {**_PART, "text": ""}},
    *({"type": "response.output_text.delta", **_TEXT_AT, "delta": text} for text in DELTAS),
    {"type": "response.output_text.done", **_TEXT_AT, "text": TEXT},
    {"type": "response.content_part.done", **_TEXT_AT, "part": _PART},
    {"type": "response.output_item.done", "output_index": 0, "item": _MESSAGE},
    {"type": "response.output_item.added", "output_index": 1,
     "item": {**_FUNCTION_CALL, "status": "in_progress", "arguments": ""}},
    *({"type": "response.function_call_arguments.delta", **_CALL_AT, "delta": arguments}
      for arguments in ARGUMENTS),
    {"type": "response.function_call_arguments.done", **_CALL_AT, "arguments": "".join(ARGUMENTS)},
    {"type": "response.output_item.done", "output_index": 1, "item": _FUNCTION_CALL},
    {"type": "response.completed", "response": FINAL_RESPONSE},
)  # fmt: skip
_RESPONSES_REQUEST = {"model": "m", "input": _ASK, "tools": [{"type": "function", **_FUNCTION}]}
RESPONSES = Sample(
    surface="responses", kind="openai", path="/v1/responses", stream_path="/v1/responses",
    request=_RESPONSES_REQUEST, stream_request={**_RESPONSES_REQUEST, "stream": True},
    whole=dump(FINAL_RESPONSE), events=numbered(*RESPONSE_EVENTS),
    first_text=4, finish_at=15, grammar=responses,
)  # fmt: skip


def block_delta(index: int, delta: dict[str, Any]) -> bytes:
    """One delta of a message's block."""
    return typed({"type": "content_block_delta", "index": index, "delta": delta})


_INPUT_USAGE = {"input_tokens": 16, "cache_read_input_tokens": 5}
_MESSAGE_START = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m-1",
                  "content": [], "stop_reason": None, "stop_sequence": None,
                  "usage": {**_INPUT_USAGE, "output_tokens": 1}}  # fmt: skip
_MESSAGES_REQUEST = {"model": "m", "max_tokens": 99, "messages": _ASK,
                     "tools": [{"name": "weather", "input_schema": _SCHEMA}]}  # fmt: skip
MESSAGES = Sample(
    surface="messages", kind="anthropic", path="/v1/messages", stream_path="/v1/messages",
    request=_MESSAGES_REQUEST, stream_request={**_MESSAGES_REQUEST, "stream": True},
    whole=dump({
        **_MESSAGE_START, "stop_reason": "tool_use",
        "content": [{"type": "text", "text": TEXT},
                    {"type": "tool_use", "id": "toolu_1", "name": "weather",
                     "input": {"city": "東京🗼"}}],
        "usage": {**_INPUT_USAGE, "output_tokens": 13},
    }),
    events=(
        typed({"type": "message_start", "message": _MESSAGE_START}),
        typed({"type": "content_block_start", "index": 0,
               "content_block": {"type": "text", "text": ""}}),
        typed({"type": "ping"}),
        *(block_delta(0, {"type": "text_delta", "text": text}) for text in DELTAS),
        typed({"type": "content_block_stop", "index": 0}),
        typed({"type": "content_block_start", "index": 1, "content_block": {
            "type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}}),
        *(block_delta(1, {"type": "input_json_delta", "partial_json": arguments})
          for arguments in ARGUMENTS),
        typed({"type": "content_block_stop", "index": 1}),
        typed({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None},
               "usage": {"output_tokens": 13}}),
        typed({"type": "message_stop"}),
    ),
    first_text=3, finish_at=11, grammar=messages,
)  # fmt: skip


def gemini_answer(*parts: Any, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One response of the Gemini surface."""
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": [*parts]}}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "modelVersion": "m-1", **more}


_GEMINI_CALL = {"functionCall": {"name": "weather", "args": {"city": "東京🗼"}}}
_GEMINI_USAGE = {"usageMetadata": {
    "promptTokenCount": 21, "cachedContentTokenCount": 5, "candidatesTokenCount": 10,
    "thoughtsTokenCount": 3, "totalTokenCount": 34}}  # fmt: skip
_GEMINI_REQUEST = {
    "contents": [{"role": "user", "parts": [{"text": "How is the weather in Tokyo?"}]}],
    "tools": [{"functionDeclarations": [_FUNCTION]}],
}
GEMINI = Sample(
    surface="gemini", kind="gemini", path="/v1beta/models/m:generateContent",
    stream_path="/v1beta/models/m:streamGenerateContent?alt=sse",
    request=_GEMINI_REQUEST, stream_request=_GEMINI_REQUEST,
    whole=dump(gemini_answer({"text": TEXT}, _GEMINI_CALL, finish="STOP", **_GEMINI_USAGE)),
    events=(
        *(data(gemini_answer({"text": text})) for text in DELTAS),
        data(gemini_answer(_GEMINI_CALL)),
        data(gemini_answer({"text": ""}, finish="STOP", **_GEMINI_USAGE)),
    ),
    first_text=0, finish_at=4, grammar=gemini,
)  # fmt: skip

SAMPLES = (CHAT, RESPONSES, MESSAGES, GEMINI)
WITH_COMPLETIONS = (*SAMPLES, COMPLETIONS)
