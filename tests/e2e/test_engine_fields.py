"""What each field of a request does to the answer of our engine: a real model, a real worker."""

import importlib.util
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import agents
import httpx
import openai
import pydantic
import pytest

from tests.e2e.server import Server, serving

pytestmark = pytest.mark.worker
if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
    pytest.skip("the worker extra is not installed", allow_module_level=True)

jsonschema = pytest.importorskip("jsonschema")

MESSAGES = [{"role": "user", "content": "Tell me about the fox."}]
GREEDY = {"temperature": 0, "max_tokens": 24, "reasoning_effort": "none"}
DRAWN = {"temperature": 1, "seed": 7, "max_tokens": 24, "reasoning_effort": "none"}
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
ShortText = Annotated[str, pydantic.Field(max_length=8)]
SmallNumber = Annotated[int, pydantic.Field(ge=1, le=99)]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.e2e.tiny import write_checkpoint

    return write_checkpoint(tmp_path_factory.mktemp("tiny"))


def config(checkpoint: Path, more: str = "") -> str:
    return (
        "server: {state_dir: STATE_DIR}\n"  # what is asked is what is read: no notes
        f"worker: {{model: '{checkpoint}', weights: fp32, threads: 1, conductor: false{more}}}\n"
    )


@pytest.fixture(scope="module")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("fields"), config(checkpoint)) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def ask(server: Server, **fields: Any) -> dict[str, Any]:
    body = {"model": "TandemLLM", "messages": MESSAGES, **fields}
    answer = httpx.post(f"{server.base}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def text(server: Server, **fields: Any) -> str:
    content: str = ask(server, **fields)["choices"][0]["message"]["content"]
    return content


def streamed(server: Server, **fields: Any) -> tuple[str, list[dict[str, Any]]]:
    body = {"model": "TandemLLM", "messages": MESSAGES, "stream": True, **fields}
    answer = httpx.post(f"{server.base}/v1/chat/completions", json=body, timeout=60)
    records = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert records.pop() == "[DONE]"
    chunks = [json.loads(record) for record in records]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices), chunks


# Sampling.


def test_each_filter_of_one_token_is_greedy(server: Server) -> None:
    greedy = text(server, **GREEDY)
    assert text(server, **DRAWN) != greedy
    for fields in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 0}):
        assert text(server, **{**DRAWN, **fields}) == greedy, fields


def test_b10_temperature_zero_is_greedy_whatever_the_filters_say(server: Server) -> None:
    assert text(server, **GREEDY, top_p=0.3, top_k=40, seed=9) == text(server, **GREEDY)


def test_a_seed_holds_the_answer_and_another_changes_it(server: Server) -> None:
    assert text(server, **DRAWN) == text(server, **DRAWN)
    assert text(server, **DRAWN) != text(server, **{**DRAWN, "seed": 8})
    unseeded = {**DRAWN, "seed": None}
    assert text(server, **unseeded) != text(server, **unseeded)


def test_penalties_change_the_answer_and_strong_ones_vary_it(server: Server) -> None:
    def tokens(**fields: Any) -> list[str]:
        choice = ask(server, **{**GREEDY, "max_tokens": 60}, logprobs=True, **fields)["choices"][0]
        return [entry["token"] for entry in choice["logprobs"]["content"]]

    plain = tokens()
    for field, up, down in (("presence_penalty", 2, -2), ("frequency_penalty", 2, -2),
                            ("repetition_penalty", 2, 0.5)):  # fmt: skip
        varied, repeated = tokens(**{field: up}), tokens(**{field: down})
        assert len(set(varied)) > len(set(repeated)), field
        assert plain != varied, field


def test_a_bias_forces_and_forbids(server: Server) -> None:
    first = ask(server, **GREEDY, logprobs=True)["choices"][0]["logprobs"]["content"][0]["token"]
    forced = ask(server, **GREEDY, logit_bias={"40": 100})["choices"][0]["message"]["content"]
    assert len(set(forced)) == 1
    banned = ask(server, **GREEDY, logprobs=True, logit_bias=_ids_of(first, -100))
    assert banned["choices"][0]["logprobs"]["content"][0]["token"] != first


def _ids_of(spelled: str, value: float) -> dict[str, float]:
    from tests.worker.tiny_text import tiny_tokenizer

    table = tiny_tokenizer().token_bytes
    return {str(i): value for i, found in enumerate(table) if found == spelled.encode()}


def test_log_probabilities_are_of_the_visible_tokens_and_hold_the_chosen_one(
    server: Server,
) -> None:
    answer = ask(server, **GREEDY, logprobs=True, top_logprobs=4)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"]
    for entry in entries:
        assert entry["top_logprobs"][0]["token"] == entry["token"]  # greedy
        values = [other["logprob"] for other in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True) and len(values) == 4
    assert ask(server, **GREEDY)["choices"][0]["logprobs"] is None
    whole, chunks = streamed(server, **GREEDY, logprobs=True, top_logprobs=4)
    found = [
        entry
        for chunk in chunks
        for choice in chunk["choices"]
        for entry in (choice.get("logprobs") or {"content": []})["content"]
    ]
    # Which rounds wrote them is not promised, so the last bits of their scores are not either.
    assert [_spelled(entry) for entry in found] == [_spelled(entry) for entry in entries]
    assert _scores(found) == pytest.approx(_scores(entries), abs=1e-4)
    assert whole == answer["choices"][0]["message"]["content"]


def _spelled(entry: dict[str, Any]) -> list[Any]:
    return [(one["token"], one["bytes"]) for one in (entry, *entry["top_logprobs"])]


def _scores(entries: list[dict[str, Any]]) -> list[float]:
    return [one["logprob"] for entry in entries for one in (entry, *entry["top_logprobs"])]


def test_several_answers_differ_and_the_first_is_the_one_alone(server: Server) -> None:
    many = ask(server, **DRAWN, n=3)
    answers = [choice["message"]["content"] for choice in many["choices"]]
    assert [choice["index"] for choice in many["choices"]] == [0, 1, 2]
    assert len(set(answers)) == 3
    alone = ask(server, **DRAWN)
    assert answers[0] == alone["choices"][0]["message"]["content"]
    assert many["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    assert many["usage"]["completion_tokens"] == 3 * 24
    assert ask(server, **DRAWN, n=3)["choices"] == many["choices"]


# Limits and shape.


def test_limits_and_stop_strings_end_the_answer(server: Server) -> None:
    whole = text(server, **GREEDY)
    assert ask(server, **{**GREEDY, "max_tokens": 5})["usage"]["completion_tokens"] == 5
    both = ask(server, **{**GREEDY, "max_tokens": 9}, max_completion_tokens=4)
    assert both["usage"]["completion_tokens"] == 4
    stop = whole[5:8]
    choice = ask(server, **GREEDY, stop=[stop, "never"])["choices"][0]
    assert choice["message"]["content"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop"


def test_what_repeats_is_written_in_fewer_rounds_than_tokens(server: Server) -> None:
    line = "one and the same line, over and over; "
    form = {"structured_outputs": {"regex": f"({line}){{4}}"}}
    answer = ask(server, **{**GREEDY, "max_tokens": 200}, **form)
    timed = answer["timings"]
    assert answer["choices"][0]["message"]["content"] == line * 4
    assert 0 < timed["draft_n_accepted"] <= timed["draft_n"]
    assert timed["rounds"] < timed["predicted_n"] / 2
    assert timed["tokens_per_round"] > 2


def test_usage_and_timings_stand_where_they_belong(server: Server) -> None:
    for include, places in ((None, 1), (True, 1), (False, 0)):
        options = None if include is None else {"include_usage": include}
        _, chunks = streamed(server, **GREEDY, stream_options=options)
        assert sum("usage" in chunk for chunk in chunks) == places
        (timed,) = [chunk["timings"] for chunk in chunks if "timings" in chunk]
        assert timed["predicted_n"] == 24 and timed["prompt_n"] > 0
        assert timed["rounds"] + timed["draft_n_accepted"] == 23  # the first came with the prompt
    answer = ask(server, **GREEDY)
    assert answer["usage"]["total_tokens"] == sum(
        answer["usage"][name] for name in ("prompt_tokens", "completion_tokens")
    )
    assert answer["timings"]["predicted_per_second"] > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u"}, {"metadata": {"a": "b"}}, {"store": True}, {"service_tier": "auto"},
        {"prompt_cache_key": "k"}, {"safety_identifier": "s"},
        {"prediction": {"type": "content", "content": "x"}}, {"nobody_defined_this": 1},
        {"modalities": ["text"]}, {"cache_prompt": False}, {"response_format": {"type": "text"}},
        {"tool_choice": "none"}, {"logit_bias": {}}, {"n": 1},
    ],
    ids=str,
)  # fmt: skip
def test_what_has_no_effect_has_none(server: Server, fields: dict[str, Any]) -> None:
    assert text(server, **GREEDY, **fields) == text(server, **GREEDY)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"512": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs"),
        ({"structured_outputs": {"grammar": "start: nobody"}}, "structured_outputs"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
         "response_format"),
    ],
    ids=str,
)  # fmt: skip
def test_what_only_the_model_knows_is_refused_by_field(
    server: Server, fields: dict[str, Any], param: str
) -> None:
    for stream in (False, True):
        body = {"model": "TandemLLM", "messages": MESSAGES, "stream": stream, **fields}
        answer = httpx.post(f"{server.base}/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


# Reasoning.


def test_reasoning_is_shown_apart_and_a_budget_ends_it(server: Server) -> None:
    plain = {"temperature": 0, "max_tokens": 1500}
    for fields, most in (({"max_reasoning_tokens": 5}, 5), ({"thinking_budget": 9}, 9),
                         ({"reasoning_effort": "minimal"}, 205)):  # fmt: skip
        answer = ask(server, **{**plain, "max_tokens": most + 700}, **fields)
        message = answer["choices"][0]["message"]
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == most
        assert message["reasoning_content"] and message["content"]
    rows = server.said("run.finished")[-1]
    assert json.loads(rows)["hidden_tokens"] > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"max_reasoning_tokens": 0}, {"thinking_budget": 0}, {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "high"},
    ],
    ids=str,
)  # fmt: skip
def test_reasoning_can_be_switched_off(server: Server, fields: dict[str, Any]) -> None:
    answer = ask(server, temperature=0, max_tokens=1000, **fields)
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    assert "reasoning_content" not in answer["choices"][0]["message"]


def test_arguments_of_the_template_reach_it(server: Server) -> None:
    plain = ask(server, **GREEDY)["usage"]["prompt_tokens"]
    styled = ask(server, **GREEDY, chat_template_kwargs={"style": "pirate pirate pirate"})
    assert styled["usage"]["prompt_tokens"] > plain


# Forms and tools.


def test_answers_have_the_form_that_was_asked_for(server: Server) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "c", "schema": CITY}}
    for fields in ({"response_format": schema}, {"structured_outputs": {"json": CITY}}):
        for seed in range(3):
            answer = text(server, **{**DRAWN, "max_tokens": 200, "seed": seed}, **fields)
            jsonschema.validate(json.loads(answer), CITY)
    for outputs, expected in (
        ({"choice": ["cat", "dog"]}, {"cat", "dog"}), ({"regex": "a{3}|b{4}"}, {"aaa", "bbbb"}),
        ({"grammar": 'start: "x" | "y"'}, {"x", "y"}),
    ):  # fmt: skip
        assert text(server, **DRAWN, structured_outputs=outputs) in expected
    any_object = {"response_format": {"type": "json_object"}}
    assert text(server, **{**GREEDY, "max_tokens": 40}, **any_object).startswith("{")


def test_a_form_holds_behind_the_reasoning_too(server: Server) -> None:
    answer = ask(server, temperature=1, seed=3, max_tokens=1000, max_reasoning_tokens=20,
                 structured_outputs={"choice": ["cat", "dog"]})  # fmt: skip
    message = answer["choices"][0]["message"]
    assert message["content"] in ("cat", "dog")
    assert message["reasoning_content"]


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_forced_call_is_made_streamed_and_whole_alike(server: Server, choice: Any) -> None:
    fields = {**DRAWN, "max_tokens": 200, "tools": [TOOL], "tool_choice": choice}
    whole = ask(server, **fields)["choices"][0]
    (call,) = whole["message"]["tool_calls"]
    assert (whole["finish_reason"], whole["message"]["content"]) == ("tool_calls", None)
    jsonschema.validate(json.loads(call["function"]["arguments"]), CITY)
    content, chunks = streamed(server, **fields)
    parts = [
        part
        for chunk in chunks
        for choice in chunk["choices"]
        for part in choice["delta"].get("tool_calls", ())
    ]
    joined = "".join(part["function"].get("arguments", "") for part in parts)
    assert (content, joined) == ("", call["function"]["arguments"])
    assert parts[0]["function"]["name"] == "get_weather"


def test_a_tool_loop_of_the_openai_sdk(client: openai.OpenAI) -> None:
    messages: list[Any] = [*MESSAGES]
    fields: dict[str, Any] = {"model": "TandemLLM", "tools": [TOOL], **DRAWN, "max_tokens": 200}
    first = client.chat.completions.create(messages=messages, tool_choice="required", **fields)
    message = first.choices[0].message
    (call,) = message.tool_calls or ()
    assert call.type == "function"
    jsonschema.validate(json.loads(call.function.arguments), CITY)
    messages += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "It rains."},
    ]
    second = client.chat.completions.create(
        messages=messages, tool_choice="none", **{**fields, "max_tokens": 20}
    )
    assert second.choices[0].message.content
    assert second.usage and first.usage
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


async def test_a_tool_loop_of_openai_agents(server: Server) -> None:
    seen: list[tuple[str, int]] = []

    @agents.function_tool
    def tell_weather(city: ShortText, days: SmallNumber) -> str:
        """Tells the weather of a city."""
        seen.append((city, days))
        return "It rains."

    agents.set_tracing_disabled(True)
    sdk = openai.AsyncOpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0)
    try:
        await _run_agent(sdk, tell_weather, seen)
    finally:
        await sdk.close()


async def _run_agent(sdk: openai.AsyncOpenAI, tool: Any, seen: list[tuple[str, int]]) -> None:
    agent = agents.Agent(
        name="a",
        instructions="Answer.",
        tools=[tool],
        model=agents.OpenAIChatCompletionsModel("TandemLLM", sdk),
        model_settings=agents.ModelSettings(
            tool_choice="required",
            temperature=0.7,
            max_tokens=300,
            extra_body={"seed": 5, "reasoning_effort": "none"},
        ),
    )
    result = await agents.Runner.run(agent, "How is the weather?", max_turns=3)
    assert len(seen) == 1
    assert isinstance(seen[0][0], str) and isinstance(seen[0][1], int)
    assert isinstance(result.final_output, str)


# The same whatever runs beside it.

PROMPTS = ["one", "two foxes", "three lazy dogs", "four"]


def answers_together(server: Server) -> list[str]:
    found: dict[int, str] = {}

    def one(index: int) -> None:
        messages = [{"role": "user", "content": PROMPTS[index]}]
        fields = {**DRAWN, "max_tokens": 120, "seed": index}
        found[index] = text(server, **fields, messages=messages)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[index] for index in range(len(PROMPTS))]


def test_b9_seeded_answers_are_the_same_in_four_lanes_and_across_a_restart(
    server: Server, checkpoint: Path, tmp_path: Path
) -> None:
    alone = answers_together(server)
    with serving(tmp_path, config(checkpoint, ", parallel: 4")) as other:
        assert answers_together(other) == alone
        assert json.loads(other.said("worker.started")[0])["layout"] == "fp32"


def test_a_short_request_is_served_beside_a_long_answer_that_stays_the_same(
    server: Server,
) -> None:
    long = {**DRAWN, "max_tokens": 400}
    alone = text(server, **long)
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(text(server, **long)))
    thread.start()
    shorts = [
        text(server, **{**GREEDY, "max_tokens": 8}, structured_outputs={"choice": ["cat", "dog"]})
        for _ in range(3)
    ]
    was_beside = thread.is_alive()
    thread.join()
    assert was_beside and set(shorts) <= {"cat", "dog"}
    assert found == [alone]


PIECES = [
    "the fox",
    "日本語",
    "😀👩‍👩‍👧",
    "e\u0301",
    "\n\n",
    "مرحبا",
    "x = 1",
    "¿",
    "\U0001f1e9\U0001f1ea",
]


def test_streamed_answers_are_the_whole_ones_for_a_hundred_prompts(server: Server) -> None:
    source = random.Random(0)
    stopped = 0
    for seed in range(100):
        prompt = " ".join(source.choice(PIECES) for _ in range(source.randint(1, 6)))
        fields = {
            **DRAWN, "seed": seed, "max_tokens": 30,
            "stop": [source.choice("etaoin s") for _ in range(source.randint(0, 2))] or None,
            "messages": [{"role": "user", "content": prompt}],
        }  # fmt: skip
        whole = ask(server, **fields)
        content, chunks = streamed(server, **fields)
        choice = whole["choices"][0]
        assert content == choice["message"]["content"], seed
        assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
        counts = ("prompt_tokens", "completion_tokens", "total_tokens")  # what was kept may differ
        assert [chunks[-1]["usage"][name] for name in counts] == [
            whole["usage"][name] for name in counts
        ]
        stopped += choice["finish_reason"] == "stop"
    assert 20 < stopped < 80  # both ends were seen


# Completions.


def test_raw_completions_honour_the_same_fields(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "TandemLLM", "prompt": "The fox", "max_tokens": 8}
    plain = client.completions.create(**fields, temperature=0)
    scored = client.completions.create(**fields, temperature=0, logprobs=2)
    assert scored.choices[0].text == plain.choices[0].text
    logprobs = scored.choices[0].logprobs
    assert logprobs and "".join(logprobs.tokens or ()) == plain.choices[0].text
    assert all(len(top) <= 2 for top in logprobs.top_logprobs or ())
    many = client.completions.create(**fields, temperature=1, seed=1, n=2, best_of=2)
    assert len({choice.text for choice in many.choices}) == 2
    filled = client.completions.create(**fields, temperature=0, suffix="the dog")
    assert filled.usage and plain.usage
    assert filled.usage.prompt_tokens > plain.usage.prompt_tokens
    forced = client.completions.create(**fields, temperature=0, logit_bias={"40": 100})
    assert len(set(forced.choices[0].text)) == 1
