"""Runs that wait for memory, grow into it, or never fit; and faults at every step of the engine."""

from typing import Any

import pytest
from scripted import TOKENIZER, Bench, Clock, ScriptedEngine, ending_after, submit
from structlog.testing import capture_logs

from proto.messages import Cancel, Credit, Done, Progress, Refused
from proto.worker_settings import SideSettings


def _bench(*args: Any, **changes: Any) -> Bench:
    bench = Bench(*args, **changes)
    bench.hello()
    return bench


def _ids(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode(text))


def _at_rest(bench: Bench) -> None:
    """Nothing is left of any run."""
    lanes = bench.loop._lanes
    assert (lanes.running, lanes.memory_waiting, lanes.busy) == ([], 0, 0)
    assert not bench.loop._waiting and not bench.loop._started
    assert bench.engine.free_slots == 2


def test_a_prompt_that_never_fits_is_refused_at_once_with_both_numbers():
    bench = _bench()
    bench.engine.verdict = "never"
    bench.say(submit())
    bench.turn(2)
    (refused,) = bench.messages(Refused)
    assert refused.code == "too_long"
    assert "11 bytes" in refused.detail and "9 fit" in refused.detail
    _at_rest(bench)


def _one_runs_one_waits(count: int = 30, **changes: Any) -> Bench:
    bench = _bench(ending_after(count), lanes=2, **changes)
    bench.say(submit("runs"))
    bench.turn(3)
    bench.engine.verdicts[_ids("large")] = "wait"
    bench.say(submit("waits", prompt="large"))
    bench.turn(2)
    return bench


def test_who_finds_no_memory_waits_says_so_and_starts_when_something_ends():
    bench = _one_runs_one_waits()
    waits = [message for message in bench.messages(Progress) if message.run_id == "waits"]
    assert waits and {message.phase for message in waits} == {"memory_wait"}
    assert bench.loop._lanes.memory_waiting == 1
    assert bench.text("waits") == ""
    bench.engine.verdicts.clear()
    bench.turn(3)
    assert bench.text("waits") == ""  # asked again when something ends, or after a second
    bench.say(Cancel("runs", 1, "gone"))
    bench.turn(3)
    assert bench.text("waits") != ""


def test_memory_that_others_gave_back_is_asked_for_every_second():
    bench = _one_runs_one_waits()
    bench.engine.verdicts.clear()
    bench.clock.now += 1.1
    bench.turn(3)
    assert bench.text("waits") != ""


def test_others_that_fit_pass_it_eight_times():
    bench = _one_runs_one_waits(200, slots=3)
    served = []
    for number in range(10):
        bench.say(submit(f"s{number}", params={"max_tokens": 1}))
        bench.turn(4)
        served.append(any(done.run_id == f"s{number}" for done in bench.messages(Done)))
    assert served == [True] * 8 + [False] * 2
    bench.engine.verdicts.clear()
    bench.clock.now += 1.1
    bench.turn_until_done("waits")
    bench.turn_until_done("s9")


def test_b26_a_wait_for_memory_ends_with_its_client():
    bench = _one_runs_one_waits()
    bench.say(Cancel("waits", 1, "gone"))
    bench.turn()
    assert [done.finish for done in bench.messages(Done)] == ["cancelled"]
    bench.turn_until_done("runs")
    _at_rest(bench)


def test_who_has_waited_for_memory_too_long_is_told_when_to_come_again():
    bench = _one_runs_one_waits(queue_timeout_s=20.0)
    bench.clock.now += 15.0
    bench.turn()
    assert not bench.messages(Refused)
    bench.clock.now += 6.0
    bench.turn()
    (refused,) = bench.messages(Refused)
    assert (refused.code, refused.detail) == ("busy", "memory_full")
    assert refused.retry_after_ms == 30_000


def test_where_nothing_runs_that_could_end_nobody_waits():
    bench = _bench()
    bench.engine.verdict = "wait"
    bench.say(submit())
    bench.turn(2)
    assert [refused.detail for refused in bench.messages(Refused)] == ["memory_full"]
    _at_rest(bench)


def test_a_run_that_cannot_grow_waits_for_another_ones_end_and_goes_on():
    bench = _bench(ending_after(12), lanes=2)
    bench.say(submit("grows"))
    bench.turn(4)
    bench.say(submit("other"))
    bench.turn(3)
    (grows, _) = bench.loop._lanes.running
    bench.engine.starved.append(grows.slot)
    bench.turn(3)
    said = bench.text("grows")
    assert grows.is_parked
    assert len(bench.text("other")) > 0
    bench.engine.starved.clear()
    bench.turn(3)
    assert bench.text("grows") == said  # nothing has ended
    bench.turn_until_done("other")
    bench.turn_until_done("grows")
    assert bench.text("grows") == bench.text("other") == "abcdefghijkl"


def test_alone_a_run_that_cannot_grow_ends_with_what_it_has():
    bench = _bench()
    bench.say(submit())
    bench.turn(4)
    bench.engine.starved.append(bench.loop._lanes.running[0].slot)
    done = bench.turn_until_done("r1")
    assert (done.finish, done.detail) == ("length", "memory_full")
    assert bench.text("r1") == "abcdefgh"[: done.last_token]
    _at_rest(bench)


# Faults of the engine, wherever it is asked.


class Faulty(ScriptedEngine):
    """Fails at the n-th call of one of its methods."""

    def __init__(self, method: str, at: int) -> None:
        super().__init__(ending_after(5), Clock())
        self.calls, self.failed = 0, False
        asked = getattr(self, method)

        def failing(*args: Any, **more: Any) -> Any:
            self.calls += 1
            if self.calls == at:
                self.failed = True
                raise RuntimeError("device lost")
            return asked(*args, **more)

        setattr(self, method, failing)


STEPS = ("room_for", "open", "grow", "read_chunk", "round")
RARE = (("take_back", 1), ("take_back", 2), ("share", 1), ("take_shared", 1), ("take_shared", 2))


@pytest.mark.parametrize(
    ("method", "at"), [*((method, at) for method in STEPS for at in (1, 2, 3, 5)), *RARE]
)
def test_b28_a_fault_at_any_step_leaves_nothing_behind(method: str, at: int):
    engine = Faulty(method, at)
    bench = Bench(engine=engine, lanes=1, side=SideSettings(prompt=20, output=4))
    engine._clock = bench.clock
    bench.hello()
    runs = [f"slow{number}" for number in range(3)]
    with capture_logs():
        for run_id in runs:  # each gives its slot up to the next
            bench.say(submit(run_id, credit=2, prompt="a long prompt that takes many chunks"))
            bench.turn(8)
        for number in range(3):
            twin = submit(f"twin{number}", choice=number, choices=3, prompt="three answers to this")
            bench.say(twin)
        bench.say(submit("short", params={"max_tokens": 2}))
        runs += ["twin0", "twin1", "twin2", "short"]
        bench.turn(3)
        for run_id in runs:
            bench.say(Credit(run_id, 100))
        for run_id in runs:
            bench.turn_until_done(run_id)
    assert engine.failed
    ends = {done.run_id: done.finish for done in bench.messages(Done)}
    assert len(ends) == len(runs)
    assert 1 <= list(ends.values()).count("error") <= 3
    _at_rest(bench)
    bench.say(submit("after"))
    assert bench.turn_until_done("after").finish == "stop"
