"""The anthropic SDK through a gateway that relays: all its calls, and what the ledger holds."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.e2e.relayed import PROVIDER_KEYS, ULID, Relayed
from tests.fakes.dialects.turn import ARGUMENT, PIECES, TEXT
from tests.fakes.provider import Hold

MODEL = "heron-medium"
MESSAGES: list[Any] = [{"role": "user", "content": "Where does the tandem go?"}]
TOOLS: list[Any] = [
    {
        "name": "forecast",
        "description": "the weather to come",
        "input_schema": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["place"],
        },
    }
]


@pytest.fixture(scope="module")
def client(relayed: Relayed, loopback: None) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=relayed.base, api_key=relayed.key, max_retries=0, timeout=20
    ) as sdk:
        yield sdk


def ask(client: anthropic.Anthropic, **fields: Any) -> Any:
    asked = {"model": MODEL, "max_tokens": 64, "messages": MESSAGES, **fields}
    return client.messages.create(**asked)


def id_of(error: anthropic.APIStatusError) -> str:
    """The request's id, which the answer names in two headers and in its body."""
    named: str = error.response.headers["x-request-id"]
    assert error.request_id == named
    assert error.body["request_id"] == named  # type: ignore[index]
    return named


def test_models_of_all_backends_are_listed(client: anthropic.Anthropic, relayed: Relayed) -> None:
    """The list in Anthropic's form, whoever serves a model, and one model of it."""
    listed = client.models.list()
    assert [model.id for model in listed.data] == relayed.provider.models()
    assert listed.has_more is False
    one = client.models.retrieve(MODEL)
    assert (one.id, one.type, one.display_name) == (MODEL, "model", MODEL)
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("nobody")


def test_a_whole_message(client: anthropic.Anthropic, relayed: Relayed) -> None:
    """The answer, its reason, and the usage with both kinds of cached tokens."""
    answer = ask(client)
    assert [block.text for block in answer.content] == [TEXT]
    assert answer.stop_reason == "end_turn"
    said = relayed.said()
    assert answer.usage.cache_read_input_tokens == said.cached
    assert answer.usage.cache_creation_input_tokens == said.written
    assert answer.usage.output_tokens == said.output


def test_a_streamed_message(client: anthropic.Anthropic, relayed: Relayed, delivery: None) -> None:
    """Every event of the grammar in order, and the message put together from them."""
    with client.messages.stream(model=MODEL, max_tokens=64, messages=MESSAGES) as stream:
        kinds = [event.type for event in stream if event.type != "text"]
        final = stream.get_final_message()
    assert kinds == [
        "message_start", "content_block_start", *["content_block_delta"] * len(PIECES),
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert [block.text for block in final.content if block.type == "text"] == [TEXT]
    assert final.usage.output_tokens == relayed.said().output


def test_a_tool_streamed_and_its_result_sent_back(
    client: anthropic.Anthropic, delivery: None
) -> None:
    """The call comes in pieces of JSON; what the helper made of it goes back as it is."""
    with client.messages.stream(
        model=MODEL, max_tokens=64, messages=MESSAGES, tools=TOOLS
    ) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        turn = stream.get_final_message()
    assert turn.stop_reason == "tool_use"
    call = turn.content[0]
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("forecast", {"place": ARGUMENT})
    assert json.loads("".join(pieces)) == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": turn.content},
        {"role": "user", "content": [result]},
    ]
    assert ask(client, messages=messages, tools=TOOLS).content[0].text == TEXT


def test_tokens_are_counted(client: anthropic.Anthropic, relayed: Relayed) -> None:
    """Counting is a call of its own, with no answer."""
    counted = client.messages.count_tokens(model=MODEL, messages=MESSAGES)
    assert counted.input_tokens == relayed.said().prompt


def test_an_unknown_beta_passes(client: anthropic.Anthropic, relayed: Relayed) -> None:
    """A flag that nobody knows reaches the provider as it was sent."""
    answer = client.beta.messages.create(
        model=MODEL, max_tokens=64, messages=MESSAGES, betas=["never-heard-of-2031-04-01"]
    )
    assert answer.content[0].type == "text" and answer.content[0].text == TEXT
    headers = relayed.calls()[-1].request.headers
    assert headers["anthropic-beta"] == "never-heard-of-2031-04-01"


def test_the_first_text_comes_while_the_provider_still_holds_the_rest(
    client: anthropic.Anthropic, relayed: Relayed
) -> None:
    """Nothing on the way collects a stream."""
    hold = relayed.provider.hold = Hold(before=4)
    with client.messages.stream(model=MODEL, max_tokens=64, messages=MESSAGES) as stream:
        texts = stream.text_stream
        assert next(texts) == PIECES[0]
        assert hold.reached.wait(10)
        hold.open.set()
        assert "".join(texts) == TEXT.removeprefix(PIECES[0])


def test_a_stream_that_breaks_off_ends_with_a_typed_error(
    client: anthropic.Anthropic, relayed: Relayed, delivery: None
) -> None:
    """What came before is delivered whole; then the SDK raises, and no fragment passes for all."""
    relayed.provider.break_before = 5
    pieces = []
    with (
        pytest.raises(anthropic.APIStatusError, match="broke off"),
        client.messages.stream(model=MODEL, max_tokens=64, messages=MESSAGES) as stream,
    ):
        for text in stream.text_stream:
            pieces.append(text)
    assert pieces == list(PIECES[:2])


def test_what_the_gateway_refuses_is_a_typed_error_with_its_id(
    client: anthropic.Anthropic, relayed: Relayed
) -> None:
    """An unknown model, an unknown path, an unknown key: none gets through."""
    before = len(relayed.provider.asked)
    with pytest.raises(anthropic.NotFoundError) as model:
        ask(client, model="nobody")
    with pytest.raises(anthropic.NotFoundError) as path:
        client.post("/v1/messages/nothere", body={}, cast_to=object)
    with pytest.raises(anthropic.AuthenticationError) as key:
        ask(client.with_options(api_key="sk-nobody"))
    caught = [error.value for error in (model, path, key)]
    assert [error.type for error in caught] == [
        "not_found_error", "not_found_error", "authentication_error",
    ]  # fmt: skip
    assert all(ULID.fullmatch(id_of(error)) for error in caught)
    assert all(call.request.method == "GET" for call in relayed.provider.asked[before:])


def test_the_provider_sees_our_key_and_the_sdk_behind_it(
    client: anthropic.Anthropic, relayed: Relayed
) -> None:
    """Our key goes into the header of its own, the SDK's Bearer token goes nowhere."""
    ask(client)
    headers = relayed.calls()[-1].request.headers
    assert headers["x-api-key"] == PROVIDER_KEYS["anthropic"]
    assert "authorization" not in headers
    assert headers["user-agent"] == f"Anthropic/Python {anthropic.__version__}"
    assert headers["x-stainless-lang"] == "python"
    assert headers["anthropic-version"]


def test_every_request_is_booked_once_with_the_providers_counts(
    client: anthropic.Anthropic, relayed: Relayed
) -> None:
    """All requests of this module so far, and these: surface, stream, tokens and their source."""
    ask(client, tools=TOOLS)
    with client.messages.stream(model=MODEL, max_tokens=64, messages=MESSAGES) as stream:
        stream.until_done()
    client.messages.count_tokens(model=MODEL, messages=MESSAGES)
    with pytest.raises(anthropic.NotFoundError) as caught:
        ask(client, model="nobody")
    books = relayed.books("anthropic-sdk")
    assert books.faults == []
    row = {row["request_id"]: row for row in books.refused}[id_of(caught.value)]
    assert (row["outcome"], row["error_type"]) == ("refused", "model_not_found")
