"""Prices over a worker's life: at its start, while it serves, and in idle turns of the loop."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from scripted import Bench, ScriptedEngine, ending_after, submit
from structlog.testing import capture_logs

from proto.messages import Done
from worker import settings as machine_settings
from worker.price_file import Fingerprint, PriceFile
from worker.pricing import Pricing
from worker.settings import free_memory_bytes
from worker.speculation.calibration import Cell, Scope, trial_tree, waves
from worker.speculation.prices import Prices
from worker.speculation.round import Round
from worker.speculation.tree import DraftTree

PRINT = Fingerprint("hash", "bf16", "a CPU", "sdpa", threads=2, max_rows=4, max_len=2048, torch="2")
TRIALS = 3 * (2 + 6)  # samples and dropped; the cells of both waves


def _file(folder: Path) -> PriceFile:
    return PriceFile(folder / "prices", PRINT)


def _pricing(bench: Bench, file: PriceFile, scope: Scope | None = None) -> Pricing:
    return Pricing(
        bench.engine, scope or bench.pricing._scope, file,
        has_room=lambda need: need <= bench.free_bytes, clock=bench.clock,
    )  # fmt: skip


def _events(logs: Sequence[dict]) -> list[str]:
    return [line["event"] for line in logs if line["event"].startswith("prices.")]


# At the start.


def test_the_first_start_measures_and_the_next_one_reads(tmp_path: Path):
    first, second = Bench(), Bench()
    first.engine.trial_s = 0.5
    with capture_logs() as logs:
        _pricing(first, _file(tmp_path)).start()
    assert len(first.engine.trial_rows) == TRIALS
    assert not first.engine.living_trials
    assert logs == [
        {
            "event": "prices.calibrated", "log_level": "info", "seconds": 0.5 * TRIALS,
            "contexts": [256, 1024], "staircase": {2: 1.67, 4: 3.0},
        }
    ]  # fmt: skip
    with capture_logs() as logs:
        _pricing(second, _file(tmp_path)).start()
    assert (second.engine.trial_rows, logs) == ([], [])
    assert second.engine.prices.to_fields() == first.engine.prices.to_fields()


def test_measuring_when_asked_replaces_the_table_that_is_there(tmp_path: Path):
    bench = Bench()
    old = Prices({256: 9.0}, {256: {"chain": {1: 9.0}, "tree": {1: 9.0}}}, bench_commit())
    _file(tmp_path).write(old)
    measured = _pricing(bench, _file(tmp_path)).measure()
    assert measured is not None and measured.plain == {256: 1.5, 1024: 1.5}
    assert _file(tmp_path).read().to_fields() == measured.to_fields()


def bench_commit() -> dict:
    return {"chain": 0.5, "tree": 0.5}


def test_a_table_that_cannot_be_stored_is_used_all_the_same(tmp_path: Path):
    bench = Bench()
    (tmp_path / "prices").write_text("no folder")
    with capture_logs() as logs:
        _pricing(bench, _file(tmp_path)).start()
    assert bench.engine.prices is not None
    # One warning that it could not be read, one that it could not be written.
    assert sorted(set(_events(logs))) == [
        "prices.calibrated", "prices.not_written", "prices.refused",
    ]  # fmt: skip


def test_a_machine_on_which_nothing_can_be_measured_keeps_its_prices(tmp_path: Path):
    for kind in (RuntimeError, MemoryError):
        bench = Bench()
        bench.engine.fault = kind("no kernel")
        with capture_logs() as logs:
            _pricing(bench, _file(tmp_path)).start()
        assert _events(logs) == ["prices.not_measured"]
        bench.engine.fault = None  # whose traceback knows the trial
        assert bench.engine.prices is None and not bench.engine.living_trials
    slow = Bench()
    slow.engine.trial_s = 60.0
    with capture_logs() as logs:
        _pricing(slow, _file(tmp_path)).start()
    assert _events(logs) == ["prices.not_measured"]
    assert len(slow.engine.trial_rows) == 1 and slow.engine.prices is None


# Memory.


def test_free_memory_is_that_of_the_machine_within_the_limit_of_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(machine_settings, "CGROUP", tmp_path)
    whole = free_memory_bytes()
    assert 1 << 20 < whole < 1 << 50
    (tmp_path / "memory.current").write_text("3000\n")
    for limit, expected in (("10000\n", 7000), ("2000\n", 0)):
        (tmp_path / "memory.max").write_text(limit)
        assert free_memory_bytes() == expected
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory_bytes() == pytest.approx(whole, rel=0.5)


@pytest.mark.parametrize(
    ("free_bytes", "contexts"), [(1028, [256, 1024]), (1027, [256]), (260, [256])]
)
def test_contexts_that_the_machine_has_no_room_for_are_left_out(
    free_bytes: int, contexts: list[int]
):
    bench = Bench()
    bench.free_bytes = free_bytes
    assert sorted(bench.pricing.measure().verify) == contexts


def test_b27_no_byte_is_taken_for_measuring_without_asking():
    bench = _bench()
    bench.free_bytes = 259
    with capture_logs() as logs:
        assert bench.pricing.measure() is None
    assert _events(logs) == ["prices.not_measured"]
    assert bench.engine.trial_rows == []
    bench.free_bytes = 1 << 40
    _drift(bench, 2.0)
    bench.turn(3)
    bench.say(submit("r1"))
    bench.turn_until_done("r1")  # what was half done has let go of its slot
    trials = len(bench.engine.trial_rows)
    bench.free_bytes = 100  # others have taken the room meanwhile
    with capture_logs() as logs:
        bench.turn(5)
    assert _events(logs) == ["prices.not_measured"]
    assert len(bench.engine.trial_rows) == trials
    assert bench.engine.prices is None


# While it serves.


def _bench(**changes: object) -> Bench:
    bench = Bench(ending_after(6), **changes)
    bench.engine.guessed = 1
    bench.hello()
    return bench


def _drift(bench: Bench, ratio: float, rounds: int = 256) -> None:
    """Rounds with a draft that took `ratio` times their price."""
    tree, path = trial_tree(Cell(256, "chain", 2), 512)
    made = Round(tree, path, path, 7.0, 0.75, 7.0, 0.25, 1.0 / ratio)
    for _ in range(rounds):
        bench.pricing.saw_round(made)


@pytest.mark.parametrize(("ratio", "is_due"), [
    (0.79, True), (0.81, False), (1.0, False), (1.24, False), (1.26, True),
])  # fmt: skip
def test_prices_are_measured_again_when_rounds_take_something_else(ratio: float, is_due: bool):
    bench = _bench()
    _drift(bench, ratio, rounds=255)
    bench.turn(3)
    assert bench.engine.trial_rows == []
    _drift(bench, ratio, rounds=1)
    with capture_logs() as logs:
        bench.turn(TRIALS + 2)
    assert len(bench.engine.trial_rows) == (TRIALS if is_due else 0)
    assert _events(logs) == (["prices.recalibrated"] if is_due else [])
    if is_due:
        assert logs[-1]["ratio"] == ratio
        assert bench.price_file.written == [bench.engine.prices]
        assert not bench.engine.living_trials
        bench.turn(5)  # and then it is over
        assert len(bench.engine.trial_rows) == TRIALS


def test_a_few_odd_rounds_and_plain_ones_say_nothing():
    bench = _bench()
    for _ in range(3):
        _drift(bench, 9.0, rounds=120)
        _drift(bench, 1.0, rounds=136)
    bench.engine.guessed = 0
    bench.say(submit("plain", params={"temperature": 0.0, "max_tokens": 20}))
    bench.turn_until_done("plain")
    assert len(bench.pricing._ratios) == 0
    bench.turn(3)
    assert bench.engine.trial_rows == []


def test_the_loops_own_rounds_are_watched():
    bench = _bench()
    bench.engine.price_ms = 0.5
    for number in range(86):  # three rounds with a draft each
        bench.say(submit(f"r{number}"))
        bench.turn_until_done(f"r{number}")
    bench.turn(2)
    assert len(bench.engine.trial_rows) > 0


def test_an_idle_turn_measures_once_and_a_request_waits_for_no_more():
    bench = _bench()
    _drift(bench, 2.0)
    bench.engine.trial_s = 0.3
    before = bench.clock.now
    for count in range(1, 8):
        assert bench.loop.turn()  # something was done: the loop does not sleep
        assert len(bench.engine.trial_rows) == count
    assert bench.clock.now == pytest.approx(before + 7 * 0.3)
    bench.say(submit("r1"))
    asked_s = bench.clock.now
    bench.turn()
    assert bench.clock.now == asked_s  # the turn it arrives in is its own
    assert not bench.engine.living_trials  # and so is the memory
    done = bench.turn_until_done("r1")
    assert (done.finish, bench.text("r1")) == ("stop", "abcdef")
    assert len(bench.engine.trial_rows) == 7
    bench.turn(TRIALS)  # what was half done goes on
    assert len(bench.engine.trial_rows) == TRIALS
    assert bench.engine.prices is not None


def test_nothing_is_measured_while_a_run_waits_for_its_client_or_the_worker_drains():
    bench = _bench()
    _drift(bench, 2.0)
    bench.say(submit("r1", credit=2))
    bench.turn(10)
    assert (bench.text("r1"), bench.messages(Done)) == ("ab", [])  # it is parked
    assert bench.engine.trial_rows == []
    bench.loop._start_drain()
    bench.turn(3)
    assert bench.engine.trial_rows == []


def test_measuring_that_fails_while_idle_ends_nothing():
    bench = _bench()
    _drift(bench, 2.0)
    bench.turn(2)
    bench.engine.fault = RuntimeError("out of memory")
    with capture_logs() as logs:
        bench.turn(3)
    bench.engine.fault = None
    assert _events(logs) == ["prices.not_measured"]
    assert not bench.engine.living_trials
    bench.say(submit("r1"))
    assert bench.turn_until_done("r1").finish == "stop"


def test_the_scripted_scope_has_as_many_trials_as_is_counted_on():
    engine = Bench().engine
    assert isinstance(engine, ScriptedEngine)
    scope = Bench().pricing._scope
    assert (2 + scope.samples) * sum(len(wave) for wave in waves(scope)) == TRIALS
    assert isinstance(engine.trials(8)(0, DraftTree((1,), (-1,), (1.0,), (0,)), (0,)), tuple)
