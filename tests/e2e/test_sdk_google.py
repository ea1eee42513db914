"""The google-genai SDK through a gateway that relays: all its calls, and what the ledger holds."""

from collections.abc import Iterator
from typing import Any

import pytest
from google import genai
from google.genai import errors, types

from tests.e2e.relayed import PROVIDER_KEYS, ULID, Relayed
from tests.fakes.dialects.gemini import SIGNATURE
from tests.fakes.dialects.turn import ARGUMENT, PIECES, TEXT
from tests.fakes.provider import Hold

MODEL = "swift-small"
QUESTION = "Where does the tandem go?"


@pytest.fixture(scope="module")
def client(relayed: Relayed, loopback: None) -> Iterator[genai.Client]:
    with client_of(relayed, relayed.key) as sdk:
        yield sdk


def client_of(relayed: Relayed, key: str) -> genai.Client:
    options = types.HttpOptions(base_url=relayed.base, timeout=20_000)
    return genai.Client(api_key=key, http_options=options)


class Forecast:
    """A tool that notes what it was asked."""

    def __init__(self) -> None:
        self.places: list[str] = []

    def tool(self) -> Any:
        def forecast(place: str) -> str:
            """The weather to come.

            Args:
                place: where.
            """
            self.places.append(place)
            return "sunny"

        return forecast


def test_models_of_all_backends_are_listed(client: genai.Client, relayed: Relayed) -> None:
    """The list in Google's form, with the limits that their backends told, and one model of it."""
    listed = list(client.models.list())
    assert [model.name for model in listed] == [f"models/{m}" for m in relayed.provider.models()]
    one = client.models.get(model=MODEL)
    assert (one.name, one.input_token_limit) == (f"models/{MODEL}", 32_768)
    assert client.models.get(model="heron-medium").input_token_limit == 200_000
    with pytest.raises(errors.ClientError) as caught:
        client.models.get(model="nobody")
    assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")


def test_a_whole_answer(client: genai.Client, relayed: Relayed) -> None:
    """The text, the reason and the usage, under the version that the SDK asks for by itself."""
    answer = client.models.generate_content(model=MODEL, contents=QUESTION)
    assert answer.text == TEXT
    assert answer.candidates is not None
    assert answer.candidates[0].finish_reason == types.FinishReason.STOP
    assert answer.usage_metadata is not None
    said = relayed.said()
    assert answer.usage_metadata.prompt_token_count == said.prompt
    assert answer.usage_metadata.thoughts_token_count == said.reasoning
    assert relayed.calls()[-1].request.path == f"/v1/models/{MODEL}:generateContent"


def test_the_other_version_is_served_as_well(relayed: Relayed, loopback: None) -> None:
    """`/v1beta`, which other programs of Google's use."""
    options = types.HttpOptions(base_url=relayed.base, api_version="v1beta", timeout=20_000)
    with genai.Client(api_key=relayed.key, http_options=options) as client:
        assert client.models.generate_content(model=MODEL, contents=QUESTION).text == TEXT
        assert f"models/{MODEL}" in [model.name for model in client.models.list()]
    assert relayed.calls()[-1].request.path == f"/v1beta/models/{MODEL}:generateContent"


def test_a_streamed_answer(client: genai.Client, relayed: Relayed, delivery: None) -> None:
    """Every piece in order; the last chunk has the reason and the whole usage."""
    chunks = list(client.models.generate_content_stream(model=MODEL, contents=QUESTION))
    assert [chunk.text for chunk in chunks] == list(PIECES)
    assert chunks[-1].candidates is not None and chunks[-1].usage_metadata is not None
    assert chunks[-1].candidates[0].finish_reason == types.FinishReason.STOP
    said = relayed.said()
    assert said.output is not None
    assert chunks[-1].usage_metadata.thoughts_token_count == said.reasoning
    assert chunks[-1].usage_metadata.total_token_count == (said.prompt or 0) + said.output


def test_a_function_is_called_and_the_model_asked_again(
    client: genai.Client, relayed: Relayed
) -> None:
    """The SDK runs the function by itself; the thought's signature comes back as it was given."""
    forecast = Forecast()
    config = types.GenerateContentConfig(tools=[forecast.tool()])
    answer = client.models.generate_content(model=MODEL, contents=QUESTION, config=config)
    assert answer.text == TEXT
    assert forecast.places == [ARGUMENT]
    parts = [p for c in relayed.calls()[-1].request.body["contents"] for p in c["parts"]]
    assert [p["thoughtSignature"] for p in parts if "functionCall" in p] == [SIGNATURE]
    results = [p["functionResponse"] for p in parts if "functionResponse" in p]
    assert [result["response"] for result in results] == [{"result": "sunny"}]


def test_a_function_is_called_in_a_stream(client: genai.Client, delivery: None) -> None:
    """The same, streamed: the call's chunk, then the chunks of the second answer."""
    forecast = Forecast()
    config = types.GenerateContentConfig(tools=[forecast.tool()])
    chunks = list(
        client.models.generate_content_stream(model=MODEL, contents=QUESTION, config=config)
    )
    assert forecast.places == [ARGUMENT]
    texts = [
        part.text
        for chunk in chunks
        for candidate in chunk.candidates or []
        for part in (candidate.content.parts or [] if candidate.content else [])
        if part.text
    ]
    assert texts == list(PIECES)


def test_tokens_are_counted(client: genai.Client, relayed: Relayed) -> None:
    """Counting is a call of its own, with no answer."""
    counted = client.models.count_tokens(model=MODEL, contents=QUESTION)
    assert counted.total_tokens == relayed.said().prompt


def test_the_first_text_comes_while_the_provider_still_holds_the_rest(
    client: genai.Client, relayed: Relayed
) -> None:
    """Nothing on the way collects a stream."""
    hold = relayed.provider.hold = Hold(before=1)
    chunks = client.models.generate_content_stream(model=MODEL, contents=QUESTION)
    assert next(chunks).text == PIECES[0]
    assert hold.reached.wait(10)
    hold.open.set()
    assert "".join(chunk.text or "" for chunk in chunks) == TEXT.removeprefix(PIECES[0])


def test_a_stream_that_breaks_off_ends_with_a_typed_error(
    client: genai.Client, relayed: Relayed, delivery: None
) -> None:
    """What came before is delivered whole; then the SDK raises, and no fragment passes for all."""
    relayed.provider.break_before = 2
    pieces = []
    with pytest.raises(errors.ServerError, match="broke off") as caught:
        for chunk in client.models.generate_content_stream(model=MODEL, contents=QUESTION):
            pieces.append(chunk.text)
    assert (caught.value.status, pieces) == ("UNAVAILABLE", list(PIECES[:2]))


def test_what_the_gateway_refuses_is_a_typed_error_with_its_id(
    client: genai.Client, relayed: Relayed
) -> None:
    """An unknown model and an unknown key: neither gets through."""
    before = len(relayed.provider.asked)
    with pytest.raises(errors.ClientError) as model:
        client.models.generate_content(model="nobody", contents=QUESTION)
    with pytest.raises(errors.ClientError) as key, client_of(relayed, "nobody") as stranger:
        stranger.models.generate_content(model=MODEL, contents=QUESTION)
    assert (model.value.code, model.value.status) == (404, "NOT_FOUND")
    assert (key.value.code, key.value.status) == (401, "UNAUTHENTICATED")
    assert ULID.fullmatch(id_of(model.value)) and ULID.fullmatch(id_of(key.value))
    assert all(call.request.method == "GET" for call in relayed.provider.asked[before:])


def id_of(error: errors.APIError) -> str:
    """The request's id, which the SDK keeps in the error's body."""
    found: str = error.details["error"]["details"][0]["execution_id"]
    return found


def test_the_provider_sees_our_key_and_the_sdk_behind_it(
    client: genai.Client, relayed: Relayed
) -> None:
    """Our key in place of the client's, in the same header; what the SDK says of itself passes."""
    client.models.generate_content(model=MODEL, contents=QUESTION)
    headers = relayed.calls()[-1].request.headers
    assert headers["x-goog-api-key"] == PROVIDER_KEYS["gemini"]
    assert headers["x-goog-api-client"].startswith(f"google-genai-sdk/{genai.__version__} ")
    assert headers["user-agent"].startswith(f"google-genai-sdk/{genai.__version__} ")


def test_every_request_is_booked_once_with_the_providers_counts(
    client: genai.Client, relayed: Relayed
) -> None:
    """All requests of this module so far, and these: surface, stream, tokens and their source."""
    config = types.GenerateContentConfig(tools=[Forecast().tool()])
    client.models.generate_content(model=MODEL, contents=QUESTION, config=config)
    for _ in client.models.generate_content_stream(model=MODEL, contents=QUESTION):
        continue
    client.models.count_tokens(model=MODEL, contents=QUESTION)
    with pytest.raises(errors.ClientError) as caught:
        client.models.generate_content(model="nobody", contents=QUESTION)
    books = relayed.books("genai-sdk")
    assert books.faults == []
    row = {row["request_id"]: row for row in books.refused}[id_of(caught.value)]
    assert (row["outcome"], row["error_type"]) == ("refused", "model_not_found")
