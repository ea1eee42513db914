"""The openai SDK through a gateway that relays: all its calls, and what the ledger holds."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e.relayed import PROVIDER_KEYS, ULID, Relayed
from tests.fakes.dialects.turn import ARGUMENT, PIECES, TEXT
from tests.fakes.provider import Hold

MODEL = "kestrel-large"
MESSAGES: list[Any] = [{"role": "user", "content": "Where does the tandem go?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["place"],
}
CHAT_TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "forecast", "parameters": PARAMETERS}}
]
TOOLS: list[Any] = [
    {"type": "function", "name": "forecast", "parameters": PARAMETERS, "strict": False}
]


@pytest.fixture(scope="module")
def client(relayed: Relayed, loopback: None) -> Iterator[openai.OpenAI]:
    base_url = f"{relayed.base}/v1"
    with openai.OpenAI(base_url=base_url, api_key=relayed.key, max_retries=0, timeout=20) as sdk:
        yield sdk


def test_models_of_all_backends_are_listed(client: openai.OpenAI, relayed: Relayed) -> None:
    """The list in OpenAI's form, as three providers of three kinds gave it, and one model of it."""
    listed = client.models.list()
    assert [model.id for model in listed.data] == relayed.provider.models()
    one = client.models.retrieve(MODEL)
    assert (one.id, one.object, one.owned_by) == (MODEL, "model", "openai")
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nobody")
    assert caught.value.code == "model_not_found"


def test_chat_whole(client: openai.OpenAI, relayed: Relayed) -> None:
    """The answer, its usage, and the headers that are the gateway's own."""
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES)
    answer = raw.parse()
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    said = relayed.said()
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == said.prompt
    assert answer.usage.completion_tokens == said.output
    assert ULID.fullmatch(raw.headers["x-request-id"])
    assert raw.headers["x-routed-via"] == f"openai/{MODEL}"


def test_chat_streamed_with_usage(client: openai.OpenAI, relayed: Relayed, delivery: None) -> None:
    """All pieces in order, the finish, and the usage in one chunk of its own."""
    pieces, finishes, usages = [], [], []
    for chunk in client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    ):
        pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
        finishes += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
        usages += [chunk.usage] if chunk.usage else []
    assert pieces == list(PIECES)
    assert finishes == ["stop"]
    assert [usage.prompt_tokens for usage in usages] == [relayed.said().prompt]


def test_chat_tool_streamed_and_its_result_sent_back(client: openai.OpenAI, delivery: None) -> None:
    """The stream helper puts the call together; what it made of it goes back as it is."""
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, tools=CHAT_TOOLS) as stream:
        kinds = {event.type for event in stream}
        turn = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.done" in kinds
    assert turn.finish_reason == "tool_calls"
    assert turn.message.tool_calls is not None
    call = turn.message.tool_calls[0]
    assert call.function.name == "forecast"
    assert json.loads(call.function.arguments) == {"place": ARGUMENT}
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    messages = [*MESSAGES, turn.message, result]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=CHAT_TOOLS)
    assert answer.choices[0].message.content == TEXT


def test_responses_whole(client: openai.OpenAI, relayed: Relayed) -> None:
    """The output text and the usage."""
    answer = client.responses.create(model=MODEL, input="Where to?")
    assert (answer.output_text, answer.status) == (TEXT, "completed")
    said = relayed.said()
    assert answer.usage is not None
    assert answer.usage.input_tokens == said.prompt
    assert answer.usage.output_tokens_details.reasoning_tokens == said.reasoning


def test_responses_streamed(client: openai.OpenAI, delivery: None) -> None:
    """The helper insists on `response.created` first; the final response has the usage."""
    with client.responses.stream(model=MODEL, input="Where to?") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert deltas == list(PIECES)
    assert final.output_text == TEXT
    assert final.usage is not None and final.usage.total_tokens > 0


def test_responses_tool_streamed_and_its_result_sent_back(
    client: openai.OpenAI, delivery: None
) -> None:
    """The call as the helper put it together goes back as an input item, beside its result."""
    question: Any = {"role": "user", "content": "Where to?"}
    with client.responses.stream(model=MODEL, input=[question], tools=TOOLS) as stream:
        for _ in stream:
            continue
        call = stream.get_final_response().output[0]
    assert call.type == "function_call"
    assert json.loads(call.arguments) == {"place": ARGUMENT}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    items: list[Any] = [question, call.to_dict(), result]
    answer = client.responses.create(model=MODEL, input=items, tools=TOOLS)
    assert answer.output_text == TEXT


def test_completions_whole_and_streamed(client: openai.OpenAI, delivery: None) -> None:
    """A raw prompt."""
    assert client.completions.create(model=MODEL, prompt="Once").choices[0].text == TEXT
    chunks = client.completions.create(
        model=MODEL, prompt="Once", stream=True, stream_options={"include_usage": True}
    )
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == TEXT


def test_embeddings(client: openai.OpenAI) -> None:
    """Two inputs, two vectors."""
    answer = client.embeddings.create(
        model="kestrel-embed", input=["one", "two"], encoding_format="float"
    )
    assert [item.embedding for item in answer.data] == [[0.25, -0.5, 1.0]] * 2


def test_the_first_text_comes_while_the_provider_still_holds_the_rest(
    client: openai.OpenAI, relayed: Relayed
) -> None:
    """Nothing on the way collects a stream: the last piece is not sent before the first is here."""
    hold = relayed.provider.hold = Hold(before=2)
    chunks = iter(client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True))
    next(chunks)
    assert next(chunks).choices[0].delta.content == PIECES[0]
    assert hold.reached.wait(10)
    hold.open.set()
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT.removeprefix(
        PIECES[0]
    )


def test_a_stream_that_breaks_off_ends_with_a_typed_error(
    client: openai.OpenAI, relayed: Relayed, delivery: None
) -> None:
    """What came before is delivered whole; then the SDK raises, and no fragment passes for all."""
    relayed.provider.break_before = 3
    pieces = []
    with pytest.raises(openai.APIError) as chat:
        for chunk in client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True):
            pieces.append(chunk.choices[0].delta.content)
    assert (chat.value.code, pieces) == ("upstream_failed", ["", *PIECES[:2]])
    relayed.provider.break_before = 5
    events = list(client.responses.create(model=MODEL, input="Where to?", stream=True))
    end = events[-1]
    assert end.type == "response.failed" and end.response.error is not None
    assert end.response.error.message.startswith("The backend's answer broke off")


def test_a_response_that_breaks_off_ends_the_helpers_stream_with_its_failure(
    client: openai.OpenAI, relayed: Relayed
) -> None:
    """`.stream()` insists on one response id from the first event to the last."""
    relayed.provider.break_before = 5
    with client.responses.stream(model=MODEL, input="Where to?") as stream:
        events = list(stream)
    assert events[-1].type == "response.failed"


def test_what_the_gateway_refuses_is_a_typed_error_with_its_id(
    client: openai.OpenAI, relayed: Relayed
) -> None:
    """An unknown model on two surfaces, an unknown path, an unknown key: none gets through."""
    before = len(relayed.provider.asked)
    with pytest.raises(openai.NotFoundError) as chat:
        client.chat.completions.create(model="nobody", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as responses:
        client.responses.create(model="nobody", input="Where to?")
    with pytest.raises(openai.NotFoundError) as path:
        client.post("/nothere", body={}, cast_to=object)
    with pytest.raises(openai.AuthenticationError) as key:
        client.with_options(api_key="sk-nobody").chat.completions.create(
            model=MODEL, messages=MESSAGES
        )
    caught = [error.value for error in (chat, responses, path, key)]
    assert [error.code for error in caught] == [
        "model_not_found", "model_not_found", "not_found", "invalid_api_key",
    ]  # fmt: skip
    assert (chat.value.param, responses.value.param) == ("model", "model")
    assert all(ULID.fullmatch(error.request_id or "") for error in caught)
    assert all(call.request.method == "GET" for call in relayed.provider.asked[before:])


def test_the_provider_sees_our_key_and_the_sdk_behind_it(
    client: openai.OpenAI, relayed: Relayed
) -> None:
    """What the SDK says of itself passes; its key and its account do not."""
    options = client.with_options(organization="org-of-the-client", timeout=17)
    options.chat.completions.create(model=MODEL, messages=MESSAGES)
    headers = relayed.calls()[-1].request.headers
    assert headers["authorization"] == f"Bearer {PROVIDER_KEYS['openai']}"
    assert headers["user-agent"] == f"OpenAI/Python {openai.__version__}"
    assert headers["x-stainless-lang"] == "python"
    assert headers["x-stainless-read-timeout"] == "17"
    assert "openai-organization" not in headers


def test_every_request_is_booked_once_with_the_providers_counts(
    client: openai.OpenAI, relayed: Relayed
) -> None:
    """All requests of this module so far, and these: surface, stream, tokens and their source."""
    client.chat.completions.create(model=MODEL, messages=MESSAGES)
    for _ in client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True):
        continue
    client.responses.create(model=MODEL, input="Where to?", tools=TOOLS)
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nobody", messages=MESSAGES)
    books = relayed.books("openai-sdk")
    assert books.faults == []
    row = {row["request_id"]: row for row in books.refused}[caught.value.request_id]
    assert (row["outcome"], row["error_type"]) == ("refused", "model_not_found")
    assert row["prompt_tokens"] is row["completion_tokens"] is row["backend"] is None
