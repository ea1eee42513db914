"""The life of a run, from its Submit to its end, with a scripted model and a set clock."""

import pytest
from scripted import END, GATEWAY, TOKENIZER, Bench, ending_after, letters, submit
from structlog.testing import capture_logs

from proto.chat import Call
from proto.messages import Cancel, Credit, Delta, Done, Drain, Progress, Queued, Refused
from proto.plan import Plan
from worker.loop import WorkerFailed
from worker.text.prompt import prompt_hash
from worker.types import StartDrain, ThreadDied


def _bench(*args, **changes) -> Bench:
    bench = Bench(*args, **changes)
    bench.hello()
    return bench


def test_a_run_is_queued_read_written_and_done():
    bench = _bench(ending_after(3))
    bench.say(submit())
    done = bench.turn_until_done("r1")
    prompt = tuple(TOKENIZER.encode("hello"))
    queued = bench.messages(Queued)[0]
    assert (queued.position, queued.prompt_tokens) == (0, len(prompt))
    assert (queued.prompt_hash, queued.tokenizer_hash) == (prompt_hash(prompt), TOKENIZER.hash)
    assert bench.text("r1") == "abc"
    assert bench.numbers("r1") == [1, 2, 3, 4]
    last = bench.messages(Delta)[-1]
    assert (last.ids, last.pieces) == ((END,), ("",))
    assert (done.finish, done.detail, done.last_token) == ("stop", "eos", 4)
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (len(prompt), 4)
    assert bench.engine.free_slots == 2


def test_numbers_go_on_from_the_start_token():
    bench = _bench(lambda prompt, number: END if number == 12 else letters(prompt, number))
    bench.say(submit(start_token=10))
    done = bench.turn_until_done("r1")
    assert bench.numbers("r1") == [10, 11, 12]
    assert done.last_token == 12


def test_times_are_those_of_the_definitions():
    bench = _bench(ending_after(2), chunk=2)
    bench.engine.chunk_s, bench.engine.round_s = 0.5, 0.25
    bench.say(submit(prompt="hello world"))
    bench.clock.now += 2.0
    done = bench.turn_until_done("r1")
    timings = done.timings
    chunks = -(-done.usage.prompt_tokens // 2)
    assert timings.queue_ms == pytest.approx(2000)
    assert timings.prompt_ms == pytest.approx(500 * chunks)
    assert timings.ttft_ms == timings.queue_ms + timings.prompt_ms
    assert timings.decode_ms == pytest.approx(500)
    assert timings.total_ms == pytest.approx(timings.ttft_ms + timings.decode_ms)
    assert timings.forwarded_tokens == done.usage.prompt_tokens
    assert (done.spec.rounds, done.spec.plain) == (2, 2)


@pytest.mark.parametrize(
    ("params", "plan", "expected"),
    [
        ({"max_tokens": 4}, Plan(), (4, "max_tokens")),
        ({"max_tokens": 40}, Plan(cap=6), (6, "max_tokens")),
        ({}, Plan(), (50, "max_tokens")),
    ],
)
def test_a_run_ends_at_what_was_asked_for(params, plan, expected):
    bench = _bench()
    bench.say(submit(params={"temperature": 0.0, **params}, plan=plan))
    done = bench.turn_until_done("r1")
    assert (done.last_token, done.detail) == expected
    assert done.finish == "length"
    assert len(bench.text("r1")) == expected[0]


def test_b3_a_run_ends_exactly_where_the_context_is_full():
    bench = _bench(max_len=20)
    bench.say(submit(params={"max_tokens": 99}))
    done = bench.turn_until_done("r1")
    assert (done.finish, done.detail) == ("length", "context")
    assert done.usage.prompt_tokens + done.usage.completion_tokens == 20


def test_a_prompt_that_fills_the_context_is_too_long_with_both_numbers():
    bench = _bench(max_len=20)
    bench.say(submit(call=Call("m", (), prompt="é" * 40)))
    bench.turn()
    (refused,) = bench.messages(Refused)
    tokens = len(TOKENIZER.encode_literal("é" * 40))
    assert refused.code == "too_long"
    assert str(tokens) in refused.detail and "20" in refused.detail


def test_a_stop_string_ends_the_run_and_never_shows():
    bench = _bench()
    bench.say(submit(params={"stop": ("ef", "xyz")}))
    done = bench.turn_until_done("r1")
    assert (done.finish, done.detail) == ("stop", "stop_string")
    assert bench.text("r1") == "abcd"
    # "e" was held back with an empty piece; the token that completes the stop string is counted.
    assert done.last_token == 6
    assert [d.pieces for d in bench.messages(Delta)][4:] == [("",), ("",)]


def test_text_held_for_a_stop_string_comes_out_at_the_end():
    bench = _bench()
    bench.say(submit(params={"stop": ("cdX",), "max_tokens": 4}))
    bench.turn_until_done("r1")
    assert bench.text("r1") == "abcd"
    assert bench.messages(Delta)[-1].pieces == ("cd",)


def test_only_the_first_four_stop_strings_count_and_too_many_are_refused():
    bench = _bench(ending_after(9))
    bench.say(submit(params={"stop": ("1", "2", "3", "4", "c")}))
    bench.turn_until_done("r1")
    assert bench.text("r1") == "abcdefghi"
    for run_id, stop in (("many", ("x",) * 65), ("empty", ("",))):
        bench.say(submit(run_id, params={"stop": stop}))
    bench.turn()
    assert [(r.run_id, r.code, r.param) for r in bench.messages(Refused)] == [
        ("many", "bad_request", "stop"),
        ("empty", "bad_request", "stop"),
    ]


# Cancel, in every phase.


def _cancelled(bench: Bench, run_id: str = "r1") -> Done:
    bench.say(Cancel(run_id, 1, "gone"))
    bench.turn()
    (done,) = [d for d in bench.messages(Done) if d.run_id == run_id]
    assert (done.finish, done.detail) == ("cancelled", "client_left")
    return done


def test_cancel_before_the_run_is_prepared():
    bench = _bench()
    bench.say(submit())
    bench.say(Cancel("r1", 1, "gone"))
    bench.loop.turn()  # the loop hears of a run that it does not know yet
    assert not bench.messages(Done)
    done = bench.turn_until_done("r1", 3)
    assert (done.finish, done.last_token) == ("cancelled", 1)
    assert bench.engine.free_slots == 2


def test_cancel_while_the_run_waits():
    bench = _bench()
    bench.say(submit("first"))
    bench.say(submit("r1"))
    bench.turn(2)
    assert _cancelled(bench).last_token == 0
    bench.turn()
    assert bench.numbers("first")


def test_cancel_between_two_chunks():
    bench = _bench(chunk=1)
    bench.say(submit(prompt="hello world and more"))
    bench.turn(3)
    assert not bench.numbers("r1")
    done = _cancelled(bench)
    assert done.timings.forwarded_tokens == 3
    assert bench.engine.free_slots == 2


def test_cancel_while_decoding():
    bench = _bench()
    bench.say(submit())
    bench.turn(4)
    written = bench.numbers("r1")
    assert _cancelled(bench).last_token == written[-1]
    assert bench.numbers("r1") == written


def test_cancel_of_a_parked_run():
    bench = _bench()
    bench.say(submit(credit=2))
    bench.turn(6)
    assert bench.numbers("r1") == [1, 2]
    assert _cancelled(bench).last_token == 2


def test_cancel_twice_and_after_the_end_is_answered_with_the_same_end():
    bench = _bench(ending_after(1))
    bench.say(submit())
    done = bench.turn_until_done("r1")
    bench.say(Cancel("r1", 1, "gone"))
    bench.say(Cancel("r1", 1, "gone"))
    bench.turn()
    assert bench.messages(Done) == [done] * 3
    bench.say(Cancel("nobody", 1, "gone"))
    bench.turn()
    assert not bench.messages(Refused)


# Credit.


def test_a_run_without_credit_pauses_keeps_its_place_and_goes_on_equal():
    whole = _bench(ending_after(9))
    whole.say(submit())
    whole.turn_until_done("r1")
    bench = _bench(ending_after(9))
    bench.say(submit(credit=3))
    bench.turn(10)
    assert bench.numbers("r1") == [1, 2, 3]
    bench.say(Credit("r1", 2))
    bench.turn(10)
    assert bench.numbers("r1") == [1, 2, 3, 4, 5]
    bench.say(Credit("r1", 99))
    bench.turn_until_done("r1")
    assert bench.text("r1") == whole.text("r1")


def test_a_paused_run_does_not_make_the_loop_spin():
    bench = _bench()
    bench.say(submit(credit=1))
    bench.turn(3)
    assert bench.loop.turn() is False


def test_b57_a_slow_client_does_not_hold_up_the_next_run():
    bench = _bench(ending_after(5))
    bench.say(submit("slow", credit=2))
    bench.say(submit("next"))
    bench.turn_until_done("next")
    assert bench.numbers("slow") == [1, 2]
    bench.say(Credit("slow", 99))
    bench.turn_until_done("slow")
    assert bench.text("slow") == bench.text("next") == "abcde"


def test_credit_that_comes_back_is_used_beside_the_run_that_took_the_lane():
    bench = _bench()
    bench.say(submit("slow", credit=1))
    bench.say(submit("next"))
    bench.turn(5)
    bench.say(Credit("slow", 3))
    bench.turn(3)
    assert bench.numbers("slow") == [1, 2, 3, 4]
    assert len(bench.numbers("next")) > 4


def test_one_run_at_a_time_holds_the_lane():
    bench = _bench(ending_after(3))
    for run_id in ("a", "b", "c"):
        bench.say(submit(run_id))
    bench.turn(2)
    assert bench.numbers("a") and not bench.numbers("b")
    bench.turn_until_done("c")
    order = [d.run_id for d in bench.messages(Done)]
    assert order == ["a", "b", "c"]


# Queue and clocks.


def test_the_queue_is_ordered_by_band_and_then_by_arrival():
    bench = _bench(ending_after(1))
    for run_id, band in (("first", 1), ("late", 3), ("plain", 1), ("premium", 0)):
        bench.say(submit(run_id, plan=Plan(band=band)))
    for run_id in ("first", "late", "plain", "premium"):
        bench.turn_until_done(run_id)
    # All four were prepared in one go, so the band decides from the start.
    assert [d.run_id for d in bench.messages(Done)] == ["premium", "first", "plain", "late"]


def test_a_full_queue_and_a_long_wait_are_busy_with_their_times():
    bench = _bench(queue_size=2, queue_timeout_s=60.0)
    bench.say(submit("running"))
    bench.turn()
    for run_id in ("q1", "q2", "q3"):
        bench.say(submit(run_id))
    bench.turn()
    bench.clock.now += 60.0
    bench.turn()
    assert [(r.run_id, r.code, r.detail, r.retry_after_ms) for r in bench.messages(Refused)] == [
        ("q3", "busy", "queue_full", 5_000),
        ("q1", "busy", "queue_timeout", 10_000),
        ("q2", "busy", "queue_timeout", 10_000),
    ]


def test_a_waiting_run_hears_its_place_at_once_and_every_ten_seconds():
    bench = _bench()
    bench.say(submit("running", params={"max_tokens": 49}))
    bench.turn()
    bench.say(submit("q1"))
    bench.say(submit("q2"))
    bench.turn()
    first = bench.messages(Queued)[-2:]
    assert [(q.run_id, q.position) for q in first] == [("q1", 0), ("q2", 1)]
    assert 0 < first[0].est_wait_ms < first[1].est_wait_ms
    bench.clock.now += 9.9
    bench.turn()
    assert len(bench.messages(Queued)) == 3
    bench.say(Cancel("running", 1, "gone"))
    bench.clock.now += 0.2
    bench.turn()
    again = bench.messages(Queued)[3:]
    assert [(q.run_id, q.position) for q in again] == [("q1", 0), ("q2", 1)]
    assert again[0].est_wait_ms <= first[0].est_wait_ms


@pytest.mark.parametrize(
    ("changes", "seconds"), [({"deadline_ms": 5_000}, 5.0), ({}, 100.0)], ids=["deadline", "wall"]
)
def test_clocks_end_a_run_wherever_it_is(changes, seconds):
    for turns in (3, 0):  # decoding, or waiting behind another
        bench = _bench()
        if not turns:
            bench.say(submit("other", credit=1000, params={"max_tokens": 150}))
            bench.turn(2)
        bench.say(submit(**changes))
        bench.turn(turns or 1)
        bench.clock.now += seconds
        bench.turn()
        if turns or changes:
            (done,) = [d for d in bench.messages(Done) if d.run_id == "r1"]
            assert (done.finish, done.detail) == ("length", "wall_clock")


def test_a_slow_prompt_shows_progress_at_most_once_a_second_from_five_seconds_on():
    bench = _bench(chunk=1)
    bench.engine.chunk_s = 0.4
    bench.say(submit(prompt="x y z " * 10))
    for _ in range(40):
        bench.turn()
    progress = bench.messages(Progress)
    total = progress[0].total
    assert progress[0].done == 13  # 13 chunks of 0.4 s are the first beyond 5 s
    assert [p.done for p in progress[:3]] == [13, 16, 19]
    assert all(p.total == total and p.cached == 0 and p.phase == "prefill" for p in progress)


# Faults, drain, log.


def test_b43_every_end_is_one_log_line_and_one_count_at_each_stage():
    bench = _bench(ending_after(2), queue_size=1)
    with capture_logs() as logs:
        bench.say(submit("tools", call=Call("m", (), prompt="")))
        bench.say(submit("good"))
        bench.turn(2)
        bench.say(submit("waits"))
        bench.say(submit("full"))
        bench.turn()
        bench.say(Cancel("waits", 1, "gone"))
        bench.turn_until_done("waits")
        bench.turn_until_done("good")
        bench.engine.fault = RuntimeError("device lost")
        bench.say(submit("fault"))
        bench.turn_until_done("fault")
    ended = {e["run_id"]: (e["finish"], e["detail"]) for e in logs if e["event"] == "run.finished"}
    assert ended == {
        "tools": ("refused", "bad_request"),
        "good": ("stop", "eos"),
        "full": ("refused", "busy"),
        "waits": ("cancelled", "client_left"),
        "fault": ("error", "internal"),
    }
    assert sum(e["event"] == "run.finished" for e in logs) == 5
    bench.clock.now += 2
    bench.turn()
    counts = {
        m.labels["finish"]: m.value
        for m in bench.board.beat.metrics
        if m.name == "tandem_worker_requests_total"
    }
    assert counts == {"refused": 2, "stop": 1, "cancelled": 1, "error": 1}


def test_no_text_is_logged():
    bench = _bench(ending_after(3))
    with capture_logs() as logs:
        bench.say(submit(prompt="zebra", params={"stop": ("quagga",)}))
        bench.turn_until_done("r1")
        bench.engine.fault = RuntimeError("device lost")
        bench.say(submit("r2", prompt="zebra"))
        bench.turn_until_done("r2")
    assert logs and not any(word in str(logs) for word in ("zebra", "quagga", "abc"))


def test_a_fault_of_one_run_ends_that_run_only():
    bench = _bench(ending_after(2))
    bench.engine.fault = RuntimeError("device lost")
    bench.say(submit("bad"))
    done = bench.turn_until_done("bad")
    assert (done.finish, done.detail, done.error) == ("error", "internal", "RuntimeError")
    bench.engine.fault = None
    bench.say(submit("good"))
    assert bench.turn_until_done("good").finish == "stop"
    assert bench.engine.free_slots == 2


def test_a_broken_invariant_ends_the_worker():
    bench = _bench()
    bench.engine.fault = AssertionError("root")
    bench.say(submit())
    with pytest.raises(AssertionError):
        bench.turn(2)


def test_a_dead_thread_ends_the_worker():
    bench = _bench()
    bench.to_loop.put(ThreadDied("link", "OSError"))
    with pytest.raises(WorkerFailed, match="link"):
        bench.turn()


def test_drain_refuses_new_and_waiting_runs_and_lets_running_ones_finish():
    bench = _bench(ending_after(9))
    bench.say(submit("running"))
    bench.turn(2)
    bench.say(submit("waits"))
    bench.turn()
    bench.to_loop.put(StartDrain())
    bench.turn()
    bench.say(submit("new"))
    bench.turn()
    assert [m.deadline_ms for m in bench.messages(Drain)] == [30_000]
    assert [(r.run_id, r.code, r.detail, r.retry_after_ms) for r in bench.messages(Refused)] == [
        ("waits", "draining", "draining", 30_000),
        ("new", "draining", "draining", 30_000),
    ]
    assert not bench.loop.is_drained
    assert bench.turn_until_done("running").finish == "stop"
    assert bench.loop.is_drained


def test_drain_ends_what_still_runs_at_its_deadline():
    bench = _bench()
    bench.say(submit(credit=1))
    bench.turn(2)
    bench.to_loop.put(StartDrain())
    bench.turn()
    bench.clock.now += 30.0
    bench.turn()
    assert [(d.finish, d.detail) for d in bench.messages(Done)] == [("length", "wall_clock")]
    assert bench.loop.is_drained


def test_the_board_shows_state_and_numbers_once_a_second():
    bench = _bench()
    bench.say(submit("a", credit=1))
    bench.turn(3)
    bench.clock.now += 1.0
    bench.say(submit("b"))
    bench.say(submit("c"))
    bench.turn()
    bench.clock.now += 1.0
    bench.turn()
    beat = bench.board.beat
    assert (beat.state, beat.running, beat.queued, beat.free_slots) == ("busy", 2, 1, 0)
    values = {m.name: m.value for m in beat.metrics if not m.labels}
    assert values["tandem_worker_parked"] == 1
    assert values["tandem_worker_waiting"] == 1
    assert bench.board.pulse_s == bench.clock.now


def test_the_same_seed_writes_the_same_whatever_the_chunks_are():
    texts = set()
    for chunk in (1, 3, 16):
        bench = _bench(ending_after(8), chunk=chunk)
        bench.say(submit(prompt="a longer prompt than a chunk"))
        bench.turn_until_done("r1")
        texts.add(bench.text("r1", GATEWAY))
    assert len(texts) == 1
