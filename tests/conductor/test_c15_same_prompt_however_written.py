"""Bug class 15: what a restart, a reload or another spelling of the history does to a prompt."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.profiles import Rule
from conductor.session import chain
from gateway.surfaces.chat.parse import parse_chat
from proto.chat import Message
from tests.conductor.notes.talking import prompt_of
from tests.conductor.planned import CHAT, World, planned

Wire = list[dict[str, Any]]

TALK: Wire = [
    {"role": "system", "content": "You work in a repository."},
    {"role": "user", "content": "Why does the second test fail?"},
    {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "A file, then.",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "read", "arguments": '{"path":"ä.py","lines":[1,20]}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "x = (\n"},
    {"role": "assistant", "content": "A bracket is missing."},
    {"role": "user", "content": "And the third one of them, why?"},
]
ENDS = (2, 4)  # of the requests before the last one
RULE = Rule("careful", "Read before you write.")
PROFILE = replace(CHAT, rules=(RULE,))


def read(wire: Wire) -> tuple[Message, ...]:
    return parse_chat({"model": "m", "messages": wire}).call.messages


async def prompt(world: World, wire: Wire, **how: Any) -> str:
    made = await planned(world, *read(wire), **{"profile": PROFILE, **how})
    world.keep(made)
    return prompt_of(made.call.messages, made.segments, shows_reasoning=False)


async def asked_before() -> World:
    """What is kept when the requests before the last one were answered."""
    world = World()
    for end in ENDS:
        await prompt(world, TALK[:end])
    assert len(world.records) == 1  # a tool result has no note while one stands
    return world


def in_parts(message: dict[str, Any]) -> dict[str, Any]:
    parts = [{"type": "text", "text": letter} for letter in message["content"]]
    return {**message, "content": parts}


def marked(message: dict[str, Any]) -> dict[str, Any]:
    part = {"type": "text", "text": message["content"], "cache_control": {"type": "ephemeral"}}
    return {**message, "content": [part]}


def with_spaces(message: dict[str, Any]) -> dict[str, Any]:
    message = copy.deepcopy(message)
    for call in message.get("tool_calls", []):
        arguments = json.loads(call["function"]["arguments"])
        call["function"]["arguments"] = json.dumps(arguments, indent=2, sort_keys=True)
    return message


def with_other_ids(message: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(message).replace('"c1"', '"item_7"'))  # type: ignore[no-any-return]


def without_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "reasoning_content"}


def named(message: dict[str, Any]) -> dict[str, Any]:
    return {**dict(reversed(message.items())), "name": "ada", "index": 0}


@pytest.mark.parametrize(
    "spelling", [in_parts, marked, with_spaces, with_other_ids, without_reasoning, named]
)
async def test_another_spelling_is_the_same_prompt(
    spelling: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    world = await asked_before()
    expected = await prompt(copy.deepcopy(world), TALK)
    assert expected.count("<tandem_note>") == 2
    assert await prompt(world, [spelling(message) for message in TALK]) == expected
    assert await prompt(world, TALK) == expected  # and back, while it is answered


async def test_a_mark_for_caches_that_wanders_is_no_other_message() -> None:
    world, before = World(), ""
    for end in (*ENDS, len(TALK)):
        now = await prompt(world, [*TALK[: end - 1], marked(TALK[end - 1])])
        assert now.startswith(before)
        before = now.removesuffix("[assistant]")


async def test_a_reload_changes_no_note_that_stands() -> None:
    """Nothing is kept between two plans but what was stored: each of them is behind a restart."""
    world = await asked_before()
    changed = replace(PROFILE, rules=(Rule("careful", "Write, then read."),), effort="off")
    before = await prompt(copy.deepcopy(world), TALK)
    after = await prompt(world, TALK, profile=changed)
    first, _, second = after.partition("[tool]")
    assert first == before.partition("[tool]")[0] and RULE.text in first
    assert "Write, then read." in second and RULE.text not in second


async def test_an_emptied_answer_cache_changes_nothing() -> None:
    world = await asked_before()
    expected = await prompt(world, TALK)
    questions = len(world.questions)
    assert await prompt(world, TALK) == expected and len(world.questions) == questions


# -- any legal spelling ---------------------------------------------------------------------------


@st.composite
def spelled_again(draw: st.DrawFn, message: dict[str, Any]) -> dict[str, Any]:
    """A message of a body as any client may write it: the same words, values and order."""
    message = copy.deepcopy(message)
    text = message["content"]
    at = draw(st.integers(0, len(text)))
    part = {"type": draw(st.sampled_from(["text", "input_text"]))}
    if draw(st.booleans()):
        part["cache_control"] = {"type": "ephemeral"}  # type: ignore[assignment]
    parts = [{**part, "text": text[:at]}, {**part, "text": text[at:]}]
    message["content"] = draw(st.sampled_from([text, parts, [text[:at], text[at:]]]))
    if not text and message.get("tool_calls"):
        message["content"] = draw(st.sampled_from(["", None, []]))
    for call in message.get("tool_calls", []):
        value = json.loads(call["function"]["arguments"])
        names = draw(st.permutations(sorted(value)))
        call["function"]["arguments"] = json.dumps(
            {name: value[name] for name in names},
            indent=draw(st.sampled_from([None, 1])),
            ensure_ascii=draw(st.booleans()),
        )
        call["id"] = draw(st.text(max_size=3))
    thoughts = draw(st.sampled_from([None, "", "Hm.", "Let me see."]))
    if message["role"] == "assistant":
        message["reasoning_content"] = thoughts
    keys = draw(st.permutations(sorted(message)))
    return {key: message[key] for key in keys}


CALLS = st.lists(
    st.dictionaries(st.text(max_size=3), st.text(max_size=4) | st.integers(), max_size=3).map(
        lambda value: {"id": "c", "function": {"name": "read", "arguments": json.dumps(value)}}
    ),
    max_size=2,
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
MESSAGES = st.one_of(
    st.builds(lambda role, text: {"role": role, "content": text},
              st.sampled_from(["system", "developer", "user", "tool"]), TEXTS),
    st.builds(lambda text, calls: {"role": "assistant", "content": text, "tool_calls": calls},
              TEXTS, CALLS),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.data(), st.lists(MESSAGES, min_size=1, max_size=5))
def test_any_legal_serialisation_of_a_history_gives_one_chain(
    data: st.DataObject, wire: Wire
) -> None:
    again = [data.draw(spelled_again(message)) for message in wire]
    body = json.loads(json.dumps(again, ensure_ascii=data.draw(st.booleans())))
    assert chain(read(body)) == chain(read(wire))
