"""How reading prompts and writing answers share the device, by a clock that only steps move."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Bench, submit

from proto.messages import Cancel, Credit

LONG = "a long prompt that takes many chunks to be read " * 3  # 15 chunks of 8 tokens


def _bench(**changes) -> Bench:
    chunk_s, round_s = changes.pop("chunk_s", 0.4), changes.pop("round_s", 0.1)
    given_ = {"lanes": 2, "slots": 3, "chunk": 8, "wall_clock_s": 1e9, "max_len": 4000, **changes}
    bench = Bench(**given_)
    bench.hello()
    bench.engine.chunk_s, bench.engine.round_s = chunk_s, round_s
    return bench


class Watched:
    """Seconds that each slot had, by what it did with them, and in which order."""

    def __init__(self, bench: Bench) -> None:
        self.steps: list[tuple[str, int, float]] = []
        engine = bench.engine
        for name in ("read_chunk", "round"):
            self._watch(bench, name, getattr(engine, name))

    def _watch(self, bench: Bench, name: str, step) -> None:
        def watched(slot, *rest):
            began_s = bench.clock.now
            made = step(slot, *rest)
            self.steps.append((name, id(slot), bench.clock.now - began_s))
            return made

        setattr(bench.engine, name, watched)

    def seconds(self, name: str) -> float:
        return sum(took for what, _, took in self.steps if what == name)


def _writing(bench: Bench, count: int) -> None:
    for number in range(count):
        bench.say(submit(f"w{number}", prompt="hi", credit=9999, params={"max_tokens": 3000}))
    bench.turn(4)
    assert all(bench.text(f"w{number}") for number in range(count))


def _turn_while_reading(bench: Bench, *run_ids: str) -> None:
    """Until the first of them has its first token."""
    for _ in range(2000):
        if any(bench.text(run_id) for run_id in run_ids):
            return
        bench.turn()
    raise AssertionError("nobody was read to the end")


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("writers", [1, 3])
def test_a_long_prompt_takes_its_share_of_the_time_and_no_more(share: float, writers: int):
    bench = _bench(lanes=writers + 1, slots=writers + 2, share=share, round_s=0.01, chunk_s=0.04)
    _writing(bench, writers)
    watched = Watched(bench)
    bench.say(submit("long", prompt=LONG))
    _turn_while_reading(bench, "long")
    reading, writing = watched.seconds("read_chunk"), watched.seconds("round")
    assert reading == pytest.approx(15 * 0.04)
    # Off by one step of either kind, at the most.
    wanted = reading / share - reading
    assert abs(writing - wanted) <= 0.04 * (1 - share) / share + 0.01 * writers
    stalls, stall = [], 0.0
    for what, _, took in watched.steps:
        stall = stall + took if what == "read_chunk" else 0.0
        stalls.append(stall)
    chunks_in_a_row = max(1, -(-share * 0.01 * writers // ((1 - share) * 0.04)))
    assert max(stalls) <= 0.04 * (chunks_in_a_row + 1e-6)


def test_what_takes_no_time_takes_turns():
    bench = _bench(chunk_s=0.0, round_s=0.0)
    _writing(bench, 1)
    watched = Watched(bench)
    bench.say(submit("long", prompt=LONG))
    bench.turn(8)
    assert [what for what, *_ in watched.steps] == ["read_chunk", "round"] * 4


def test_a_burst_on_an_idle_worker_is_read_before_anybody_writes():
    bench = _bench(lanes=3, slots=4)
    watched = Watched(bench)
    for run_id, prompt in (("short", "hi"), ("a", LONG), ("b", LONG)):
        bench.say(submit(run_id, prompt=prompt))
    _turn_while_reading(bench, "b")
    bench.turn()
    kinds = [what for what, *_ in watched.steps]
    first = kinds.index("round")
    assert set(kinds[first:]) == {"round"} and first == 1 + 15 + 15


def test_who_comes_while_the_first_of_a_burst_is_still_read_belongs_to_it():
    bench = _bench(lanes=3, slots=4)
    watched = Watched(bench)
    bench.say(submit("a", prompt=LONG))
    bench.turn(3)
    bench.say(submit("b", prompt=LONG))
    _turn_while_reading(bench, "a")
    assert not bench.text("b")
    bench.say(submit("late", prompt=LONG))  # an answer has begun: it is no burst any more
    _turn_while_reading(bench, "b")
    kinds = [what for what, *_ in watched.steps]
    assert "round" not in kinds and len({slot for _, slot, _ in watched.steps}) == 2
    assert len(bench.text("a")) == 1
    _turn_while_reading(bench, "late")
    late = watched.steps[len(kinds) :]
    reading, writing = (sum(t for w, _, t in late if w == name) for name in ("read_chunk", "round"))
    assert reading == pytest.approx(writing, abs=0.4)


def test_a_client_that_pauses_makes_no_idle_worker():
    """Its answer goes on in its share as soon as there is credit."""
    bench = _bench(chunk_s=0.1, round_s=0.1)
    bench.say(submit("slow", prompt="hi", credit=2, params={"max_tokens": 200}))
    bench.turn(4)
    bench.say(submit("long", prompt=LONG))
    bench.turn(4)
    watched = Watched(bench)
    bench.say(Credit("slow", 100))
    bench.turn(10)
    assert [what for what, *_ in watched.steps].count("round") == 5


def test_a_share_is_not_saved_up():
    """A long time of writing alone does not let a prompt stall it afterwards, nor the reverse."""
    bench = _bench(chunk_s=0.1, round_s=0.1)
    _writing(bench, 1)
    bench.turn(50)
    watched = Watched(bench)
    bench.say(submit("long", prompt=LONG))
    bench.turn(10)
    assert [what for what, *_ in watched.steps] == ["read_chunk", "round"] * 5


def test_many_short_prompts_have_no_more_than_a_long_one():
    bench = _bench(chunk_s=0.4, round_s=0.1)
    _writing(bench, 1)
    watched = Watched(bench)
    for number in range(20):
        bench.say(submit(f"s{number}", prompt="hi", params={"max_tokens": 1}))
        bench.turn_until_done(f"s{number}", limit=100)
        bench.turn()  # nobody reads for a moment: what is owed is still owed
    assert watched.seconds("read_chunk") == pytest.approx(8.0)
    assert watched.seconds("round") == pytest.approx(8.0, abs=0.5)


def test_a_short_prompt_does_not_wait_for_the_end_of_a_long_one():
    bench = _bench(lanes=3, slots=4)
    _writing(bench, 1)
    bench.say(submit("long", prompt=LONG))
    bench.turn(2)
    bench.say(submit("short", prompt="hi"))
    _turn_while_reading(bench, "long", "short")
    assert bench.text("short") and not bench.text("long")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(1, 40), st.integers(1, 30), st.booleans()),
        min_size=1, max_size=12,
    ),
    st.integers(1, 4),
    st.sampled_from([0.05, 0.5, 0.95]),
    st.floats(0.0, 1.0),
    st.floats(0.001, 0.3),
)  # fmt: skip
def test_nobody_starves(asked, lanes, share, chunk_s, round_s):
    """Whatever comes and goes, everybody ends, and no run is held on to behind its end."""
    bench = _bench(
        lanes=lanes, slots=lanes + 1, share=share, chunk_s=chunk_s, round_s=round_s,
        queue_size=50, preparing=99,
    )  # fmt: skip
    for number, (turns, words, tokens, leaves) in enumerate(asked):
        run_id = f"r{number}"
        bench.say(submit(run_id, prompt="word " * words, params={"max_tokens": tokens}))
        bench.turn(turns)
        if leaves:
            bench.say(Cancel(run_id, 1, "gone"))
    for number in range(len(asked)):
        bench.turn_until_done(f"r{number}", limit=20_000)
    bench.turn()
    assert bench.loop._turns._reader is None and not bench.loop._turns._burst
