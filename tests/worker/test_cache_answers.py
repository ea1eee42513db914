"""What is kept of earlier requests, told and dropped between the rounds of what runs."""

import pytest
from scripted import GATEWAY, OTHER, Bench, ending_after, submit

from proto.limits import LINK_LEASE_S
from proto.messages import STATE_KINDS, Cache, CacheInfo, Cancel, Refused
from worker.types import StartDrain

HITS, EVICTIONS, SKIPPED = {"slot": 5}, {"prefix": 2}, {"too_large": 3}


def _bench(*args, **changes) -> Bench:
    bench = Bench(*args, **changes)
    bench.hello()
    return bench


def _refusals(bench: Bench) -> list[tuple[str | None, str, str]]:
    return [(r.req_id, r.code, r.detail) for r in bench.messages(Refused)]


def _info(req_id: str, sizes: dict[str, int], cleared_bytes: int | None = None) -> CacheInfo:
    entries = dict.fromkeys(sizes, 1)
    return CacheInfo(req_id, entries, sizes, cleared_bytes, HITS, EVICTIONS, SKIPPED, 4, 1)


def test_statistics_are_told_to_whoever_asked_and_nothing_is_dropped():
    bench = _bench()
    bench.hello(OTHER)
    bench.say(Cache("q1", "stats", ("prefix",)), OTHER)
    bench.turn()
    assert bench.messages(CacheInfo, OTHER) == [_info("q1", {"slot": 100, "prefix": 4096})]
    assert not bench.messages(CacheInfo) and not bench.engine.cleared


@pytest.mark.parametrize(
    ("kinds", "cleared", "left", "size_bytes"),
    [
        (("prefix",), {"prefix"}, {"slot": 100}, 4096),
        (("disk", "spill"), {"disk", "spill"}, {"slot": 100, "prefix": 4096}, 0),
        (None, set(STATE_KINDS), {}, 4196),
        ((), set(), {"slot": 100, "prefix": 4096}, 0),
    ],
)
def test_the_kinds_that_are_named_are_dropped_or_all(kinds, cleared, left, size_bytes):
    bench = _bench()
    bench.say(Cache("q1", "clear", kinds))
    bench.turn()
    assert bench.engine.cleared == [frozenset(cleared)]
    assert bench.messages(CacheInfo) == [_info("q1", left, size_bytes)]  # as it is afterwards


def test_a_question_is_answered_between_two_rounds_and_changes_no_answer():
    alone, beside = _bench(ending_after(20)), _bench(ending_after(20))
    for bench in (alone, beside):
        bench.say(submit())
        bench.turn(3)
    beside.say(Cache("q1", "clear"))
    rounds = len(beside.engine.steps)
    beside.turn()
    assert beside.messages(CacheInfo) and len(beside.engine.steps) == rounds + 1
    for bench in (alone, beside):
        bench.turn_until_done("r1")
    assert beside.text("r1") == alone.text("r1")


def test_a_kind_that_does_not_exist_is_refused_and_nothing_is_dropped():
    bench = _bench()
    bench.say(Cache("q1", "clear", ("prefix", "suffix")))
    bench.turn()
    (refused,) = bench.messages(Refused)
    assert (refused.req_id, refused.code, refused.param) == ("q1", "bad_request", "kind")
    assert "'suffix'" in refused.detail
    assert not bench.engine.cleared


def test_a_fault_ends_its_question_alone():
    bench = _bench(ending_after(3))
    bench.engine.kept_fault = OSError("a path")
    bench.say(Cache("q1", "stats"))
    bench.turn()
    assert _refusals(bench) == [("q1", "internal", "OSError")]
    bench.engine.kept_fault = None
    bench.say(Cache("q2", "stats"))
    bench.say(submit())
    bench.turn_until_done("r1")
    assert [info.req_id for info in bench.messages(CacheInfo)] == ["q2"]


def test_a_broken_invariant_ends_the_worker():
    bench = _bench()
    bench.engine.kept_fault = AssertionError()
    bench.say(Cache("q1", "stats"))
    with pytest.raises(AssertionError):
        bench.turn()


def test_a_draining_worker_answers_until_its_loop_has_ended():
    bench = _bench()
    bench.to_loop.put(StartDrain())
    bench.turn()
    bench.say(Cache("q1", "stats"))
    bench.loop.refuse_late()  # what was in the box when the last run ended
    bench.deliver()
    bench.dispatch.has_loop = False
    bench.say(Cache("q2", "stats"))
    assert [info.req_id for info in bench.messages(CacheInfo)] == ["q1"]
    assert _refusals(bench) == [("q2", "draining", "draining")]
    assert bench.messages(Refused)[0].retry_after_ms == 30_000


def test_a_question_that_was_called_off_is_no_fault_until_it_is_answered():
    bench = _bench()
    bench.say(Cache("q1", "stats"))
    bench.say(Cancel("q1", 1, "client left"))
    bench.turn()
    assert not bench.dispatch._faults
    bench.say(Cache("q2", "stats"))
    bench.turn()
    bench.say(Cancel("q2", 1, "client left"))
    assert bench.dispatch._faults == {"unknown_run": 1}


def test_the_questions_of_a_gateway_that_fell_silent_are_forgotten():
    bench = _bench()
    bench.say(Cache("q1", "stats"))
    bench.clock.now += LINK_LEASE_S + 1
    bench.dispatch.tick(bench.clock.now, None)
    assert not bench.dispatch._asked and GATEWAY not in bench.dispatch._peers
