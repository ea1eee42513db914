"""Who moves when: lanes, the lane of short requests, and answers that share one prompt."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Bench, ending_after, letters, submit, writer_of

from proto.messages import Cancel, Credit, Delta, Done, Queued, Refused
from proto.plan import Plan, Thinking
from proto.worker_settings import SideSettings

SIDE = SideSettings(prompt=40, output=8)
THINKER = writer_of("{{ messages[0].content }}{# </think> #}")
SHORT = {"temperature": 0.0, "max_tokens": 4}
LONG = "a long prompt that takes many chunks to be read " * 3


def _bench(*args, **changes) -> Bench:
    bench = Bench(*args, **changes)
    bench.hello()
    return bench


def _finished(bench: Bench, run_id: str) -> bool:
    return any(done.run_id == run_id for done in bench.messages(Done))


def test_lanes_take_turns_and_the_next_run_starts_when_one_is_free():
    bench = _bench(ending_after(6), lanes=2, slots=3)
    for number in range(3):
        bench.say(submit(f"r{number}"))
    bench.turn(4)
    assert len(bench.text("r0")) == len(bench.text("r1")) >= 3
    assert bench.text("r2") == ""
    bench.turn_until_done("r2")
    assert [bench.text(f"r{number}") for number in range(3)] == ["abcdef"] * 3


def test_a_cancelled_run_frees_its_lane_at_once():
    bench = _bench()
    bench.say(submit("r0"))
    bench.turn(3)
    bench.say(submit("r1"))
    bench.turn(2)
    assert bench.text("r1") == ""
    bench.say(Cancel("r0", 1, "client left"))
    bench.turn()
    assert _finished(bench, "r0")
    assert bench.text("r1") != ""


# The lane of short requests.


def test_a_short_request_is_answered_beside_a_long_generation():
    bench = _bench(side=SIDE)
    bench.say(submit("main"))
    bench.turn(5)
    before = bench.text("main")
    bench.say(submit("side", params=SHORT))
    bench.turn()
    assert bench.text("side") == "a"  # at the next safe point
    bench.turn_until_done("side")
    assert bench.text("side") == "abcd"
    assert not _finished(bench, "main")
    assert len(bench.text("main")) - len(before) <= 6  # one step each, in turn
    bench.turn_until_done("main")
    assert bench.text("main") == (("abcdefghijklmnopqrstuvwxyz" * 2)[:50])


def test_a_short_request_is_answered_between_the_chunks_of_a_long_prompt():
    bench = _bench(side=SIDE, chunk=8)
    bench.say(submit("main", prompt=LONG))
    bench.turn(2)
    bench.say(submit("side", params=SHORT))
    bench.turn_until_done("side")
    assert bench.text("main") == ""
    main, side = bench.engine.steps[0], bench.engine.side
    first = bench.engine.steps.index(side)
    assert first == 2  # right behind the chunk that ran
    ends = len(bench.engine.steps) - 1
    turns = bench.engine.steps[first : ends + 1]
    assert turns[:6] == [side, main, side, main, side, main]


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": "long " * 30, "params": SHORT},
        {"params": {"temperature": 0.0, "max_tokens": 9}},
        {"params": {"temperature": 0.0}},
        {"params": SHORT, "plan": Plan(thinking=Thinking(on=True))},
        {"params": SHORT, "choices": 2},
    ],
    ids=["prompt", "output", "no limit", "thinking", "choices"],
)
def test_what_is_not_short_waits_with_all_others(changes):
    bench = _bench(side=SIDE, writer=THINKER)
    bench.say(submit("main"))
    bench.turn(3)
    bench.say(submit("other", **changes))
    bench.turn(3)
    assert bench.text("other") == ""
    assert bench.loop._queue and not len(bench.loop._side)


def test_without_the_lane_a_short_request_waits():
    bench = _bench(side=SideSettings(enabled=False))
    bench.say(submit("main"))
    bench.turn(3)
    bench.say(submit("side", params=SHORT))
    bench.turn(3)
    assert bench.text("side") == ""


def test_on_an_idle_worker_a_short_request_takes_a_lane_unless_it_is_planned_aside():
    bench = _bench(side=SIDE)
    bench.say(submit("r1", params=SHORT))
    bench.turn_until_done("r1")
    assert bench.engine.side not in bench.engine.steps
    bench.say(submit("r2", params=SHORT, plan=Plan(lane="side")))
    bench.turn_until_done("r2")
    assert bench.engine.steps[-1] is bench.engine.side


def test_only_so_many_short_requests_wait_for_their_lane():
    bench = _bench(side=SideSettings(prompt=40, output=8, waiting=2))
    bench.say(submit("main"))
    bench.turn(2)
    for number in range(4):
        bench.say(submit(f"s{number}", params=SHORT))
    bench.preparer.work()
    bench.loop.turn()
    assert (len(bench.loop._side), len(bench.loop._queue)) == (1, 2)
    for number in range(2):
        bench.turn_until_done(f"s{number}")
    assert not _finished(bench, "main")
    for run_id in ("main", "s2", "s3"):
        bench.turn_until_done(run_id)


def test_short_requests_take_their_share_of_the_time_and_no_more():
    bench = _bench(side=SideSettings(prompt=40, output=64, share=0.25), wall_clock_s=1e9)
    bench.engine.round_s = bench.engine.chunk_s = 0.5
    bench.say(submit("main", params={"temperature": 0.0, "max_tokens": 50}))
    bench.turn(2)
    bench.say(submit("side", params={"temperature": 0.0, "max_tokens": 40}))
    bench.turn(30)
    side = [slot is bench.engine.side for slot in bench.engine.steps[2:]]
    shares = [sum(side[at : at + 20]) for at in range(len(side) - 20)]  # of 10 s each
    assert max(shares) == 5 and min(shares) >= 4
    bench.turn_until_done("main")
    began = len(bench.engine.steps)
    bench.turn(10)  # alone it may use all of it
    assert len(bench.engine.steps) == began + 10


def test_a_short_request_may_leave_while_it_waits_or_runs():
    bench = _bench(side=SIDE)
    bench.say(submit("main"))
    bench.turn(2)
    for number in range(3):
        bench.say(submit(f"s{number}", params=SHORT))
    bench.turn()
    for number in (1, 0):
        bench.say(Cancel(f"s{number}", 1, "gone"))
    bench.turn()
    assert {done.run_id for done in bench.messages(Done)} == {"s0", "s1"}
    assert bench.turn_until_done("s2").finish == "length"


def test_a_drain_lets_short_requests_finish_and_refuses_those_that_wait():
    bench = _bench(side=SIDE)
    bench.say(submit("main", params={"temperature": 0.0, "max_tokens": 20}))
    bench.turn(2)
    for number in range(2):
        bench.say(submit(f"s{number}", params=SHORT))
    bench.turn()
    bench.loop._start_drain()
    bench.turn_until_done("s0")
    assert [refused.run_id for refused in bench.messages(Refused)] == ["s1"]
    assert not bench.loop.is_drained
    bench.turn_until_done("main")
    assert bench.loop.is_drained


def test_a_worker_is_not_drained_while_a_short_request_runs():
    bench = _bench(side=SIDE)
    bench.say(submit("side", params=SHORT, plan=Plan(lane="side")))
    bench.turn(2)
    bench.loop._start_drain()
    assert not bench.loop.is_drained
    bench.turn_until_done("side")
    assert bench.loop.is_drained


def test_a_parked_short_request_waits_for_its_credit():
    bench = _bench(side=SIDE)
    bench.say(submit("main"))
    bench.turn(2)
    bench.say(submit("side", params=SHORT, credit=2))
    bench.turn(5)
    assert bench.text("side") == "ab"
    bench.say(Credit("side", 5))
    bench.turn_until_done("side")
    assert bench.text("side") == "abcd"


# Several answers to one prompt.


def _ask_for(bench: Bench, count: int, prompt: str = LONG, **changes) -> None:
    for choice in range(count):
        bench.say(submit(f"r{choice}", prompt=prompt, choice=choice, choices=count, **changes))


@pytest.mark.parametrize("lanes", [1, 3])
def test_several_answers_read_their_prompt_once(lanes: int):
    bench = _bench(ending_after(3), lanes=lanes, slots=lanes + 1, chunk=8)
    _ask_for(bench, 3)
    dones = [bench.turn_until_done(f"r{choice}") for choice in range(3)]
    tokens = dones[0].usage.prompt_tokens
    assert [done.timings.forwarded_tokens for done in dones] == [tokens, 0, 0]
    assert [bench.text(f"r{choice}") for choice in range(3)] == ["abc"] * 3
    assert not bench.loop._shared._kept and not bench.loop._shared._readers


def test_the_state_of_a_shared_prompt_is_let_go_when_no_other_can_want_it():
    bench = _bench(lanes=2, slots=2)
    _ask_for(bench, 2, prompt="hello")
    bench.turn(2)
    assert bench.text("r1") and len(bench.engine.living_prompts) == 1  # a third might come
    bench.say(Cancel("r0", 1, "gone"))
    bench.turn()
    assert not _finished(bench, "r1")
    assert len(bench.engine.living_prompts) == 1
    bench.say(Cancel("r1", 1, "gone"))
    bench.turn()
    assert not bench.engine.living_prompts


def test_when_the_reader_leaves_the_next_one_reads():
    bench = _bench(ending_after(3), lanes=2, slots=3, chunk=8)
    _ask_for(bench, 3)
    bench.turn(2)
    bench.say(Cancel("r0", 1, "gone"))
    dones = [bench.turn_until_done(f"r{choice}") for choice in (1, 2)]
    tokens = dones[0].usage.prompt_tokens
    assert sorted(done.timings.forwarded_tokens for done in dones) == [0, tokens]
    assert not bench.loop._shared._kept and not bench.loop._shared._readers


def test_the_same_prompt_of_another_user_or_seed_is_not_shared():
    bench = _bench(ending_after(3), lanes=3, slots=4)
    for index, changes in enumerate(({}, {"cache_salt": "x"}, {"seed": 2})):
        bench.say(submit(f"r{index}", choices=2, **changes))
    dones = [bench.turn_until_done(f"r{index}") for index in range(3)]
    assert all(done.timings.forwarded_tokens == done.usage.prompt_tokens for done in dones)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["run", "side", "many", "cancel", "credit", "turn"]),
                  st.integers(0, 5), st.integers(1, 12)),
        max_size=25,
    ),
    st.integers(1, 3),
    st.integers(0, 4),
)  # fmt: skip
def test_every_run_of_a_random_schedule_ends_once_and_nothing_is_left(steps, lanes, guessed):
    bench = _bench(
        letters, side=SIDE, lanes=lanes, slots=lanes + 1, chunk=4, queue_size=50, preparing=99
    )
    bench.engine.guessed = guessed
    asked: set[str] = set()
    for index, (what, target, count) in enumerate(steps):
        run_id = f"r{index}"
        match what:
            case "run":
                bench.say(submit(run_id, params={"temperature": 0.0, "max_tokens": count},
                                 credit=count))  # fmt: skip
                asked.add(run_id)
            case "side":
                bench.say(submit(run_id, params=SHORT, plan=Plan(lane="side")))
                asked.add(run_id)
            case "many":
                for choice in range(2):
                    bench.say(submit(f"{run_id}.{choice}", choice=choice, choices=2,
                                     params={"temperature": 0.0, "max_tokens": count}))  # fmt: skip
                    asked.add(f"{run_id}.{choice}")
            case "cancel":
                bench.say(Cancel(f"r{target}", 1, "gone"))
            case "credit":
                bench.say(Credit(f"r{target}", count))
            case "turn":
                bench.turn(count)
    for run_id in asked:
        bench.say(Credit(run_id, 100))
    for run_id in asked:
        bench.turn_until_done(run_id)
    ended = bench.messages(Done)
    assert {done.run_id for done in ended} == asked
    # A run that is cancelled behind its end is told the same end again.
    assert len({(done.run_id, done.finish, done.last_token) for done in ended}) == len(asked)
    assert bench.engine.free_slots == lanes + 1
    loop = bench.loop
    assert not loop._started and not loop._waiting
    assert not loop._shared._kept and not loop._shared._readers
    for run_id in asked:
        numbers = bench.numbers(run_id)
        assert numbers == list(range(1, len(numbers) + 1))


def test_a_waiting_short_request_is_told_its_place_once():
    bench = _bench(side=SIDE)
    bench.say(submit("main"))
    bench.turn(2)
    bench.say(submit("side", params=SHORT))
    bench.turn_until_done("side")
    places = [q for q in bench.messages(Queued) if q.run_id == "side"]
    assert [(q.position, q.est_wait_ms) for q in places] == [(0, 0)]
    assert all(isinstance(delta, Delta) for delta in bench.messages(Delta))


def test_the_answers_of_one_request_take_one_place_of_the_queue():
    bench = _bench(ending_after(2), queue_size=2, slots=1, preparing=32)
    for choice in range(16):
        bench.say(submit(f"r{choice}", choice=choice, choices=16))
    bench.say(submit("other", prompt="another"))
    bench.say(submit("late", prompt="a third"))
    bench.turn_until_done("other")
    assert all(_finished(bench, f"r{choice}") for choice in range(16))
    assert [refused.run_id for refused in bench.messages(Refused)] == ["late"]


# Clients that do not read on.


def _slow(bench: Bench, count: int) -> None:
    """So many runs, each of whose clients takes two tokens and then reads no further."""
    for number in range(count):
        bench.say(submit(f"slow{number}", credit=2))
        bench.turn(4)


def test_b57_clients_that_do_not_read_hold_up_nobody():
    bench = _bench(ending_after(6), slots=2)
    _slow(bench, 2)
    bench.say(submit("next"))
    bench.turn_until_done("next")
    bench.turn(3)
    assert bench.engine.free_slots == 1  # who has no credit needs no slot
    for number in range(2):
        assert bench.numbers(f"slow{number}") == [1, 2]
        bench.say(Credit(f"slow{number}", 100))
        bench.turn_until_done(f"slow{number}")
        assert bench.text(f"slow{number}") == "abcdef"
        assert bench.numbers(f"slow{number}") == list(range(1, 8))
    assert bench.engine.free_slots == 2


def test_clients_that_read_on_at_once_with_one_slot_are_all_served():
    bench = _bench(ending_after(6), slots=1)
    _slow(bench, 3)
    bench.say(Credit("slow0", 100))  # while another, who has no credit, holds the slot
    bench.turn_until_done("slow0")
    for number in (1, 2):
        bench.say(Credit(f"slow{number}", 100))
    for number in range(3):
        bench.turn_until_done(f"slow{number}")
        assert bench.text(f"slow{number}") == "abcdef"
    assert bench.engine.free_slots == 1


def test_where_no_memory_is_left_for_what_is_set_aside_the_next_run_waits():
    bench = _bench(ending_after(6), slots=1)
    bench.engine.has_room_aside = False
    _slow(bench, 1)
    bench.say(submit("next"))
    bench.turn(20)
    assert bench.numbers("next") == []
    bench.say(Credit("slow0", 100))
    bench.turn_until_done("next")
    assert bench.text("slow0") == bench.text("next") == "abcdef"


def test_a_run_that_ends_while_it_is_set_aside_leaves_nothing():
    bench = _bench(ending_after(6), slots=1)
    _slow(bench, 2)
    assert bench.engine.dropped_aside == []
    bench.say(Cancel("slow0", 1, "gone"))
    bench.turn_until_done("slow0")
    assert len(bench.engine.dropped_aside) == 1
    assert bench.engine.free_slots == 0  # the other's, who waits still
