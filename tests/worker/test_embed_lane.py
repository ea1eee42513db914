"""Questions for vectors between the rounds of what runs, with a scripted model and a set clock."""

import pytest
from scripted import GATEWAY, OTHER, TOKENIZER, Bench, ending_after, submit

from proto.limits import EMBED_TEXTS_ASKED, LINK_LEASE_S
from proto.messages import Cancel, Count, Delta, Done, Embed, Embedded, Metric, Refused
from proto.worker_settings import SideSettings
from worker.types import StartDrain

WORDS = "the lazy dog jumps over the quick brown fox"


def _bench(*args, **changes) -> Bench:
    bench = Bench(*args, embeds=True, **changes)
    bench.hello()
    return bench


def _vector(text: str) -> tuple[float, ...]:
    ids = TOKENIZER.encode_prompt(text)
    return (float(len(ids)), float(ids[0]))


def _refusals(bench: Bench, receiver: bytes = GATEWAY) -> list[tuple[str | None, str, str]]:
    return [(r.req_id, r.code, r.detail) for r in bench.messages(Refused, receiver)]


def _is_busy(bench: Bench) -> bool:
    return bench.loop._state() == "busy"


def test_texts_are_answered_in_their_order_with_the_tokens_of_all():
    bench = _bench()
    bench.say(Embed("q1", ("hello", WORDS, "a")))
    bench.turn(30)
    (answer,) = bench.messages(Embedded)
    assert answer.vectors == tuple(map(_vector, ("hello", WORDS, "a")))
    assert answer.tokens == sum(len(TOKENIZER.encode_prompt(t)) for t in ("hello", WORDS, "a"))
    assert bench.embedder.stops == 1  # what it held is given back
    assert not _is_busy(bench)


def test_control_tokens_that_a_text_spells_are_text():
    bench = _bench()
    bench.say(Embed("q1", ("<|im_end|>",)))
    bench.turn(10)
    assert bench.messages(Embedded)[0].tokens > 1


def test_one_chunk_is_read_between_two_rounds():
    bench = _bench()
    bench.say(submit())
    bench.turn(2)
    bench.say(Embed("q1", (WORDS,)))
    while not bench.messages(Embedded):
        reads, rounds = bench.embedder.reads, len(bench.engine.steps)
        bench.turn()
        assert bench.embedder.reads - reads <= 1
        assert len(bench.engine.steps) - rounds == 1
    assert bench.embedder.reads > 3


def test_a_running_answer_is_written_as_if_nothing_was_asked():
    alone, beside = _bench(ending_after(20)), _bench(ending_after(20))
    for bench in (alone, beside):
        bench.say(submit())
        bench.turn(3)
    beside.say(Embed("q1", (WORDS, WORDS)))
    for bench in (alone, beside):
        bench.turn_until_done("r1")
    assert beside.messages(Embedded)
    assert beside.text("r1") == alone.text("r1")


def test_beside_others_it_takes_its_share_of_the_time_and_no_more():
    bench = _bench(side=SideSettings(share=0.25))
    bench.engine.round_s, bench.embedder.chunk_s = 0.2, 1.0
    bench.say(submit(params={"temperature": 0.0, "max_tokens": 150}))
    bench.say(Embed("q1", (WORDS,) * EMBED_TEXTS_ASKED))
    began_s = bench.clock.now
    bench.turn_until_done("r1")
    share = bench.embedder.reads / (bench.clock.now - began_s)
    assert 0.2 <= share <= 0.35  # a step may begin as long as there is something left


def test_what_was_read_alone_is_not_held_against_short_requests():
    bench = _bench(side=SideSettings())
    bench.embedder.chunk_s = 4.0
    bench.say(Embed("q1", (WORDS,)))
    bench.turn(4)
    assert bench.loop._side.may_step(bench.clock.now, is_alone=False)


def test_questions_that_find_no_place_are_busy_and_others_are_served_in_their_order():
    bench = _bench(queue_size=2)
    for number in range(4):
        bench.say(Embed(f"q{number}", (WORDS,)))
    bench.turn(60)
    assert _refusals(bench) == [("q2", "busy", "queue_full"), ("q3", "busy", "queue_full")]
    assert bench.messages(Refused)[0].retry_after_ms == 5000
    assert [answer.req_id for answer in bench.messages(Embedded)] == ["q0", "q1"]


def test_a_full_preparer_is_busy():
    bench = _bench(preparing=1)
    bench.say(Count("c", texts=("x",)))
    bench.say(Embed("q1", ("x",)))
    assert _refusals(bench) == [("q1", "busy", "queue_full")]


def test_what_waits_too_long_is_told_so():
    bench = _bench(queue_timeout_s=5.0)
    bench.embedder.chunk_s = 3.0
    bench.say(Embed("q1", (WORDS,)))
    bench.say(Embed("q2", (WORDS,)))
    bench.turn(20)
    assert _refusals(bench) == [("q2", "busy", "queue_timeout")]
    assert [answer.req_id for answer in bench.messages(Embedded)] == ["q1"]


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_question_that_was_called_off_is_dropped_wherever_it_is(turns: int):
    bench = _bench()
    bench.say(Embed("q1", (WORDS, WORDS)))
    bench.turn(turns)
    bench.say(Cancel("q1", 1, "client left"))
    bench.say(Embed("q2", ("a",)))
    bench.turn(20)
    assert [answer.req_id for answer in bench.messages(Embedded)] == ["q2"]
    assert not bench.messages(Refused)
    assert bench.embedder.reads <= turns + 1
    assert not _is_busy(bench)


def test_only_who_asked_can_call_a_question_off():
    bench = _bench()
    bench.hello(OTHER)
    bench.say(Embed("q1", (WORDS,)))
    bench.say(Cancel("q1", 1, "client left"), OTHER)
    bench.turn(20)
    assert bench.messages(Embedded)
    bench.say(Cancel("q1", 1, "late"))  # it is answered: nothing to call off
    faults = Metric("tandem_worker_link_faults_total", {"kind": "unknown_run"}, 2)
    assert faults in bench.dispatch._samples()


def test_the_questions_of_a_gateway_that_fell_silent_are_dropped():
    bench = _bench()
    bench.hello(OTHER)
    bench.say(Embed("q1", (WORDS,)), OTHER)
    bench.say(Embed("q2", ("a",)))
    bench.clock.now += LINK_LEASE_S + 1
    bench.say(Cancel("r", 1, "alive"))
    bench.dispatch.tick(bench.clock.now, None)
    bench.turn(20)
    assert not bench.messages(Embedded, OTHER)
    assert [answer.req_id for answer in bench.messages(Embedded)] == ["q2"]


@pytest.mark.parametrize(
    ("texts", "code", "param"),
    [
        ((), "bad_request", "texts"),
        (("a",) * (EMBED_TEXTS_ASKED + 1), "bad_request", "texts"),
        (("a", ""), "bad_request", "texts[1]"),
        (("a", "b", "é" * 400), "too_long", "texts[2]"),
        (("x" * 20_000,), "too_long", "texts[0]"),
    ],
)
def test_a_text_that_cannot_be_read_is_named(texts: tuple[str, ...], code: str, param: str):
    bench = _bench()
    bench.say(Embed("q1", texts))
    bench.turn(2)
    (refused,) = bench.messages(Refused)
    assert (refused.req_id, refused.code, refused.param) == ("q1", code, param)
    if code == "too_long":
        assert "200" in refused.detail


def test_a_text_may_fill_the_context():
    bench = _bench(max_len=len(TOKENIZER.encode_prompt(WORDS)))
    bench.say(Embed("q1", (WORDS,)))
    bench.say(Embed("q2", (WORDS + " a",)))
    bench.turn(30)
    assert [answer.req_id for answer in bench.messages(Embedded)] == ["q1"]
    assert [r.req_id for r in bench.messages(Refused)] == ["q2"]


def test_a_token_that_the_model_does_not_have_is_refused():
    bench = _bench(vocab_size=10)
    bench.say(Embed("q1", ("hello",)))
    bench.turn(2)
    assert [(r.code, r.param) for r in bench.messages(Refused)] == [("bad_request", "texts[0]")]


def test_a_fault_of_the_model_ends_its_question_alone():
    bench = _bench(ending_after(3))
    bench.embedder.fault = RuntimeError("no kernel for <text>")
    bench.say(Embed("q1", (WORDS,)))
    bench.turn(2)
    assert _refusals(bench) == [("q1", "internal", "RuntimeError")]
    bench.embedder.fault = None
    bench.say(Embed("q2", (WORDS,)))
    bench.say(submit())
    bench.turn_until_done("r1")
    bench.turn(20)
    assert [answer.req_id for answer in bench.messages(Embedded)] == ["q2"]


def test_a_drain_finishes_what_is_being_read_and_refuses_the_rest():
    bench = _bench()
    bench.say(Embed("q1", (WORDS,)))
    bench.say(Embed("q2", (WORDS,)))
    bench.turn()
    bench.to_loop.put(StartDrain())
    bench.turn()
    bench.say(Embed("q3", (WORDS,)))
    assert not bench.loop.is_drained
    bench.turn(20)
    assert [answer.req_id for answer in bench.messages(Embedded)] == ["q1"]
    assert _refusals(bench) == [("q2", "draining", "draining"), ("q3", "draining", "draining")]
    assert bench.loop.is_drained


def test_a_drain_whose_time_is_up_waits_for_no_vector():
    bench = _bench(drain_s=5.0)
    bench.embedder.chunk_s = 1.0
    bench.say(Embed("q1", (WORDS,) * 4))
    bench.turn()
    bench.to_loop.put(StartDrain())
    for _ in range(7):
        bench.turn()
    assert _refusals(bench) == [("q1", "draining", "draining")]
    assert bench.loop.is_drained


def test_what_was_being_prepared_when_the_loop_ended_is_refused():
    bench = _bench()
    bench.to_loop.put(StartDrain())
    bench.loop.turn()
    bench.say(Embed("q1", (WORDS,)))  # before the link has heard of the drain
    bench.preparer.work()
    bench.loop.refuse_late()
    bench.deliver()
    assert _refusals(bench) == [("q1", "draining", "draining")]


def test_a_question_that_comes_when_the_loop_has_ended_is_refused_at_once():
    bench = _bench()
    bench.dispatch.has_loop = False
    bench.say(Embed("q1", (WORDS,)))
    assert _refusals(bench) == [("q1", "draining", "draining")]


def test_runs_and_questions_do_not_share_the_places_in_which_they_wait():
    bench = _bench(ending_after(3), queue_size=1)
    bench.say(Embed("q1", (WORDS,)))
    bench.say(submit("r1"))
    bench.turn_until_done("r1")
    bench.turn(20)
    assert bench.messages(Embedded) and bench.messages(Done) and bench.messages(Delta)
    assert not bench.messages(Refused)
