"""Bug class 14: the arguments of a call in the history are no JSON."""

import pytest

from gateway.surfaces.chat.parse import parse_chat
from proto.chat import Message
from tests.conductor.planned import World, planned, said

BROKEN = ['{"path": "a', "{'path': 'a'}", '{"path": NaN}', "a.py", "[" * 2_000, '{"a": "\\ud800"']
ASKED = said("user", "Why does the second test fail?")


def history(arguments: str, **more: str) -> tuple[Message, ...]:
    """A call with such arguments and its result, as the chat surface reads them."""
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": arguments}}
    messages = [
        {"role": "user", "content": ASKED.text},
        {"role": "assistant", "content": None, "tool_calls": [{**call, **more}]},
        {"role": "tool", "tool_call_id": "c1", "content": "no such file"},
    ]
    return parse_chat({"model": "m", "messages": messages}).call.messages


@pytest.mark.parametrize("arguments", BROKEN)
async def test_it_is_served_as_it_came_and_costs_no_note(arguments: str) -> None:
    world = World()
    world.keep(await planned(world, ASKED))
    messages = history(arguments)
    made = await planned(world, *messages)
    assert (made.turn, made.call.messages[1].calls[0].arguments) == ("tool_result", arguments)
    world.keep(made)
    more = (said("assistant", "It is not there."), said("user", "Then write it, please."))
    then = await planned(world, *messages, *more)
    assert [segment.message for segment in then.segments] == [0, 4]
    assert then.session is not None and then.session.turns == 3
    # Its bytes are what it is known by: an id is none of them, a blank is one.
    again = await planned(world, *history(arguments, id="other"), *more)
    assert again.segments == then.segments
    world.keep(then)
    other = await planned(world, *history(arguments + " "), *more)
    assert other.session is not None and other.session.chain != then.session.chain
