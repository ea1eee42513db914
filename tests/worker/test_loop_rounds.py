"""Rounds that write several tokens, as the loop sees them: their limits and what is noted."""

import pytest
from scripted import Bench, ScriptedEngine, ending_after, submit

from proto.messages import Credit, Delta


def _bench(*args, **changes) -> Bench:
    bench = Bench(*args, **changes)
    bench.hello()
    return bench


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedEngine, "guessed", 5)


def test_a_round_writes_no_more_than_its_client_has_credit_for(in_blocks: None):
    bench = _bench()
    bench.say(submit(credit=3))
    bench.turn(6)
    assert bench.numbers("r1") == [1, 2, 3]
    bench.say(Credit("r1", 5))
    bench.turn()
    assert bench.numbers("r1") == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_round_goes_out_as_one_message_and_stops_at_the_last_token_asked_for(in_blocks: None):
    bench = _bench()
    bench.say(submit(params={"temperature": 0.0, "max_tokens": 9}))
    done = bench.turn_until_done("r1")
    assert [len(delta.ids) for delta in bench.messages(Delta)] == [1, 6, 2]
    assert [delta.first for delta in bench.messages(Delta)] == [1, 2, 8]
    assert bench.text("r1") == "abcdefghi"
    assert (done.finish, done.usage.completion_tokens) == ("length", 9)
    assert (done.spec.rounds, done.spec.plain) == (2, 0)
    assert (done.spec.draft_tokens, done.spec.draft_accepted) == (6, 6)


def test_the_end_of_an_answer_ends_its_round(in_blocks: None):
    bench = _bench(ending_after(4))
    bench.say(submit())
    assert bench.turn_until_done("r1").finish == "stop"
    assert bench.text("r1") == "abcd"
    assert bench.numbers("r1") == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("changes", "rooms"),
    [
        ({"params": {"temperature": 0.0, "max_tokens": 9}}, [8, 2]),
        ({"credit": 5}, [4]),
        ({"prompt": "x" * 190}, [9, 3]),
    ],
    ids=["tokens asked for", "credit", "context"],
)
def test_nobody_guesses_beyond_what_may_be_written(in_blocks: None, changes, rooms: list[int]):
    bench = _bench()
    bench.say(submit(**changes))
    bench.turn(20)
    assert bench.engine.rooms == rooms


def test_a_round_counts_in_the_rates_and_numbers_of_the_worker(in_blocks: None):
    bench = _bench()
    bench.engine.round_s = 2.0
    bench.say(submit(params={"temperature": 0.0, "max_tokens": 181}))
    bench.turn_until_done("r1")
    bench.clock.now += 10.0
    bench.turn()
    assert bench.board.beat.decode_tps == pytest.approx(3.0, rel=0.1)
    rounds = [m for m in bench.board.beat.metrics if m.name == "tandem_worker_rounds_total"]
    assert [(dict(m.labels)["kind"], m.value) for m in rounds] == [("lookup", 30)]


def test_what_a_run_writes_is_kept_for_its_user_alone_and_only_where_that_is_wanted():
    bench = _bench(ending_after(2))
    greedy = {"temperature": 0.0}
    bench.say(submit("r1", cache_salt="mine", params=greedy))
    bench.say(submit("r2", cache_salt="mine", params={**greedy, "cache_prompt": False}))
    bench.say(submit("r3", cache_salt="yours", params=greedy))
    bench.turn_until_done("r3")
    assert bench.engine.salts == ["mine", None, "yours"]


def test_an_end_has_no_logprob_of_its_own():
    bench = _bench(ending_after(2))
    bench.engine.logprob = -0.5
    bench.say(submit())
    bench.turn_until_done("r1")
    told = [len(delta.logprobs or ()) for delta in bench.messages(Delta)]
    assert told == [1, 1, 0]
