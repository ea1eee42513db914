"""Forty recorded conversations, from their requests to the tokens of their prompts."""

import copy
import importlib.util
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from proto.chat import Message
from tests.conductor.recorded import agents
from tests.conductor.recorded.sessions import SHAPES, Script
from tests.conductor.recorded.talk import Request, Talk

if TYPE_CHECKING:
    from tests.e2e.road import Road, Seen

pytestmark = pytest.mark.worker
if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
    pytest.skip("the worker extra is not installed", allow_module_level=True)

ALL = pytest.mark.parametrize("script", SHAPES, ids=lambda script: script.__name__)
BILLING = "x-anthropic-billing-header"
Roads = Callable[[str], "Road"]


@pytest.fixture(scope="module")
def roads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Any], "Road"]]:
    """One gateway for each model: all conversations go through it, as those of one person."""
    from tests.e2e.models import model_of
    from tests.e2e.road import Road

    made: dict[str, Road] = {}

    def road(name: Any) -> Road:
        if name not in made:
            made[name] = Road(tmp_path_factory.mktemp(name), model_of(name))
        return made[name]

    yield road
    for one in made.values():
        one.close()


async def played(
    road: "Road", talk: Talk, scope: str, between: Callable[[], None] = lambda: None
) -> "list[Seen]":
    """All requests of a conversation, one after the other, by the owner of a key. `between`: what
    happens before each."""
    seen: list[Seen] = []
    for request in talk.requests:
        between()
        seen.append(await road.send(request, scope))
    return seen


def expected(road: "Road", talk: Talk, seen: "list[Seen]", number: int) -> tuple[int, ...]:
    """What the prompt of a request must begin with."""
    request, now = talk.requests[number], seen[number]
    if request.after is None:
        return ()
    before = seen[request.after]
    ids = before.ids
    if request.changes == "text":
        same = now.submit.call.messages[: len(before.submit.call.messages)]
        ids = road.again(before, same).ids
    if request.is_answered:
        ids += road.answer_ids(before, talk.answers[request.after])
    return ids


def told(road: "Road", seen: "Seen") -> list[str]:
    """The notes in a prompt, as the model reads them."""
    spelled = road.model.tokenizer.token_bytes
    return [
        b"".join(spelled[token] or b"" for token in seen.ids[start:end]).decode()
        for start, end in seen.prepared.notes.spans
    ]


# -- what is recorded -----------------------------------------------------------------------------


def test_there_are_forty_of_six_programs_and_everything_happens_in_some() -> None:
    talks = [script(script.__name__) for script in SHAPES]
    assert len({talk.name for talk in talks}) == len(talks) == 40
    programs = Counter(talk.name.partition("_")[0] for talk in talks)
    assert set(programs) == {"opencode", "claude", "codex", "hermes", "webui", "plain"}
    requests = [request for talk in talks for request in talk.requests]
    assert {request.before for request in requests} == {"", "restart", "reload"}
    assert {request.changes for request in requests} == {"no", "text", "all"}
    sides = {request.side for request in requests}
    assert sides == {None, "title", "tags", "follow_ups", "compaction", "general"}
    assert all(len(talk.requests) >= 3 for talk in talks)
    # Most turns go on from an answer that came back; less than half of all is a person's.
    assert sum(request.is_answered for request in requests) > len(requests) / 2
    assert sum(request.asks for request in requests) == sum(map(asks_of, talks))


def asks_of(talk: Talk) -> int:
    return sum(request.asks for request in talk.requests)


# -- prompts --------------------------------------------------------------------------------------


@ALL
@pytest.mark.parametrize("name", ["plain", "embedded"])
async def test_each_prompt_begins_with_the_one_before_and_its_answer(
    script: Script, name: str, roads: Roads
) -> None:
    """And the model is asked once for each new message of a person, and for nothing else."""
    road, talk = roads(name), script(script.__name__)
    road.restart()  # what it was asked in other conversations is forgotten
    seen = await played(road, talk, "alice")
    assert [now.asked for now in seen] == [int(request.asks) for request in talk.requests]
    for number, (request, now) in enumerate(zip(talk.requests, seen, strict=True)):
        begins = expected(road, talk, seen, number)
        assert now.ids[: len(begins)] == begins, number
        assert not now.prepared.notes.lost
        assert told(road, now) == [segment.text for segment in now.segments]
        assert (now.plan.side and now.plan.side.kind) == request.side
        if request.asks:  # a person's new words have a note, and stand last
            assert now.segments[-1].message == len(now.submit.call.messages) - 1
    assert max(len(now.segments) for now in seen) >= 2


@ALL
async def test_a_restart_or_a_reload_before_every_request_changes_no_prefix(
    script: Script, roads: Roads
) -> None:
    road, talk = roads("plain"), script(script.__name__)
    ways = itertools.cycle((road.restart, road.reload))
    seen = await played(road, talk, "bob", lambda: next(ways)())
    for number, now in enumerate(seen):
        begins = expected(road, talk, seen, number)
        assert now.ids[: len(begins)] == begins, number
    revisions = [now.plan.session.config_rev for now in seen if now.plan.session is not None]
    assert len(set(revisions)) >= 2


@ALL
async def test_a_fork_behind_any_answer_begins_with_all_before_it(
    script: Script, roads: Roads
) -> None:
    road, talk = roads("plain"), script(script.__name__)
    seen = await played(road, talk, "carol")
    for to in sorted(talk.answers):
        talk.forks(to).says(f"and what of way {to} of them?")
    talk.hears("That one.").says("and where does that way end?")
    seen += [await road.send(request, "carol") for request in talk.requests[len(seen) :]]
    for number, now in enumerate(seen):
        begins = expected(road, talk, seen, number)
        assert now.ids[: len(begins)] == begins, number


@ALL
@pytest.mark.parametrize("name", ["tiny", "reasoning"])
async def test_a_model_that_reasons_reads_on_from_all_that_its_template_keeps(
    script: Script, name: str, roads: Roads
) -> None:
    """Its prompts end within the reasoning, or behind an empty one. In a history its template
    writes none, but where a client sends it back within the steps of one question."""
    road, talk = roads(name), script(script.__name__)
    seen = await played(road, talk, "alice")
    for number, now in enumerate(seen):
        begins = kept_by_template(road, talk, seen, number)
        assert now.ids[: len(begins)] == begins, number
        assert not now.prepared.notes.lost
        assert told(road, now) == [segment.text for segment in now.segments]


def kept_by_template(road: "Road", talk: Talk, seen: "list[Seen]", number: int) -> tuple[int, ...]:
    """What the prompt of a request must begin with, as such a template has it."""
    request, messages = talk.requests[number], seen[number].submit.call.messages
    after = request.after
    while after is not None:
        before = seen[after]
        length = len(before.submit.call.messages)
        common, behind = messages[:length], messages[length:]
        is_next_question = any(message.role == "user" for message in behind)
        if not (road.model.shows_thoughts and is_next_question and thinks(common)):
            break
        after = talk.requests[after].after  # what was thought in its steps is gone
    else:
        return ()
    ids = road.again(before, common).ids
    assert request.changes == "text" or ids == before.ids or thinks(before.submit.call.messages)
    if after == request.after and not request.is_answered:
        return road.without_thought(before, ids)
    answer = talk.answers[after]
    whole = road.answer_ids(before, answer)
    if road.model.shows_thoughts and not is_next_question and behind[0].reasoning:
        return ids + whole
    return road.without_thought(before, ids) + road.answer_ids(before, answer, is_bare=True)


def thinks(messages: tuple[Message, ...]) -> bool:
    """Whether there is reasoning behind a person's last words."""
    steps = itertools.takewhile(lambda message: message.role != "user", reversed(messages))
    return any(message.reasoning for message in steps)


@ALL
async def test_the_profile_for_tools_writes_the_prompt_of_no_conductor(
    script: Script, roads: Roads
) -> None:
    for name in ("plain", "reasoning"):
        road, talk = roads(name), script(script.__name__)
        if name == "plain":  # notes that stood there under another profile stay away
            await played(road, talk, "dave")
        for request in talk.requests:
            headers = {**request.headers, "x-tandem-profile": "tools"}
            now = await road.send(replace(request, headers=headers), "dave")
            assert now.plan.profile.name == "tools" and not now.asked
            if now.plan.side is None or name == "plain":  # a helper call does not reason
                assert now.ids == road.raw(without_billing(request)) and not now.segments


@pytest.mark.parametrize("arguments", ['{"path": "CHANG', "CHANGELOG.md", '{"n": NaN}'])
async def test_calls_that_are_no_json_are_served_and_stay_where_they_are(
    arguments: str, roads: Roads
) -> None:
    road, talk = roads("plain"), agents.opencode_steps(f"broken-{arguments}")
    seen = []
    for request in talk.requests:
        seen.append(await road.send(with_arguments(request, lambda _: arguments), "erin"))
        if request.after is not None:
            before = seen[request.after]
            assert seen[-1].ids[: len(before.ids)] == before.ids
    assert len(seen[-1].segments) >= 3 and not seen[-1].prepared.notes.lost


async def test_arguments_in_another_order_cost_tokens_and_no_note(roads: Roads) -> None:
    """A prompt shows them as they come: which order the model wrote is known to nobody."""
    road, talk = roads("plain"), agents.opencode_steps("turned")
    *first, last = talk.requests
    seen = [await road.send(request, "frank") for request in first]

    def turned(arguments: str) -> str:
        return json.dumps(dict(reversed(json.loads(arguments).items())))

    now = await road.send(with_arguments(last, turned), "frank")
    assert now.ids[: len(seen[-1].ids)] != seen[-1].ids
    assert told(road, now)[:-1] == told(road, seen[-1]) and len(now.segments) >= 3


def with_arguments(request: Request, change: Callable[[str], str]) -> Request:
    """With other arguments in every call of its history."""
    body = copy.deepcopy(request.body)
    for message in body["messages"]:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = change(call["function"]["arguments"])
    return replace(request, body=body)


def without_billing(request: Request) -> Request:
    """Without the block that reaches the engine by no way."""
    first, *others = request.body["messages"]
    is_billing = BILLING in str(first["content"])
    messages = others if is_billing else [first, *others]
    return replace(request, body={**request.body, "messages": messages})
