"""What waits, what runs out of time, what fails and what drains, with a scripted model."""

import pytest
from scripted import GATEWAY, Bench, ScriptedEngine, ending_after, letters, submit
from structlog.testing import capture_logs

from proto.chat import Call
from proto.messages import Cancel, Done, Drain, Progress, Queued, Refused
from proto.plan import Plan
from worker.loop import WorkerFailed
from worker.types import StartDrain, ThreadDied


def _bench(*args, **changes) -> Bench:
    bench = Bench(*args, **changes)
    bench.hello()
    return bench


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
        bench.say(submit("empty", call=Call("m", (), prompt="")))
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
        "empty": ("refused", "bad_request"),
        "good": ("stop", "eos"),
        "full": ("refused", "queue_full"),
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


def test_a_fault_in_the_middle_of_a_round_keeps_what_was_written_before_it(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(ScriptedEngine, "guessed", 5)
    bench = _bench(lambda prompt, number: letters(prompt, number) if number < 5 else 1 // 0)
    bench.say(submit())
    done = bench.turn_until_done("r1")
    assert (done.finish, done.last_token, done.usage.completion_tokens) == ("error", 4, 4)
    assert (bench.numbers("r1"), bench.text("r1")) == ([1, 2, 3, 4], "abcd")


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


def test_a_run_that_was_being_prepared_when_the_drain_began_is_refused():
    bench = _bench()
    bench.say(submit())
    bench.to_loop.put(StartDrain())
    bench.turn()
    assert [r.code for r in bench.messages(Refused)] == ["draining"]
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
