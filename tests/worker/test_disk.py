"""The disk tier: what is written, what a restart makes of it, and what is never used."""

import threading
from pathlib import Path

import pytest
from filed import (
    CHUNK,
    PROMPT,
    Clock,
    begin,
    disk_of,
    engine_of,
    file_all,
    files_in,
    put,
    source_of,
    states_equal,
    write,
)
from tiny_checkpoints import write_tiny

from proto.worker_settings import DiskSettings, SpillSettings
from worker.engine import Engine
from worker.limits import DISK_WRITES

NEXT = tuple(range(300, 340))
DISK = DiskSettings(min_hits=2)
DAY_S = 86_400


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    write_tiny(request.param, path)
    return path


def _is_hybrid(engine: Engine) -> bool:
    return engine.kept._side.cache.delta is not None


def _used(model: Path, folder: Path, clock: Clock | None = None, **disk: float) -> Engine:
    """An engine that three answers to one prompt were asked of, and that had time to write."""
    settings = DiskSettings(**{"min_hits": 2, **disk})
    engine = engine_of(model, folder, disk=settings, clock=clock)
    for _ in range(3):
        write(engine, PROMPT + NEXT)
    file_all(engine)
    return engine


def test_x12_a_killed_worker_starts_from_disk_with_the_same_bits_and_tokens(
    model: Path, tmp_path: Path
):
    engine = _used(model, tmp_path)
    ends = (len(PROMPT + NEXT) - 1) // CHUNK * CHUNK
    assert len(files_in(tmp_path)) == ends // CHUNK + _is_hybrid(engine)
    cold = engine_of(model, tmp_path / "none")
    other, early = PROMPT + NEXT[:30] + tuple(range(20)), PROMPT + tuple(range(200, 260))
    at_96 = 0 if _is_hybrid(engine) else 96  # where no state of delta layers is kept
    for prompt, start in ((PROMPT + NEXT, ends), (other, ends), (early, at_96)):
        again = engine_of(model, tmp_path, disk=DISK)
        one, two = begin(again, prompt), begin(cold, prompt, f"one {prompt[-1]}")
        assert one.start.position == start
        assert str(one.start.source) == ("disk" if start else "none")
        while two.kv_len < start:
            cold.read_chunk(two, two.plan.chunk_end(two.kv_len, len(prompt)))
        assert states_equal(one, two, start)
        assert one.lineage == two.lineage
        again.close(one)
        cold.close(two)
        again = engine_of(model, tmp_path, disk=DISK)
        assert write(again, prompt) == write(cold, prompt, f"two {prompt[-1]}")


def test_states_written_are_of_a_grid_that_cuts_belong_to(model: Path, tmp_path: Path):
    engine = engine_of(model, tmp_path, disk=DISK)
    for _ in range(3):
        write(engine, PROMPT, cuts=(70,))
    file_all(engine)
    again = engine_of(model, tmp_path, disk=DISK)
    assert source_of(again, PROMPT) == (("none", 0) if _is_hybrid(engine) else ("disk", 64))
    again = engine_of(model, tmp_path, disk=DISK)
    at_64 = ("none", 0) if _is_hybrid(engine) else ("disk", 64)
    assert source_of(again, PROMPT[:71]) == at_64  # its chunks do not end at 70
    again = engine_of(model, tmp_path, disk=DISK)
    slot = begin(again, PROMPT, cuts=(70,))
    assert (str(slot.start.source), slot.start.position) == ("disk", 96)
    cold = engine_of(model, tmp_path / "none")
    two = begin(cold, PROMPT, cuts=(70,))
    for end in (32, 64, 70, 96):
        cold.read_chunk(two, end)
    assert states_equal(slot, two, 96)


def test_what_a_slot_or_the_store_holds_as_well_is_not_read_from_disk(model: Path, tmp_path: Path):
    engine = _used(model, tmp_path)
    write(engine, PROMPT + NEXT)
    slot = begin(engine, PROMPT + NEXT)
    assert str(slot.start.source) in ("resident", "anchor")
    assert slot.start.position >= 128


def test_only_what_was_resumed_from_often_enough_is_written(model: Path, tmp_path: Path):
    engine = engine_of(model, tmp_path, disk=DiskSettings(min_hits=3))
    for _ in range(3):  # resumed from twice
        write(engine, PROMPT)
    assert file_all(engine) == 0 and files_in(tmp_path) == []
    write(engine, PROMPT)
    assert file_all(engine) == 3 + _is_hybrid(engine)
    write(engine, PROMPT)
    assert file_all(engine) == 0  # there already


def test_a_step_copies_one_chunk_and_few_wait_to_be_written(model: Path, tmp_path, monkeypatch):
    engine = engine_of(model, tmp_path, disk=DISK)
    for _ in range(3):
        write(engine, tuple(range(5, 300)))
    disk = disk_of(engine)
    gate, real, writes = threading.Event(), disk.folder.write, []

    def slow(name: str, *rest: object) -> int:
        writes.append(name)
        gate.wait(10)
        return real(name, *rest)

    monkeypatch.setattr(disk.folder, "write", slow)
    steps = [engine.file_away() for _ in range(DISK_WRITES + 2)]
    assert steps == [True] * DISK_WRITES + [False] * 2
    gate.set()
    file_all(engine)
    assert len(writes) == len(set(writes)) == 9 + _is_hybrid(engine)
    assert len(disk.folder) == 9 + _is_hybrid(engine)


def test_what_is_being_written_is_not_copied_again(model: Path, tmp_path: Path, monkeypatch):
    engine, prompt = engine_of(model, tmp_path, disk=DISK), tuple(range(5, 75))
    for _ in range(3):
        write(engine, prompt)
    gate, real = threading.Event(), disk_of(engine).folder.write
    monkeypatch.setattr(disk_of(engine).folder, "write", lambda *a: (gate.wait(10), real(*a))[1])
    steps = [engine.file_away() for _ in range(4)]
    assert steps.count(True) == 2 + _is_hybrid(engine) < DISK_WRITES
    write(engine, prompt)
    assert engine.file_away() is False
    gate.set()


def test_what_is_written_is_what_was_copied(model: Path, tmp_path: Path, monkeypatch):
    engine = engine_of(model, tmp_path, disk=DISK)
    for _ in range(3):
        write(engine, PROMPT)
    gate, real = threading.Event(), disk_of(engine).folder.write
    monkeypatch.setattr(disk_of(engine).folder, "write", lambda *a: (gate.wait(10), real(*a))[1])
    while engine.file_away():
        continue
    for first in (200, 250, 300, 350):  # in the same slots, over the same memory
        write(engine, tuple(range(first, first + 100)), f"{first}")
    gate.set()
    disk_of(engine).wait(10.0)
    one, cold = engine_of(model, tmp_path, disk=DISK), engine_of(model, tmp_path / "none")
    slot, two = begin(one, PROMPT), begin(cold, PROMPT)
    while two.kv_len < 96:
        cold.read_chunk(two, two.kv_len + CHUNK)
    assert str(slot.start.source) == "disk" and states_equal(slot, two, 96)


def test_rows_that_a_decode_wrote_are_not_written(model: Path, tmp_path: Path):
    engine = engine_of(model, tmp_path, disk=DISK)
    prompt = PROMPT
    for _ in range(4):
        prompt += tuple(write(engine, prompt, count=40))
    file_all(engine)
    again = engine_of(model, tmp_path, disk=DISK)
    slot = begin(again, prompt)
    assert slot.start.position == 96 and str(slot.start.source) == "disk"
    assert slot.lineage.grid == 96


def test_x12_any_damage_costs_only_speed(model: Path, tmp_path: Path):
    engine = _used(model, tmp_path)
    cold = write(engine_of(model, tmp_path / "none"), PROMPT + NEXT)
    for file in files_in(tmp_path / "disk"):
        whole = file.read_bytes()
        for damage in (whole[:-1], whole[:-9] + b"\x07" + whole[-8:], b""):
            put(file, damage)
            again = engine_of(model, tmp_path, disk=DISK)
            slot = begin(again, PROMPT + NEXT)
            assert slot.start.position < 128
            again.close(slot)
            assert disk_of(again).folder.removed == {"damaged": 1}
            assert not file.exists()
            assert write(engine_of(model, tmp_path, disk=DISK), PROMPT + NEXT) == cold
            put(file, whole)
    assert source_of(engine_of(model, tmp_path, disk=DISK), PROMPT + NEXT) == ("disk", 128)
    assert engine.free_slots == 2


def test_a_damaged_chunk_leaves_those_before_it(tmp_path: Path, tmp_path_factory):
    model = tmp_path_factory.mktemp("dense")
    write_tiny("llama", model)
    _used(model, tmp_path)
    newest_last = sorted(files_in(tmp_path / "disk"), key=lambda file: -file.stat().st_mtime)
    put(newest_last[2], newest_last[2].read_bytes()[:50])
    again = engine_of(model, tmp_path, disk=DISK)
    assert source_of(again, PROMPT + NEXT) == ("disk", 64)
    assert disk_of(again).folder.removed == {"damaged": 1}


def test_a_file_in_the_place_of_another_is_not_used(model: Path, tmp_path: Path):
    _used(model, tmp_path)
    one, two = [file for file in files_in(tmp_path / "disk") if ".rows." in file.name][:2]
    keep = one.read_bytes()
    put(one, two.read_bytes())
    put(two, keep)
    again = engine_of(model, tmp_path, disk=DISK)
    cold = write(engine_of(model, tmp_path / "none"), PROMPT + NEXT)
    assert write(again, PROMPT + NEXT) == cold
    assert disk_of(again).folder.removed["other"] >= 1


def test_other_weights_use_nothing_and_clear_the_folder(model: Path, tmp_path: Path):
    engine = _used(model, tmp_path)
    kind = "qwen3_5" if _is_hybrid(engine) else "llama"
    write_tiny(kind, tmp_path / "other", seed=1)
    there = len(files_in(tmp_path / "disk"))
    other = engine_of(tmp_path / "other", tmp_path, disk=DISK)
    assert source_of(other, PROMPT + NEXT) == ("none", 0)
    assert disk_of(other).folder.removed == {"fingerprint": there}
    assert files_in(tmp_path / "disk") == []


def test_one_salt_never_starts_from_what_another_left(model: Path, tmp_path: Path):
    _used(model, tmp_path)
    again = engine_of(model, tmp_path, disk=DISK)
    assert source_of(again, PROMPT + NEXT, "b") == ("none", 0)
    few = PROMPT[:40] + tuple(range(400, 480))
    assert source_of(again, few, "a") == ("none", 0)  # 32 tokens are not worth reading a file
    assert source_of(again, PROMPT + NEXT, "a") == ("disk", 128)


def test_what_one_salt_resumes_from_is_not_copied_from_another(model: Path, tmp_path: Path):
    engine = engine_of(model, tmp_path, disk=DISK)
    for _ in range(3):
        write(engine, PROMPT, "a")
    write(engine, PROMPT, "b")
    write(engine, tuple(range(200, 300)), "c")  # in the slot that was that of a
    engine.clear_kept(frozenset(("session",)))
    assert file_all(engine) == 0 and files_in(tmp_path) == []


def test_files_go_when_they_are_old_unless_they_are_used(model: Path, tmp_path: Path):
    clock = Clock()
    _used(model, tmp_path, clock, ttl_d=2.0)
    there = len(files_in(tmp_path / "disk"))
    for _ in range(3):
        clock.now += 1.5 * DAY_S
        again = engine_of(model, tmp_path, disk=DiskSettings(ttl_d=2.0), clock=clock)
        assert source_of(again, PROMPT + NEXT) == ("disk", 128)
    clock.now += 2.5 * DAY_S
    assert again.file_away() is False
    assert files_in(tmp_path / "disk") == []
    assert disk_of(again).folder.removed == {"old": there}


def test_a_full_folder_loses_the_ends_of_chains_first(tmp_path: Path, tmp_path_factory):
    model = tmp_path_factory.mktemp("dense")
    write_tiny("llama", model)
    _used(model, tmp_path)
    size = max(file.stat().st_size for file in files_in(tmp_path / "disk"))
    assert source_of(engine_of(model, tmp_path, disk=DISK), PROMPT + NEXT) == ("disk", 128)
    room = DiskSettings(max_gb=2.5 * size / 1e9)
    again = engine_of(model, tmp_path, disk=room)
    assert source_of(again, PROMPT + NEXT) == ("disk", 64)
    assert disk_of(again).folder.removed == {"room": 2}
    other = tuple(range(200, 300))
    for _ in range(3):
        write(again, other)
    file_all(again)
    assert disk_of(again).skipped == {"too_large": 1}  # the third chunk, told from its copy
    assert sum(file.stat().st_size for file in files_in(tmp_path / "disk")) <= 2.5 * size


def test_a_folder_that_cannot_be_written_stops_nothing(model: Path, tmp_path: Path):
    (tmp_path / "disk").touch()
    engine = engine_of(model, tmp_path, disk=DISK)
    written = [write(engine, PROMPT) for _ in range(3)]
    assert written[0] == written[1] == written[2]
    file_all(engine)
    assert disk_of(engine).folder.not_written == 3 + _is_hybrid(engine)
    assert write(engine, PROMPT) == written[0]


def test_off_means_that_nothing_is_written(model: Path, tmp_path: Path):
    engine = engine_of(model, tmp_path, spill=SpillSettings(enabled=False))
    for _ in range(4):
        write(engine, PROMPT)
    assert engine.file_away() is False
    engine.stop()
    assert files_in(tmp_path) == []


def test_operators_see_the_files_and_can_drop_them(model: Path, tmp_path: Path):
    engine = _used(model, tmp_path)
    files = files_in(tmp_path / "disk")
    facts = engine.cache_facts()
    assert facts.entries["disk"] == len(files)
    assert facts.size_bytes["disk"] == sum(file.stat().st_size for file in files)
    assert (facts.evictions["disk"], facts.skipped["disk_not_written"]) == (0, 0)
    assert "spill" not in facts.entries
    put(files[0], b"")
    again = engine_of(model, tmp_path, disk=DISK)
    write(again, PROMPT + NEXT)
    assert again.cache_facts().skipped["disk_damaged"] == 1
    left = files_in(tmp_path / "disk")
    assert again.clear_kept(frozenset(("slot", "spill"))) > 0 and files_in(tmp_path) == left
    size_bytes = sum(file.stat().st_size for file in left)
    assert again.clear_kept(frozenset(("disk",))) == size_bytes
    assert files_in(tmp_path) == [] and source_of(again, PROMPT + NEXT) == ("none", 0)


def test_without_memory_for_a_copy_nothing_is_written_or_read(model: Path, tmp_path: Path):
    engine = engine_of(model, tmp_path, disk=DISK)
    for _ in range(3):
        write(engine, PROMPT)
    engine.kept._has_host_room = lambda size_bytes: False
    assert file_all(engine) == 0 and files_in(tmp_path) == []
    engine.kept._has_host_room = lambda size_bytes: True
    assert file_all(engine) == 3 + _is_hybrid(engine)
    again = engine_of(model, tmp_path, disk=DISK)
    again.kept._has_host_room = lambda size_bytes: size_bytes < again.cache_bytes(96)
    assert source_of(again, PROMPT) == ("none", 0)
    assert disk_of(again).skipped == {"memory": 1}
