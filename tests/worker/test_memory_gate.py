"""Memory is computed before it is taken: the gate, those that wait for it, and what it reads."""

import re
import resource
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from structlog.testing import capture_logs

from proto.worker_settings import MemorySettings
from worker import memory_gate
from worker import settings as machine_settings
from worker.faults import StartFault
from worker.memory import (
    MIB,
    AllocatorCache,
    HostProbe,
    MemoryLimits,
    allocator_cache,
    limits_of,
)
from worker.memory_gate import MemoryGate, gate_of
from worker.memory_wait import MOST_PASSES, RECHECK_S, MemoryWait
from worker.settings import free_memory_bytes, memory_bytes

PEAK, FLOOR, TOTAL, WEIGHTS = 800, 100, 1000, 200


@dataclass
class Account:
    """A device whose every byte is counted. Freed bytes stay with the allocator, as on CUDA, and
    are used again before new ones are taken. `others`: what other processes hold of it."""

    limits: MemoryLimits = MemoryLimits(PEAK, FLOOR)
    taken: int = WEIGHTS
    cached: int = 0
    others: int = 0

    def held(self) -> int:
        return self.taken + self.cached

    def free(self) -> int:
        return TOTAL - self.held() - self.others

    def allocator_free(self) -> int:
        return self.cached

    def take(self, size: int) -> None:
        new = max(0, size - self.cached)
        self.cached = max(0, self.cached - size)
        self.taken += size
        assert self.held() <= self.limits.peak_bytes, "more is held than may be"
        assert not new or self.free() >= self.limits.floor_bytes, "too little is left for others"

    def drop(self, size: int) -> None:
        self.taken -= size
        self.cached += size

    def release(self) -> None:
        self.cached = 0


class Cache(AllocatorCache):
    LEAST_BYTES = 1  # of a device as small as this one


@dataclass
class Pool:
    """Kept states of one kind, given back oldest first, one at a time."""

    name: str
    account: Account
    entries: list[int] = field(default_factory=list)

    def keep(self, size: int) -> None:
        self.account.take(size)
        self.entries.append(size)

    def give_back(self, bytes_wanted: int) -> int:
        if not self.entries:
            return 0
        size = self.entries.pop(0)
        self.account.drop(size)
        return size


STEPS = ("guests", "prefix", "session", "anchors", "slots")


class Bench:
    """A gate over an account with pools in their order."""

    def __init__(self, floor: int = FLOOR) -> None:
        self.account = Account(MemoryLimits(PEAK, floor))
        self.pools = {name: Pool(name, self.account) for name in STEPS}
        cache = Cache(self.account, self.account.release)
        self.gate = MemoryGate(self.account, self.account.limits, (cache, *self.pools.values()))


# The verdict.


def test_what_fits_is_told_so_to_the_byte_and_nothing_is_given_back():
    bench = Bench()
    bench.pools["slots"].keep(100)
    assert bench.gate.ask(PEAK - WEIGHTS - 100).fits
    assert bench.pools["slots"].entries == [100] and not bench.gate.reclaimed
    bench.account.taken += 1
    bench.pools["slots"].entries.clear()
    assert bench.gate.ask(PEAK - WEIGHTS - 100).kind == "wait"


def test_what_would_not_fit_alone_is_never_and_says_both_numbers():
    bench = Bench()
    bench.pools["prefix"].keep(50)
    verdict = bench.gate.ask(601)
    assert verdict.kind == "never" and not verdict.fits
    assert (verdict.need_bytes, verdict.most_bytes) == (601, 600)
    assert (verdict.held_bytes, verdict.peak_bytes) == (250, PEAK)
    assert bench.pools["prefix"].entries == [50], "a hopeless request costs others nothing"
    assert bench.gate.ask(600).fits


def test_what_running_work_holds_makes_others_wait_until_it_ends():
    bench = Bench()
    bench.account.take(400)  # of a run, which no pool may give back
    assert bench.gate.ask(300).kind == "wait"
    bench.account.drop(400)
    assert bench.gate.ask(300).fits


def test_what_others_need_of_the_machine_stays_free():
    bench = Bench()
    bench.account.others = 500
    assert bench.gate.ask(200).fits  # 300 are free, 100 stay so
    assert bench.gate.ask(201).kind == "wait"


def test_b23_memory_that_is_free_in_the_allocator_is_not_charged():
    bench = Bench()
    bench.account.take(550)
    bench.account.drop(550)
    assert bench.account.held() == 750
    assert bench.gate.ask(600).fits
    assert bench.account.cached == 550 and not bench.gate.reclaimed, "nothing had to be given back"
    bench.account.others = 200  # less than the floor is free now, but nothing new is taken
    assert bench.gate.ask(550).fits
    assert bench.account.cached == 550


@given(st.data())
def test_b24_what_was_admitted_is_never_refused_by_growth_while_nothing_else_runs(data):
    bench = Bench(floor=data.draw(st.integers(0, 400)))
    for name in STEPS:
        for size in data.draw(st.lists(st.integers(1, 60), max_size=4)):
            if bench.gate.ask(size).fits:
                bench.pools[name].keep(size)
    need = data.draw(st.integers(0, 700))
    if not bench.gate.ask(need).fits:
        return
    bench.gate.promise("run", need)
    while need:
        piece = data.draw(st.integers(1, need))
        assert bench.gate.ask(piece, owner="run").fits
        bench.account.take(piece)
        need -= piece
        bench.gate.promise("run", need)


def test_what_was_promised_to_one_is_not_given_to_another():
    bench = Bench()
    assert bench.gate.ask(400, owner="first").fits
    bench.gate.promise("first", 400)
    assert bench.gate.ask(201, owner="second").kind == "wait"
    assert bench.gate.ask(200, owner="second").fits
    assert bench.gate.ask(600, owner="first").fits, "its own promise is part of what it needs"
    bench.account.take(300)
    bench.gate.promise("first", 100)
    assert bench.gate.ask(200).fits and bench.gate.ask(201).kind == "wait"
    bench.gate.promise("first", 0)
    assert bench.gate.ask(300).fits


def test_b27_work_for_nobody_takes_what_is_left_and_nothing_that_is_kept():
    bench = Bench()
    bench.pools["prefix"].keep(300)
    assert bench.gate.has_room(300) and not bench.gate.has_room(301)
    bench.gate.promise("run", 100)
    assert not bench.gate.has_room(201)
    assert bench.pools["prefix"].entries == [300]


# Giving back.


def test_the_cheapest_is_given_back_first_one_unit_at_a_time_until_it_fits():
    bench = Bench()
    for name in STEPS:
        for size in (40, 41):
            bench.pools[name].keep(size)
    bench.account.take(100)
    bench.account.drop(100)  # 705 held, 100 of them by the allocator
    with capture_logs() as logs:
        assert bench.gate.ask(316).fits  # 195 are left below the peak; three of them have 121
    kept = {name: pool.entries for name, pool in bench.pools.items()}
    assert kept == {key: [40, 41] for key in STEPS} | {"guests": [], "prefix": [41]}
    said = [(line["step"], line["bytes"]) for line in logs if line["event"] == "memory.reclaimed"]
    assert [step for step, _ in said if step != "allocator"] == ["guests", "guests", "prefix"]
    assert said[0] == ("allocator", 100)
    assert {line["peak"] for line in logs} == {PEAK} and logs[0]["held"] == 605
    assert bench.gate.reclaimed["guests"] == 81 and bench.gate.reclaimed["prefix"] == 40


def test_all_is_given_back_before_a_request_waits():
    bench = Bench()
    for name in STEPS:
        bench.pools[name].keep(20)
    bench.account.take(400)
    assert bench.gate.ask(201).kind == "wait"
    assert not any(pool.entries for pool in bench.pools.values())
    assert bench.gate.ask(200).fits


def test_giving_back_is_bounded(monkeypatch: pytest.MonkeyPatch):
    class Liar:
        name = "liar"
        asked = 0

        def give_back(self, bytes_wanted: int) -> int:
            self.asked += 1
            return bytes_wanted

    monkeypatch.setattr(memory_gate, "RECLAIMED_AT_ONCE", 5)
    account, liar = Account(taken=WEIGHTS), Liar()
    gate = MemoryGate(account, account.limits, (liar,))
    account.take(500)
    assert gate.ask(200).kind == "wait"
    assert liar.asked == 5


def test_the_metrics_say_what_is_held_and_what_was_given_back():
    bench = Bench()
    bench.pools["prefix"].keep(500)
    bench.gate.ask(200)
    samples = {(s.name, *s.labels.values()): s.value for s in bench.gate.samples()}
    name = "tandem_worker_memory_bytes"
    assert samples[name, "held"] == bench.account.held()
    assert samples[name, "allocator_free"] == bench.account.cached
    assert samples[name, "free"] == bench.account.free()
    assert samples["tandem_worker_gate_reclaimed_bytes_total", "prefix"] == 500


ACTS = st.tuples(
    st.sampled_from(("admit", "piece", "grow", "end", "keep", "trial", "neighbour")),
    st.integers(0, 400),
    st.sampled_from(STEPS),
)


@given(st.lists(ACTS, max_size=60))
def test_the_sum_never_passes_the_peak_at_any_moment(acts):
    """`Account.take` checks each single byte taken, in whatever order things happen."""
    bench = Bench()
    account, gate = bench.account, bench.gate
    runs: dict[str, list[int]] = {}  # taken, still promised
    for number, (act, size, name) in enumerate(acts):
        first = next(iter(runs), None)
        if act == "admit" and gate.ask(size).fits:
            runs[f"{number}"] = [0, size]
            gate.promise(f"{number}", size)
        elif act == "piece" and first is not None:
            taken = min(size, runs[first][1])
            if account.free() - max(0, taken - account.cached) >= FLOOR:  # a neighbour may be there
                account.take(taken)
                runs[first][0] += taken
                runs[first][1] -= taken
                gate.promise(first, runs[first][1])
        elif act == "grow" and first is not None:
            if gate.ask(size + runs[first][1], owner=first).fits:
                account.take(size)
                runs[first][0] += size
        elif act == "end" and first is not None:
            account.drop(runs.pop(first)[0])
            gate.promise(first, 0)
        elif act == "keep" and size and gate.ask(size).fits:
            bench.pools[name].keep(size)
        elif act == "trial" and gate.has_room(size):
            account.take(size)
            account.drop(size)
        elif act == "neighbour":
            account.others = min(size, TOTAL - account.held())
    for run in list(runs):
        account.drop(runs.pop(run)[0])
        gate.promise(run, 0)
    account.others = 0
    assert gate.ask(gate.most_bytes).fits, "at rest, all of it may be taken again"


# Those that wait.


def test_at_most_eight_may_pass_one_that_waits():
    wait: MemoryWait[str] = MemoryWait()
    wait.add("large")
    for number in range(MOST_PASSES):
        assert wait.may_ask(f"small {number}")
        wait.started(f"small {number}")
    assert MOST_PASSES == 8
    assert not wait.may_ask("small 9"), "nobody passes any more"
    assert wait.may_ask("large")
    wait.started("large")
    assert wait.may_ask("small 9") and not len(wait)


def test_those_that_wait_are_asked_for_in_their_order_and_pass_each_other_too():
    wait: MemoryWait[str] = MemoryWait()
    for item in ("first", "second", "third"):
        wait.add(item)
    assert list(wait) == ["first", "second", "third"]
    wait.started("second")  # passes the first, not the third
    for number in range(MOST_PASSES - 1):
        wait.started(f"{number}")
    assert wait.may_ask("first") and not wait.may_ask("third") and not wait.may_ask("new")
    wait.remove("first")  # cancelled
    assert wait.may_ask("third") and wait.may_ask("new")
    wait.started("new")
    assert not wait.may_ask("newer"), "the third has been passed eight times by now"
    wait.remove("not there")
    assert list(wait) == ["third"]


def test_they_are_asked_for_when_something_ends_and_now_and_then():
    wait: MemoryWait[str] = MemoryWait()
    wait.saw_end()
    assert not wait.take_due(10.0), "nobody waits"
    wait.add("one")
    assert wait.take_due(10.0) and not wait.take_due(10.0)
    wait.saw_end()
    assert wait.take_due(10.1) and not wait.take_due(10.1)
    assert not wait.take_due(10.1 + RECHECK_S / 2)
    assert wait.take_due(10.1 + RECHECK_S)


# Limits.


def test_limits_are_shares_of_all_there_is_unless_they_are_set():
    assert limits_of(MemorySettings(), 1000 * MIB) == MemoryLimits(800 * MIB, 100 * MIB)
    set_both = MemorySettings(peak_mb=300, floor_mb=299)
    assert limits_of(set_both, 1000 * MIB) == MemoryLimits(300 * MIB, 299 * MIB)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peak_mb": -1}, "worker.memory.peak_mb is -1; it must be 0 (default) or more."),
        ({"floor_mb": -5}, "worker.memory.floor_mb is -5; it must be 0 (default) or more."),
        ({"floor_mb": 800}, "worker.memory.floor_mb is 800, not below worker.memory.peak_mb, which "
                            "is 800."),
        ({"peak_mb": 100}, "worker.memory.floor_mb is 100, not below worker.memory.peak_mb"),
        ({"peak_mb": 901}, "worker.memory.peak_mb is 901: with the 100 of worker.memory.floor_mb "
                           "it is more than the 1000 MiB there are."),
        ({"floor_mb": 201}, "worker.memory.peak_mb is 800: with the 201 of worker.memory.floor_mb"),
    ],
)  # fmt: skip
def test_limits_that_make_no_sense_are_refused(changes, words: str):
    with pytest.raises(StartFault, match=re.escape(words)):
        limits_of(MemorySettings(**changes), 1000 * MIB)


def test_weights_above_the_peak_are_said_at_the_start():
    with pytest.raises(StartFault, match=r"holds \d+ MiB before .* worker.memory.peak_mb is 16"):
        gate_of("cpu", MemorySettings(peak_mb=16, floor_mb=1), ())


# What is read of this machine.


def test_the_host_sees_a_tensor_when_it_is_taken_and_when_it_is_freed():
    probe, size = HostProbe(), 64 * MIB
    cache = allocator_cache("cpu", probe)
    cache.give_back(0)
    before = probe.held()
    tensor = torch.zeros(size // 4)
    assert probe.held() - before == pytest.approx(size, rel=0.1), "without a single value written"
    tensor.fill_(1.0)
    assert probe.held() - before == pytest.approx(size, rel=0.1)
    del tensor
    cache.give_back(0)
    assert probe.held() - before == pytest.approx(0, abs=4 * MIB)


def test_the_host_sees_small_tensors_freed_once_the_heap_is_trimmed():
    probe = HostProbe()
    cache = allocator_cache("cpu", probe)
    for size in (8 * MIB, 4 * MIB):  # glibc serves from the heap what is no larger than was freed
        torch.zeros(size // 4)
    cache.give_back(0)
    before = probe.held()
    tensors = [torch.zeros(2 * MIB // 4) for _ in range(32)]
    kept = tensors[-1:]  # the heap cannot shrink below it
    del tensors
    given = cache.give_back(0)
    assert given == pytest.approx(62 * MIB, rel=0.1)
    assert probe.held() - before == pytest.approx(2 * MIB, abs=4 * MIB)
    assert cache.give_back(0) == 0, "there is no more"
    del kept


def test_a_gate_over_this_process_admits_by_what_it_holds():
    limits = limits_of(MemorySettings(), HostProbe().total())
    gate = gate_of("cpu", MemorySettings(), ())
    assert gate.limits.peak_bytes == pytest.approx(limits.peak_bytes, rel=0.05)
    probe = HostProbe()
    cache = allocator_cache("cpu", probe)
    small = MemoryGate(probe, MemoryLimits(probe.held() + 96 * MIB, 0), (cache,))
    assert small.ask(64 * MIB).fits
    tensor = torch.zeros(64 * MIB // 4)
    assert small.ask(64 * MIB).kind == "wait"
    del tensor
    assert small.ask(64 * MIB).fits


def test_a_limit_of_the_process_itself_counts():
    unlimited = resource.getrlimit(resource.RLIMIT_AS)
    addresses = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    held = HostProbe().held()
    left = 256 * MIB
    try:
        resource.setrlimit(resource.RLIMIT_AS, (addresses + left, unlimited[1]))
        assert free_memory_bytes() == pytest.approx(left, abs=16 * MIB)
        assert memory_bytes() == pytest.approx(held + left, abs=16 * MIB)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, unlimited)
    assert free_memory_bytes() > 2 * left


@pytest.mark.parametrize(
    ("limit", "use", "statistics", "key"),
    [
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes",
            "memory/memory.stat", "total_inactive_file",
        ),
    ],
    ids=["v2", "v1"],
)  # fmt: skip
def test_a_container_has_what_its_limit_leaves_and_what_files_only_borrow(
    limit: str, use: str, statistics: str, key: str, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(machine_settings, "CGROUP", tmp_path)
    (tmp_path / "memory").mkdir()
    whole = memory_bytes()
    (tmp_path / limit).write_text("10000\n")
    (tmp_path / use).write_text("9000\n")
    assert (memory_bytes(), free_memory_bytes()) == (10_000, 1000)
    (tmp_path / statistics).write_text(f"file 8000\n{key} 5000\nactive_file 1\n")
    assert free_memory_bytes() == 6000
    (tmp_path / limit).write_text("9223372036854771712\n")  # how version 1 says: none
    assert memory_bytes() == whole
