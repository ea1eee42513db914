"""What a waiting run is told, against what it then waits: with speeds that do not change."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Bench, ending_after, submit, writer_of
from structlog.testing import capture_logs

from proto.chat import Call, Message, TextPart, Tool, ToolChoice
from proto.messages import Queued
from proto.plan import Plan, Thinking
from proto.worker_settings import SideSettings
from worker import admission
from worker.admission import Pace, Rates
from worker.forecast import Work, wait_s

STATED_ERROR = 0.2  # of the wait


class Told:
    """Everything that runs heard of their waits, and what they then waited."""

    def __init__(self, bench: Bench) -> None:
        self.places: list[tuple[object, float, float]] = []  # run, when, for how long
        place, self._clock = bench.loop._tell.place, bench.clock

        def watched(run, position, est_wait_ms):
            self.places.append((run, self._clock.now, est_wait_ms / 1000))
            place(run, position, est_wait_ms)

        bench.loop._tell.place = watched

    def waits(self) -> list[tuple[float, float]]:
        """Estimated and real seconds of each message."""
        return [(est, run.record.admitted_s - when) for run, when, est in self.places]


def _steady(token_s: float, round_s: float, **changes) -> Bench:
    """A worker that has learned how fast it is: a token of prompt and a round take the same each
    time."""
    bench = Bench(
        wall_clock_s=1e9, max_len=2000, queue_size=50, preparing=99, queue_timeout_s=1e9, **changes
    )
    bench.hello()
    read_chunk = bench.engine.read_chunk

    def evenly(slot, end):
        bench.engine.chunk_s = token_s * (end - slot.kv_len)
        return read_chunk(slot, end)

    bench.engine.read_chunk, bench.engine.round_s = evenly, round_s
    for _ in range(50):
        bench.loop._rates.saw_prefill(100, 100 * token_s + 1e-9)
        bench.loop._rates.saw_round(100, 100 * round_s + 1e-9)
    return bench


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    asked=st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 60), st.integers(2, 60)),
        min_size=2, max_size=14,
    ),
    lanes=st.integers(1, 5),
    share=st.sampled_from([0.2, 0.5, 0.8]),
    token_s=st.floats(0.002, 0.02),
    round_s=st.floats(0.05, 0.5),
)  # fmt: skip
def test_an_estimate_is_within_the_stated_error(asked, lanes, share, token_s, round_s):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "WEIGHT", 0.0)  # the lengths are known: those that are asked for
        bench = _steady(token_s, round_s, lanes=lanes, slots=lanes + 1, share=share, chunk=16)
        told = Told(bench)
        for number, (turns, words, tokens) in enumerate(asked):
            bench.say(submit(f"r{number}", prompt="word " * words, credit=9999,
                             params={"max_tokens": tokens}))  # fmt: skip
            bench.turn(turns)
        for number in range(len(asked)):
            bench.turn_until_done(f"r{number}", limit=50_000)
    step_s = 16 * token_s + (lanes + 1) * round_s  # nothing is known better than to two turns
    for estimated_s, real_s in told.waits():
        assert abs(estimated_s - real_s) <= STATED_ERROR * real_s + 2 * step_s


def test_an_estimate_is_corrected_every_ten_seconds():
    bench = _steady(0.01, 0.5, chunk=16)
    told = Told(bench)
    bench.say(submit("long", params={"max_tokens": 100}))
    bench.turn(2)
    bench.say(submit("next", params={"max_tokens": 5}))
    bench.turn_until_done("next")
    places = [(when, est) for run, when, est in told.places if run.id == "next"]
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(places)]
    assert len(places) == 5 and all(10.0 <= gap < 10.6 for gap in gaps)
    for estimated_s, real_s in told.waits():
        assert estimated_s == pytest.approx(real_s, abs=1.1)


# The arithmetic.


def _writes(*seconds: float) -> list[Work]:
    return [Work(0.0, wanted) for wanted in seconds]


@pytest.mark.parametrize(
    ("running", "ahead", "lanes", "wanted"),
    [
        ((), (), 1, 0.0),
        ((3.0,), (), 2, 0.0),  # a lane is free
        ((3.0,), (4.0, 5.0), 1, 12.0),  # one lane: all that is before it
        ((3.0, 3.0), (), 2, 6.0),  # two at once take twice as long, and both end then
        ((1.0, 9.0), (), 2, 2.0),  # the next free lane, not the mean of them
        ((1.0, 9.0), (1.0,), 2, 4.0),
        ((1.0, 2.0, 3.0), (5.0,), 3, 6.0),  # 1 s of each, then one more
    ],
)
def test_a_wait_is_the_time_until_a_lane_is_free(running, ahead, lanes, wanted):
    assert wait_s(_writes(*running), _writes(*ahead), lanes, 0.5) == pytest.approx(wanted)


def test_reading_has_its_share_in_an_estimate():
    beside = [Work(2.0, 100.0), Work(0.0, 6.0)]
    assert wait_s(beside, (), 2, 0.25) == pytest.approx(8.0)  # three quarters of the time: 8 s
    burst = [Work(1.0, 1.0), Work(3.0, 9.0)]
    assert wait_s(burst, (), 2, 0.5) == pytest.approx(6.0)  # 4 s are read first, then 1 s at half
    begun = [Work(2.0, 1.0, is_first=True), Work(0.0, 3.0)]  # one of the burst has been read
    assert wait_s(begun, (), 2, 0.2) == pytest.approx(4.0)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)), max_size=70),
    st.integers(1, 64),
    st.floats(0.05, 0.95),
)
def test_an_estimate_is_never_more_than_all_the_work_and_always_ends(works, lanes, share):
    queue = [Work(*work) for work in works]
    total = sum(work.read_s + work.write_s for work in queue)
    assert 0.0 <= wait_s(queue[:lanes], queue[lanes:], lanes, share) <= total + 1e-3


def test_a_pace_is_that_of_the_time_and_not_of_the_rounds():
    pace = Pace(1.0)
    for _ in range(200):
        pace.saw(8, 1.0)
        pace.saw(1, 1.0)
    assert pace.tps == pytest.approx(4.5, rel=0.15)
    for _ in range(60):
        pace.saw(20, 1.0)
    assert pace.tps == pytest.approx(20.0, rel=0.05)  # a minute later it is the new one
    pace.saw(1000, 0.0)
    assert pace.tps == pytest.approx(20.0, rel=0.05)


# How long an answer will be.

TOOL = Tool("look", "", {"type": "object"})
SAY = Message("user", (TextPart("hello"),))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "plain"),
        ({"plan": Plan(thinking=Thinking(on=True))}, "thinking"),
        ({"call": Call("m", (SAY,), tools=(TOOL,))}, "tools"),
        ({"call": Call("m", (SAY,), tools=(TOOL,), tool_choice=ToolChoice("none"))}, "plain"),
        ({"plan": Plan(lane="side"), "params": {"max_tokens": 4}}, "side"),
    ],
)
def test_an_answer_teaches_those_of_its_kind(changes, kind: str):
    bench = Bench(
        ending_after(3), side=SideSettings(prompt=40, output=8),
        writer=writer_of("{{ messages[0].content }}{# tools </think> #}"),
    )  # fmt: skip
    bench.hello()
    with capture_logs() as logs:
        bench.say(submit(**changes))
        bench.turn_until_done("r1")
    (line,) = [line for line in logs if line["event"] == "run.finished"]
    assert (line["kind"], line["est_wait_ms"]) == (kind, 0)
    learned = {name for name in ("plain", "thinking", "form", "tools", "side")
               if bench.loop._rates.output_tokens(name) < 300}  # fmt: skip
    assert learned == {kind}


def test_who_asks_for_less_is_expected_to_write_less_and_who_outlives_the_average_to_go_on():
    bench = Bench(lanes=1, slots=1, max_len=2000)
    bench.hello()
    rates = bench.loop._rates
    for _ in range(200):
        rates.saw_round(10, 1.0)
        rates.saw_answer("plain", 40)
    bench.say(submit("few", params={"max_tokens": 21}))
    bench.say(submit("many", credit=9999, params={"max_tokens": 1000}))
    bench.turn(1)
    (few,), (many,) = bench.loop._lanes.running, bench.loop._queue
    assert rates.work(few).write_s == pytest.approx(2.0, rel=0.01)
    assert rates.work(many).write_s == pytest.approx(3.9, rel=0.01)
    bench.turn_until_done("few")
    while len(bench.text("many")) < 100:
        bench.turn()
    assert rates.work(many).write_s == pytest.approx(1.0, rel=0.1)


def test_a_parked_run_holds_nobody_up_in_an_estimate():
    bench = Bench(lanes=1, slots=2)
    bench.hello()
    bench.say(submit("slow", credit=1))
    bench.turn(3)
    bench.say(submit("next"))
    bench.turn()
    assert bench.messages(Queued)[-1].est_wait_ms == 0


def test_answers_to_one_prompt_are_expected_to_read_it_once():
    bench = _steady(1.0, 0.001, lanes=1, slots=1, chunk=16)
    told = Told(bench)
    for choice in range(3):
        bench.say(submit(f"r{choice}", choice=choice, choices=3, params={"max_tokens": 2}))
    bench.say(submit("behind", params={"max_tokens": 2}))
    bench.turn_until_done("behind")
    (estimated_s, real_s), *_ = (
        pair
        for (run, *_), pair in zip(told.places, told.waits(), strict=True)
        if run.id == "behind"
    )
    assert real_s > 4.0 and estimated_s == pytest.approx(real_s, rel=0.1)


def test_time_that_short_requests_take_is_in_an_estimate():
    """They have half of it here; a wait is twice as long as the lanes' own work."""
    side = SideSettings(prompt=40, output=64, share=0.9)
    bench = _steady(0.01, 0.1, lanes=1, slots=1, side=side)
    params = {"temperature": 0.0, "max_tokens": 60}
    bench.say(submit("main", credit=9999, params={"max_tokens": 600}))
    bench.turn(2)
    for number in range(4):
        bench.say(submit(f"s{number}", params=params))
    bench.turn(150)
    told = Told(bench)
    bench.say(submit("next", params={"max_tokens": 65}))
    bench.turn()
    estimated_s = next(est for run, _, est in told.places if run.id == "next")
    left_s = bench.loop._rates.work(bench.loop._lanes.running[0]).write_s
    assert estimated_s == pytest.approx(2 * left_s, rel=0.1)


def test_first_estimates_start_from_what_a_small_model_does():
    rates = Rates()
    assert (rates.prefill_tps, rates.decode_tps) == (500.0, 20.0)
    assert rates.output_tokens("plain") == 300.0
