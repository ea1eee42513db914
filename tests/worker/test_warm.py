"""When the next prompt of a conversation is read ahead, and when it is not."""

from dataclasses import replace
from typing import Any

import pytest
from scripted import Clock, submit
from structlog.testing import capture_logs

from proto.chat import Call, Message, TextPart, ToolCall
from proto.messages import CallPart, Delta, Metric, Submit
from proto.plan import Plan
from proto.worker_settings import WarmSettings
from worker.limits import WARM_PENDING, WARM_READ
from worker.sampling.params import Sampling
from worker.types import Arrival, Prepared, Warmable
from worker.warm import WarmPass, session_key

CHUNK = 4
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
CALLED = Delta(
    "r1", 1, (1, 2, 3), ("Hm.", "Sure", "!"), ("reasoning", "text", "text"), (False,) * 3,
    (CallPart(3, 0, "c1", "f"), CallPart(3, 0, args="{}"), CallPart(3, 0, end=True)),
)  # fmt: skip


class FakeAhead:
    """Keeps what was read, by prompt; a slot is the prompt and how far it is read."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, ...], int] = {}
        self.open: list[list[Any]] = []
        self.opened: list[tuple[Any, ...]] = []
        self.reads = 0
        self.fault: Exception | None = None
        self.has_room = True

    def open_ahead(self, prompt, cuts, salt) -> list[Any] | None:
        self.opened.append((prompt, cuts, salt))
        if self.fault is not None:
            raise self.fault
        if not self.has_room or self.kept.get(prompt) == len(prompt):
            return None
        slot = [prompt, self.kept.get(prompt, 0)]
        self.open.append(slot)
        return slot

    def read_ahead(self, slot) -> bool:
        assert any(slot is one for one in self.open), "read in a slot that is not open"
        if self.fault is not None:
            raise self.fault
        self.reads += 1
        slot[1] = min(slot[1] + CHUNK, len(slot[0]))
        return slot[1] == len(slot[0])

    def close(self, slot, *, is_sound: bool = True) -> None:
        self.open.remove(slot)
        if is_sound:
            self.kept[slot[0]] = slot[1]


class Desk:
    """A warm pass with its clock and engine, and conversations by name."""

    def __init__(self, **settings: Any) -> None:
        self.clock, self.engine = Clock(), FakeAhead()
        self.warm: WarmPass[Any] = WarmPass(self.engine, WarmSettings(**settings), self.clock)
        self.made = 0

    @property
    def counts(self) -> dict[str, int]:
        return {event: count for event, count in self.warm.counts.items() if count}

    def reply(self, session: str = "s", finish: Any = "stop", **changes: Any):
        is_side = changes.pop("is_side", False)
        deltas = changes.pop("deltas", (CALLED,))
        return self.warm.saw_reply(_prepared(session, **changes), finish, deltas, is_side=is_side)

    def add(self, session: str = "s", length: int = 10, **changes: Any) -> Warmable:
        """A reply, and what the preparer makes of it: a prompt that no other one begins with."""
        replied = self.reply(session)
        assert replied is not None
        self.made += 1
        prompt = tuple(range(self.made * 1000, self.made * 1000 + length))
        warmable = Warmable(prompt, (5,), "salt", session, replied.ended_s)
        self.warm.add(replace(warmable, **changes))
        return warmable

    def run(self, limit: int = 50) -> int:
        """Steps until nothing moves on; returns the number of steps."""
        for count in range(limit):
            if not self.warm.step(is_idle=True):
                return count
        raise AssertionError("it never comes to an end")


def _prepared(session: str = "s", **changes: Any) -> Prepared:
    asked: Submit = submit(cache_salt="salt", **changes)
    return Prepared(Arrival(asked, 0.0), (1, 2), "h", GREEDY, session=session)


def test_a_prompt_is_read_a_chunk_a_step_and_then_kept():
    desk = Desk()
    warmable = desk.add(length=10)
    assert desk.run() == 3 and desk.engine.reads == 3
    assert desk.engine.kept == {warmable.prompt: 10} and not desk.engine.open
    assert desk.engine.opened == [(warmable.prompt, (5,), "salt")]
    assert desk.counts == {"started": 1, "done": 1}


def test_e3_the_reply_is_the_one_that_the_client_got():
    replied = Desk().reply()
    assert replied is not None and replied.submit.run_id == "r1"
    assert replied.reply == Message(
        "assistant", (TextPart("Sure!"),), (ToolCall("c1", "f", "{}"),), reasoning="Hm."
    )


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "length"])
def test_a_reply_that_was_read_to_its_end_is_wanted(finish: str):
    desk = Desk()
    desk.clock.now = 3.0
    replied = desk.reply(finish=finish)
    assert replied is not None and (replied.session, replied.ended_s) == ("s", 3.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"finish": "cancelled"},
        {"finish": "error"},
        {"is_side": True},
        {"plan": Plan(lane="side")},
        {"params": {"cache_prompt": False}},
        {"choices": 2},
        {"start_token": 5},
        {"call": Call("m", (), prompt="raw")},
        {"deltas": ()},
    ],
)
def test_a_run_without_a_likely_next_turn_is_not_wanted(changes: dict[str, Any]):
    assert Desk().reply(**changes) is None
    assert Desk().reply() is not None


def test_switched_off_nothing_is_wanted():
    assert Desk(enabled=False).reply() is None
    assert not Desk(enabled=False).warm.wants(_prepared(), is_side=False)


def test_w6_others_are_served_first_and_what_was_read_is_not_read_again():
    desk = Desk()
    warmable = desk.add(length=10)
    assert desk.warm.step(is_idle=True)
    assert desk.warm.step(is_idle=False), "it freed a slot, so the loop must not go to sleep"
    assert not desk.engine.open and desk.engine.kept[warmable.prompt] == CHUNK
    for _ in range(5):
        assert not desk.warm.step(is_idle=False)
    assert desk.engine.reads == 1
    desk.run()
    assert desk.engine.reads == 3 and desk.engine.kept[warmable.prompt] == 10
    assert desk.counts == {"started": 1, "deferred": 1, "done": 1}


def test_w6_what_could_not_begin_is_deferred_too_and_counted_once():
    desk = Desk()
    desk.add()
    for _ in range(3):
        assert not desk.warm.step(is_idle=False)
    assert desk.engine.opened == [] and desk.counts == {"deferred": 1}
    desk.run()
    assert desk.counts == {"started": 1, "deferred": 1, "done": 1}


def test_the_next_request_of_the_conversation_drops_it():
    desk = Desk()
    desk.add("s"), desk.add("other")
    desk.warm.step(is_idle=True)
    desk.warm.saw_request("s")
    assert not desk.engine.open and desk.counts == {"started": 1, "dropped": 1}
    desk.run()
    assert desk.counts == {"started": 2, "dropped": 1, "done": 1}


def test_a_request_that_comes_while_it_is_rendered_drops_it_too():
    desk = Desk()
    replied = desk.reply()
    assert replied is not None
    desk.warm.saw_request("s")
    desk.warm.add(Warmable((1, 2), (), "salt", "s", replied.ended_s))
    assert desk.run() == 0 and desk.counts == {"dropped": 1}


def test_of_one_conversation_the_newest_wins():
    desk = Desk()
    old = desk.add()
    desk.warm.step(is_idle=True)
    desk.clock.now += 1
    new = desk.add()
    assert not desk.engine.open
    desk.run()
    assert desk.engine.kept == {old.prompt: CHUNK, new.prompt: 10}
    assert desk.counts == {"started": 2, "dropped": 1, "done": 1}


def test_what_is_made_of_an_older_reply_does_not_take_the_newers_place():
    desk = Desk()
    first = desk.reply()
    desk.clock.now += 1
    second = desk.reply()
    assert first is not None and second is not None
    for replied, prompt in ((first, (1, 2)), (second, (3, 4))):
        desk.warm.add(Warmable(prompt, (), "salt", "s", replied.ended_s))
    desk.run()
    assert desk.engine.kept == {(3, 4): 2} and desk.counts["dropped"] == 1


def test_it_is_given_up_at_its_age_also_when_half_read():
    desk = Desk(max_age_s=60.0)
    desk.add()
    desk.warm.step(is_idle=True)
    desk.clock.now += 59.9
    desk.warm.step(is_idle=False)
    desk.clock.now += 0.1
    assert desk.run() == 0 and not desk.engine.open
    assert desk.counts == {"started": 1, "deferred": 1, "dropped": 1}


def test_w5_an_empty_prompt_and_one_that_is_kept_are_skipped():
    desk = Desk()
    desk.add(prompt=())
    assert desk.run() == 0 and desk.counts == {"skipped": 1}
    kept = desk.add()
    desk.engine.kept[kept.prompt] = len(kept.prompt)
    desk.run()
    assert desk.engine.reads == 0 and desk.counts == {"skipped": 2}


def test_without_room_it_is_skipped():
    desk = Desk()
    desk.engine.has_room = False
    desk.add("s"), desk.add("other")
    desk.run()
    assert desk.counts == {"skipped": 2}


def test_conversations_are_read_in_the_order_of_their_replies_one_at_a_time():
    desk = Desk()
    made = [desk.add(name) for name in "abc"]
    while desk.warm.step(is_idle=True):
        assert len(desk.engine.open) <= 1
    assert [prompt for prompt, *_ in desk.engine.opened] == [one.prompt for one in made]


def test_a_bounded_number_waits_and_the_oldest_goes():
    desk = Desk()
    made = [desk.add(f"s{number}") for number in range(WARM_PENDING + 1)]
    desk.run(limit=10 * WARM_PENDING)
    assert set(desk.engine.kept) == {one.prompt for one in made[1:]}
    assert desk.counts["dropped"] == 1


def test_a_bounded_number_is_awaited_from_the_preparer():
    desk = Desk()
    replies = [desk.reply(f"s{number}") for number in range(WARM_PENDING + 1)]
    for number in (0, 1):
        replied = replies[number]
        assert replied is not None
        desk.warm.add(Warmable((number,), (), "salt", replied.session, replied.ended_s))
    desk.run()
    assert set(desk.engine.kept) == {(1,)} and desk.counts["dropped"] == 1


@pytest.mark.parametrize("at", ["open", "read"])
def test_a_fault_ends_it_and_nothing_else(at: str):
    desk = Desk()
    failed, other = desk.add("s"), desk.add("other", length=6)
    if at == "read":
        desk.warm.step(is_idle=True)
    desk.engine.fault = RuntimeError("out of memory")
    with capture_logs() as lines:
        assert desk.warm.step(is_idle=True)
    assert [line["event"] for line in lines] == ["warm.failed"]
    assert not desk.engine.open
    desk.engine.fault = None
    desk.run()
    assert desk.counts["failed"] == 1 and desk.counts["done"] == 1
    assert desk.engine.kept == {other.prompt: 6}, f"{failed.prompt} may be in any state"


def test_a_broken_invariant_is_not_hidden():
    desk = Desk()
    desk.add()
    desk.engine.fault = AssertionError("a root is missing")
    with pytest.raises(AssertionError, match="root"):
        desk.warm.step(is_idle=True)


def test_the_next_prompt_is_a_hit_or_a_miss_once():
    desk = Desk()
    read = [desk.add(name).prompt for name in "abc"]
    desk.run()
    desk.warm.saw_prompt("a", (*read[0], 1, 2))
    desk.warm.saw_prompt("b", (*read[1][:-1], 1, 2))
    desk.warm.saw_prompt("c", read[2][:-1])
    for name in "abcd":
        desk.warm.saw_prompt(name, read[0])
    assert (desk.counts["hit"], desk.counts["miss"]) == (1, 2)


def test_what_was_not_read_whole_is_neither_hit_nor_miss():
    desk = Desk()
    warmable = desk.add()
    desk.warm.step(is_idle=True)
    desk.warm.saw_request("s")
    desk.warm.saw_prompt("s", warmable.prompt)
    assert desk.counts == {"started": 1, "dropped": 1}


def test_a_bounded_number_of_prompts_is_remembered():
    desk = Desk()
    first = desk.add("first")
    desk.run()
    for number in range(WARM_READ):
        desk.add(f"s{number}", length=1)
        desk.run()
    desk.warm.saw_prompt("first", first.prompt)
    assert "hit" not in desk.counts


def test_the_counts_are_samples_of_a_beat():
    desk = Desk()
    desk.add(length=1)
    desk.run()
    assert Metric("tandem_worker_warm_total", {"event": "done"}, 1) in desk.warm.samples()


def _asked(*messages: Message, **changes: Any) -> Submit:
    return submit(call=Call("m", messages), **changes)


def test_a_conversation_is_known_by_its_beginning_or_by_its_name():
    system, hi, other = (
        Message(role, (TextPart(text),))  # type: ignore[arg-type]
        for role, text in (("system", "Be brief."), ("user", "hi"), ("user", "other"))
    )
    reply = Message("assistant", (TextPart("yes?"),))
    key = session_key(_asked(system, hi))
    assert key == session_key(_asked(system, hi, reply, other))
    different = [
        _asked(hi),
        _asked(system, other),
        _asked(system, hi, cache_salt="x"),
        _asked(system, hi, plan=Plan(session="hi")),
        _asked(system, hi, plan=Plan(session="hi"), cache_salt="x"),
        _asked(system, hi, plan=Plan(session="other")),
        submit(call=Call("m", (), prompt="hi")),
        submit(call=Call("m", (), prompt="ho")),
    ]
    assert len({key, *map(session_key, different)}) == len(different) + 1
    named = Plan(session="hi")
    assert session_key(_asked(hi, plan=named)) == session_key(_asked(other, plan=named))
