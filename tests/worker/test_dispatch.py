"""Owners, epochs, acknowledgements and leases of runs, with a scripted model and a set clock."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import GATEWAY, OTHER, READY, WRITER, Bench, ending_after, letters, submit

from proto.chat import Call, Message, TextPart
from proto.limits import LINK_DONE_KEPT_S, LINK_LEASE_S, LINK_RING_BYTES, LINK_RING_RECORDS
from proto.messages import (
    Ack,
    Attach,
    Beat,
    Cache,
    CallPart,
    Cancel,
    Count,
    Counted,
    Credit,
    Delta,
    Done,
    Drain,
    Embed,
    Hello,
    Ready,
    Refused,
)  # fmt: skip
from worker.outbound import RunLog
from worker.types import Outgoing, StartDrain


def _bench(*args, **changes) -> Bench:
    bench = Bench(*args, **changes)
    bench.hello()
    return bench


def _refusals(bench: Bench, receiver: bytes = GATEWAY) -> list[str]:
    return [refused.code for refused in bench.messages(Refused, receiver)]


# Hello, questions and nonsense.


def test_hello_is_answered_with_ready():
    bench = _bench()
    assert bench.sent[GATEWAY] == [READY]


@pytest.mark.parametrize(("low", "high"), [(2, 5), (0, 0)])
def test_a_gateway_of_another_protocol_is_told_so(low: int, high: int):
    bench = Bench()
    bench.say(Hello("g", "i", low, high))
    assert _refusals(bench) == ["version"]
    bench.say(submit())
    assert _refusals(bench) == ["version", "bad_message"]


def test_who_has_not_said_hello_is_asked_to():
    bench = Bench()
    for message in (Beat("up"), submit(), Cancel("r1", 1, "x")):
        bench.say(message)
    assert _refusals(bench) == ["bad_message"] * 3
    assert bench.messages(Refused)[0].detail == "say Hello first"


def test_texts_and_calls_are_counted():
    bench = _bench()
    call = Call("m", (Message("user", (TextPart("hello"),)),))
    bench.say(Count("q1", texts=("hello", "", "<|im_end|>")))
    bench.say(Count("q2", call=call))
    bench.say(Count("q3", call=Call("m", ())))
    bench.turn()
    texts, whole = bench.messages(Counted)
    assert (texts.req_id, texts.tokens[1], texts.tokens[2] > 1) == ("q1", 0, True)
    assert whole.tokens == (len(WRITER.write(call, is_thinking=False).ids),)
    (refused,) = bench.messages(Refused)
    assert (refused.req_id, refused.code, refused.param) == ("q3", "bad_request", "messages")


def test_what_this_engine_cannot_do_is_refused_by_its_request():
    bench = _bench()
    bench.say(Embed("q1", ("a",)))
    bench.say(Cache("q2", "clear", ("prefix", "suffix")))
    bench.say(Delta("r1", 1, (1,), ("a",), ("text",), (False,)))
    assert [(r.code, r.req_id) for r in bench.messages(Refused)] == [
        ("bad_request", "q1"),
        ("bad_request", "q2"),
        ("bad_message", None),
    ]


def test_a_full_preparer_is_busy():
    bench = _bench(preparing=2)
    for run_id in ("a", "b", "c"):
        bench.say(submit(run_id))
    bench.say(Count("q1", texts=("x",)))
    bench.turn()
    assert [(r.run_id, r.req_id, r.detail) for r in bench.messages(Refused)] == [
        (None, "q1", "queue_full"),
        ("c", None, "queue_full"),
    ]
    assert [r.retry_after_ms for r in bench.messages(Refused)] == [5000, 5000]


# Attach, epochs, acknowledgements.


def test_attach_sends_exactly_the_records_from_there_and_then_live_ones():
    bench = _bench(ending_after(9))
    bench.say(submit(credit=5))
    bench.turn(8)
    bench.hello(OTHER)
    bench.say(Attach("r1", 2, 3, 256), OTHER)
    assert bench.numbers("r1", OTHER) == [3, 4, 5]
    bench.turn(10)
    assert bench.numbers("r1", OTHER) == list(range(3, 11))
    assert bench.numbers("r1") == [1, 2, 3, 4, 5]
    assert [d.last_token for d in bench.messages(Done, OTHER)] == [10]


def test_attach_counts_credit_from_its_token():
    bench = _bench()
    bench.say(submit(credit=5))
    bench.turn(8)
    bench.say(Attach("r1", 1, 4, 3))
    bench.turn(8)
    assert bench.numbers("r1") == [1, 2, 3, 4, 5, 4, 5, 6]


def test_attach_inside_a_record_cuts_it():
    entry = RunLog(owner=GATEWAY, gateway_id="g", epoch=1, first=1, credit=9, is_resumable=False)
    parts = tuple(CallPart(at, 0, args=str(at)) for at in (1, 2, 3))
    block = Delta("r", 1, (7, 8, 9), ("a", "b", "c"), ("text",) * 3, (False,) * 3, parts)
    entry.add(block)
    (rest,) = entry.since(2)
    assert (rest.first, rest.ids, rest.pieces) == (2, (8, 9), ("b", "c"))
    assert [part.at for part in rest.calls] == [2, 3]
    entry.acknowledge(2)
    assert [d.first for d in entry.since(1)] == [3]
    assert entry.is_trimmed(2) and not entry.is_trimmed(3)


def test_records_that_were_acknowledged_are_trimmed():
    bench = _bench()
    bench.say(submit(credit=5))
    bench.turn(8)
    bench.say(Ack("r1", 3))
    bench.say(Attach("r1", 1, 3, 9))
    assert _refusals(bench) == ["trimmed"]
    bench.say(Attach("r1", 1, 4, 9))
    assert bench.numbers("r1")[-2:] == [4, 5]


def test_a_lower_epoch_and_a_strangers_equal_one_are_stale():
    bench = _bench()
    bench.hello(OTHER)
    bench.say(submit(epoch=5, credit=3))
    bench.turn(6)
    bench.say(Attach("r1", 4, 1, 9))
    bench.say(Attach("r1", 5, 1, 9), OTHER)
    bench.say(Cancel("r1", 4, "late"))
    assert _refusals(bench) == ["stale_epoch", "stale_epoch"]
    assert _refusals(bench, OTHER) == ["stale_epoch"]
    assert bench.numbers("r1") == [1, 2, 3]


def test_the_same_gateway_may_attach_from_a_new_connection():
    bench = _bench()
    bench.say(submit(credit=2))
    bench.turn(5)
    bench.hello(OTHER, gateway_id=GATEWAY.decode())
    bench.say(Attach("r1", 1, 2, 9), OTHER)
    bench.turn(2)
    assert bench.numbers("r1", OTHER) == [2, 3, 4]


def test_attach_to_nothing_is_an_unknown_run():
    bench = _bench()
    bench.say(Attach("r1", 1, 1, 9))
    assert [(r.code, r.run_id) for r in bench.messages(Refused)] == [("unknown_run", "r1")]


def test_the_same_submit_again_attaches():
    bench = _bench(ending_after(4))
    bench.say(submit(credit=2))
    bench.turn(4)
    bench.say(submit(credit=99))
    assert bench.numbers("r1") == [1, 2, 1, 2]
    bench.turn_until_done("r1")
    assert bench.engine.free_slots == 2


def test_a_submit_after_the_end_continues_the_run_or_repeats_its_end():
    bench = _bench(lambda prompt, number: 2 if number in (3, 6) else letters(prompt, number))
    bench.say(submit())
    bench.turn_until_done("r1")
    bench.say(submit())
    assert bench.numbers("r1") == [1, 2, 3, 1, 2, 3]
    bench.say(submit(start_token=4))
    bench.turn(8)
    assert bench.numbers("r1")[6:] == [4, 5, 6]
    assert [d.last_token for d in bench.messages(Done)] == [3, 3, 6]


def test_an_end_is_repeated_until_it_is_acknowledged():
    bench = _bench(ending_after(1))
    bench.say(submit())
    bench.turn_until_done("r1")
    for _ in range(3):
        bench.clock.now += 1.0
        bench.dispatch.tick(bench.clock.now, None)
    assert len(bench.messages(Done)) == 4
    assert bench.dispatch.unacknowledged == 1
    bench.say(Ack("r1", 2, done=True))
    bench.clock.now += 1.0
    bench.dispatch.tick(bench.clock.now, None)
    assert len(bench.messages(Done)) == 4
    assert bench.dispatch.unacknowledged == 0
    bench.say(Attach("r1", 1, 1, 9))
    assert _refusals(bench) == ["unknown_run"]


def test_acks_and_credits_of_nobodys_run_are_counted_only():
    bench = _bench()
    bench.say(Ack("r1", 3, done=True))
    bench.say(Credit("r1", 3))
    assert not bench.messages(Refused)


@pytest.mark.parametrize("by", ["records", "bytes"])
def test_a_run_that_nobody_acknowledges_ends_at_the_bounds_of_its_log(by: str):
    bench = _bench()
    bench.say(submit(credit=1))
    bench.turn(4)
    if by == "records":
        count, piece = LINK_RING_RECORDS, ""
    else:
        count, piece = 9, "x" * (LINK_RING_BYTES // 8)
    many = (7,) * count
    delta = Delta("r1", 2, many, (piece,) * count, ("text",) * count, (False,) * count)
    bench.dispatch.forward(Outgoing(delta), bench.clock.now)
    bench.turn()
    (done,) = bench.messages(Done)
    assert (done.finish, done.detail) == ("length", "log_full")


# Leases.


def _pass(bench: Bench, seconds: float, *alive: bytes) -> None:
    """Lets time pass in steps of a second, in which some gateways beat."""
    for _ in range(int(seconds)):
        bench.clock.now += 1.0
        for sender in alive:
            bench.say(Beat("up"), sender)
        bench.dispatch.tick(bench.clock.now, bench.board.beat)
        bench.turn()


def test_beats_go_to_every_gateway_and_stop_when_the_loop_is_stuck():
    bench = _bench()
    bench.hello(OTHER)
    bench.dispatch.tick(bench.clock.now, Beat("busy"))
    bench.dispatch.tick(bench.clock.now, None)
    assert len(bench.messages(Beat)) == len(bench.messages(Beat, OTHER)) == 1


def test_plain_runs_of_a_silent_gateway_are_cancelled_and_others_are_not():
    bench = _bench()
    bench.hello(OTHER)
    bench.say(submit("mine", credit=1))
    bench.say(submit("theirs", credit=1), OTHER)
    bench.turn(4)
    _pass(bench, LINK_LEASE_S + 2, OTHER)
    assert not bench.messages(Done) and not bench.messages(Done, OTHER)
    assert bench.engine.free_slots == 1
    bench.hello()
    bench.say(Attach("mine", 1, 1, 9))
    (done,) = bench.messages(Done)
    assert (done.finish, done.detail) == ("cancelled", "client_left")


def test_a_lost_gateway_hears_nothing_until_it_says_hello_again():
    bench = _bench()
    _pass(bench, LINK_LEASE_S + 2)
    heard = len(bench.sent[GATEWAY])
    _pass(bench, 3)
    assert len(bench.sent[GATEWAY]) == heard
    bench.say(Beat("up"))
    assert _refusals(bench) == ["bad_message"]
    bench.hello()
    assert isinstance(bench.sent[GATEWAY][-1], Ready)


def test_a_resumable_run_outlives_its_gateway_and_can_be_taken_over():
    bench = _bench(ending_after(6))
    bench.hello(OTHER)
    bench.say(submit(credit=2, resumable=True))
    bench.turn(4)
    _pass(bench, 30, OTHER)
    bench.say(Attach("r1", 2, 1, 99), OTHER)
    bench.turn(8)
    assert bench.text("r1", OTHER) == "abcdef"


def test_an_orphan_that_nobody_takes_is_cancelled_after_its_grace():
    bench = _bench()
    bench.say(submit(credit=2, resumable=True))
    bench.turn(4)
    _pass(bench, 5 + 60)
    assert bench.engine.free_slots == 1
    _pass(bench, 5)
    assert bench.engine.free_slots == 2


def test_an_end_is_kept_for_a_lost_gateway_for_a_minute():
    for wait_s, expected in ((LINK_DONE_KEPT_S - 10, []), (LINK_DONE_KEPT_S + 10, ["unknown_run"])):
        bench = _bench(ending_after(1))
        bench.say(submit())
        bench.turn_until_done("r1")
        _pass(bench, LINK_LEASE_S + wait_s)
        bench.hello()
        bench.say(Attach("r1", 1, 1, 9))
        assert _refusals(bench) == expected


def test_a_gateway_that_comes_during_the_drain_is_told_of_it():
    bench = _bench()
    bench.to_loop.put(StartDrain())
    bench.turn()
    bench.hello(OTHER)
    assert [type(m) for m in bench.sent[OTHER]] == [Ready, Drain]


# Whatever happens in whatever order.

ACTIONS = st.one_of(
    st.tuples(st.just("submit"), st.sampled_from("abcdef"), st.integers(0, 6)),
    st.tuples(st.just("cancel"), st.sampled_from("abcdef"), st.just(0)),
    st.tuples(st.just("credit"), st.sampled_from("abcdef"), st.integers(0, 9)),
    st.tuples(st.just("ack"), st.sampled_from("abcdef"), st.integers(0, 9)),
    st.tuples(st.just("attach"), st.sampled_from("abcdef"), st.integers(1, 9)),
    st.tuples(st.just("turn"), st.just(""), st.integers(1, 5)),
    st.tuples(st.just("fault"), st.just(""), st.just(0)),
    st.tuples(st.just("time"), st.just(""), st.integers(1, 20)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTIONS, max_size=40), st.booleans())
def test_any_schedule_ends_every_run_once_with_numbers_without_gaps(actions, is_drained):
    bench = _bench(ending_after(7), queue_size=2, chunk=3)
    submitted: set[str] = set()
    for kind, run_id, amount in actions:
        match kind:
            case "submit" if run_id not in submitted:
                submitted.add(run_id)
                bench.say(submit(run_id, credit=amount))
            case "cancel":
                bench.say(Cancel(run_id, 1, "x"))
            case "credit":
                bench.say(Credit(run_id, amount))
            case "ack":
                bench.say(Ack(run_id, amount))
            case "attach":
                bench.say(Attach(run_id, 1, amount, 3))
            case "turn":
                bench.turn(amount)
            case "fault":
                bench.engine.fault = RuntimeError("x")
                bench.turn()
                bench.engine.fault = None
            case "time":
                bench.clock.now += amount
    if is_drained:
        bench.to_loop.put(StartDrain())
    for _ in range(40):
        for run_id in submitted:
            bench.say(Credit(run_id, 9))
        bench.turn(10)
    for run_id in submitted:
        ends = {id(d) for d in bench.messages(Done) if d.run_id == run_id}
        refusals = [
            r
            for r in bench.messages(Refused)
            if r.run_id == run_id and r.code in ("busy", "draining")
        ]
        assert len(ends) + len(refusals) == 1
        numbers = sorted(set(bench.numbers(run_id)))
        assert numbers == list(range(1, len(numbers) + 1))
        for done in bench.messages(Done):
            if done.run_id == run_id:
                assert done.last_token == len(numbers) == done.usage.completion_tokens
    assert bench.engine.free_slots == 2
    assert bench.loop.is_drained == is_drained


def test_a_gateway_that_lost_a_run_does_not_speak_for_its_new_owner():
    bench = _bench(letters)
    bench.hello(OTHER)
    bench.say(submit("r1", credit=4))
    bench.turn()
    bench.say(Attach("r1", 2, 1, 4), OTHER)
    before = bench.dispatch._logs["r1"].allowed
    bench.say(Ack("r1", 1))
    bench.say(Credit("r1", 1000))
    assert bench.dispatch._logs["r1"].allowed == before
    bench.say(Attach("r1", 2, 1, 4), OTHER)
    assert "trimmed" not in _refusals(bench, OTHER)
    bench.say(Cancel("r1", 1, "late"))
    assert _refusals(bench) == ["stale_epoch"]


def test_whoever_cancels_with_a_higher_epoch_hears_the_end():
    bench = _bench(letters)
    bench.hello(OTHER)
    bench.say(submit("r1", credit=2))
    bench.turn()
    bench.say(Cancel("r1", 2, "taken over"), OTHER)
    for _ in range(3):
        bench.turn()
    assert [done.finish for done in bench.messages(Done, OTHER)] == ["cancelled"]
