"""The life of a run, from its Submit to its end, with a scripted model and a set clock."""

import pytest
from scripted import END, TOKENIZER, Bench, ending_after, letters, submit

from proto.chat import Call
from proto.messages import Cancel, Credit, Delta, Done, Queued, Refused
from proto.plan import Plan
from worker.text.prompt import prompt_hash


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
def test_b45_a_run_ends_at_what_was_asked_for(params, plan, expected):
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


def test_a_token_that_the_model_does_not_know_is_refused():
    bench = _bench(vocab_size=10)
    bench.say(submit())
    bench.turn()
    assert [(r.code, r.param) for r in bench.messages(Refused)] == [("bad_request", "messages")]


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


def test_a_burst_on_an_idle_worker_fills_lane_and_queue():
    bench = Bench(ending_after(1))
    bench.hello()
    for number in range(9):
        bench.say(submit(f"r{number}"))
    for number in range(9):
        bench.turn_until_done(f"r{number}")
    assert not bench.messages(Refused)


def test_kept_states_are_filed_away_only_while_nothing_else_is_to_be_done():
    bench = _bench(ending_after(3))
    bench.engine.to_file = 3
    bench.say(submit())
    bench.turn_until_done("r1")
    assert bench.engine.to_file == 3
    for left in (2, 1, 0, 0):
        assert bench.loop.turn() is (left > 0)
        assert bench.engine.to_file == left
