"""openai-agents through a gateway that relays: one agent with one tool, on both of its APIs."""

from collections.abc import AsyncIterator
from typing import Any, Literal

import agents
import openai
import pytest

from tests.e2e.relayed import PROVIDER_KEYS, Relayed
from tests.fakes.dialects.turn import ARGUMENT, PIECES, TEXT

MODEL = "kestrel-large"
QUESTION = "Where does the tandem go?"
APIS: tuple[Literal["responses", "chat_completions"], ...] = ("responses", "chat_completions")


class Weather:
    """An agent whose one tool notes what it was asked."""

    def __init__(self) -> None:
        self.places: list[str] = []

        def forecast(place: str) -> str:
            """The weather to come."""
            self.places.append(place)
            return "sunny"

        self.agent: agents.Agent[Any] = agents.Agent(
            name="weather", instructions="Be brief.", model=MODEL,
            tools=[agents.function_tool(forecast)],
        )  # fmt: skip


@pytest.fixture
async def client(relayed: Relayed, loopback: None) -> AsyncIterator[openai.AsyncOpenAI]:
    agents.set_tracing_disabled(True)
    async with openai.AsyncOpenAI(
        base_url=f"{relayed.base}/v1", api_key=relayed.key, max_retries=0, timeout=20
    ) as sdk:
        agents.set_default_openai_client(sdk, use_for_tracing=False)
        yield sdk


async def test_models_of_all_backends_are_listed(
    client: openai.AsyncOpenAI, relayed: Relayed
) -> None:
    """The list and one model of it, as the agents' own client reads them."""
    assert [model.id async for model in client.models.list()] == relayed.provider.models()
    assert (await client.models.retrieve(MODEL)).id == MODEL


async def test_runs_on_both_apis_in_one_loop(
    client: openai.AsyncOpenAI, relayed: Relayed, delivery: None
) -> None:
    """Whole and streamed: the tool is called, its result goes back, the text is the answer."""
    for api in APIS:
        agents.set_default_openai_api(api)
        weather = Weather()
        result = await agents.Runner.run(weather.agent, QUESTION)
        assert (result.final_output, weather.places) == (TEXT, [ARGUMENT])
        streamed = agents.Runner.run_streamed(weather.agent, QUESTION)
        deltas = [
            event.data.delta
            async for event in streamed.stream_events()
            if event.type == "raw_response_event"
            and event.data.type == "response.output_text.delta"
        ]
        assert deltas == list(PIECES)
        assert (streamed.final_output, weather.places) == (TEXT, [ARGUMENT] * 2)
    surfaces = [call.reply.surface for call in relayed.calls()[-8:] if call.reply]
    assert surfaces == ["responses"] * 4 + ["chat"] * 4


async def test_usage_of_a_run_is_what_the_provider_said(
    client: openai.AsyncOpenAI, relayed: Relayed
) -> None:
    """Two requests, their tokens added up."""
    for api in APIS:
        agents.set_default_openai_api(api)
        result = await agents.Runner.run(Weather().agent, QUESTION)
        said = [call.reply.usage for call in relayed.calls()[-2:] if call.reply]
        usage = result.context_wrapper.usage
        assert usage.requests == 2
        assert usage.input_tokens == sum(one.prompt or 0 for one in said if one)
        assert usage.output_tokens == sum(one.output or 0 for one in said if one)


async def test_the_provider_sees_our_key_and_the_sdk_behind_it(
    client: openai.AsyncOpenAI, relayed: Relayed
) -> None:
    """The agents' own name passes, their key does not."""
    agents.set_default_openai_api("responses")
    await agents.Runner.run(Weather().agent, QUESTION)
    headers = relayed.calls()[-1].request.headers
    assert headers["authorization"] == f"Bearer {PROVIDER_KEYS['openai']}"
    assert headers["user-agent"] == f"Agents/Python {agents.version.__version__}"


@pytest.mark.parametrize(
    ("api", "fault"),
    [("responses", agents.ModelBehaviorError), ("chat_completions", openai.APIError)],
)
async def test_a_stream_that_breaks_off_ends_the_run(
    client: openai.AsyncOpenAI, relayed: Relayed, api: Any, fault: type[Exception]
) -> None:
    """No fragment passes for the answer: the run raises what the gateway said."""
    agents.set_default_openai_api(api)
    relayed.provider.break_before = 5
    run = agents.Runner.run_streamed(agents.Agent(name="plain", model=MODEL), QUESTION)
    with pytest.raises(fault, match="broke off"):
        async for _ in run.stream_events():
            continue
    assert run.final_output is None


async def test_a_model_nobody_has_ends_the_run(
    client: openai.AsyncOpenAI, relayed: Relayed
) -> None:
    """The SDK's own typed errors come through the runner."""
    agents.set_default_openai_api("chat_completions")
    nobody = Weather().agent.clone(model="nobody")
    with pytest.raises(openai.NotFoundError) as caught:
        await agents.Runner.run(nobody, QUESTION)
    assert caught.value.code == "model_not_found"


async def test_every_request_is_booked_once_with_the_providers_counts(
    client: openai.AsyncOpenAI, relayed: Relayed
) -> None:
    """All requests of this module so far, and these: surface, stream, tokens and their source."""
    for api in APIS:
        agents.set_default_openai_api(api)
        streamed = agents.Runner.run_streamed(Weather().agent, QUESTION)
        async for _ in streamed.stream_events():
            continue
    books = relayed.books("openai-agents")
    assert books.faults == []
    assert all(row["error_type"] == "model_not_found" for row in books.refused)
