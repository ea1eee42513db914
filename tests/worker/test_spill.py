"""The spill: conversations that outlive a planned stop."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from decoding import read, write_on
from filed import (
    PROMPT,
    TAIL,
    Clock,
    begin,
    engine_of,
    file_all,
    files_in,
    put,
    source_of,
    spill_of,
    states_equal,
    write,
)
from structlog.testing import capture_logs
from tiny_checkpoints import write_tiny
from tiny_drafter import write_drafter

from proto.worker_settings import (
    BlockSettings,
    CacheSettings,
    DiskSettings,
    DraftSettings,
    LookupSettings,
    SpillSettings,
)
from worker.draft.block import BlockDrafter
from worker.engine import Engine
from worker.faults import StartFault
from worker.state.keeping import keeping_of

SPILL = SpillSettings()
NEXT = tuple(range(300, 320))
HOUR_S = 3_600


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    write_tiny(request.param, path)
    return path


def _turn(engine: Engine, prompt: tuple[int, ...], salt: str = "a") -> tuple[int, ...]:
    """A prompt, its answer, and what is asked next."""
    return (*prompt, *write(engine, prompt, salt), *NEXT)


def _stopped(model: Path, folder: Path, **more: object) -> tuple[int, ...]:
    """A conversation that a planned stop wrote; its next prompt."""
    engine = engine_of(model, folder, spill=SPILL, **more)
    prompt = _turn(engine, PROMPT)
    engine.stop()
    return prompt


def test_x12_a_stopped_worker_goes_on_where_it_was(model: Path, tmp_path: Path):
    stays, prompt = engine_of(model, tmp_path / "none"), _stopped(model, tmp_path)
    assert _turn(stays, PROMPT) == prompt
    [file] = files_in(tmp_path / "spill")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    again = engine_of(model, tmp_path, spill=SPILL)
    one, two = begin(again, prompt), begin(stays, prompt)
    kept = len(PROMPT) + TAIL - 1
    assert (str(one.start.source), one.start.position) == ("spill", kept)
    assert two.start.position == kept and states_equal(one, two, kept)
    assert (one.lineage, one.start.exactness) == (two.lineage, two.start.exactness)
    assert files_in(tmp_path) == []  # it is in memory now
    written = [read(again, one), *write_on(again, one, 20)]
    assert written == [read(stays, two), *write_on(stays, two, 20)]
    cold = begin(engine_of(model, tmp_path / "none"), prompt)
    assert cold.start.position == 0


def test_the_same_tokens_as_from_the_first_token_on(model: Path, tmp_path: Path):
    prompt = _stopped(model, tmp_path)
    cold = write(engine_of(model, tmp_path / "none"), prompt)
    assert write(engine_of(model, tmp_path, spill=SPILL), prompt) == cold


def test_a_second_stop_writes_what_was_loaded_and_gone_on_with(model: Path, tmp_path: Path):
    prompt = _stopped(model, tmp_path)
    engine = engine_of(model, tmp_path, spill=SPILL)
    prompt = _turn(engine, prompt)
    engine.stop()
    again = engine_of(model, tmp_path, spill=SPILL)
    assert source_of(again, prompt) == ("spill", len(prompt) - len(NEXT) - 1)


def test_slots_and_stored_conversations_are_written_by_latest_use(model: Path, tmp_path: Path):
    engine = engine_of(model, tmp_path, spill=SPILL)
    prompts = [
        _turn(engine, tuple(range(first, first + 90)), salt) for first, salt in zip(
            (10, 110, 210, 310), "abcd", strict=True
        )
    ]  # fmt: skip
    engine.stop()
    sizes = [file.stat().st_size for file in files_in(tmp_path / "spill")]
    assert len(sizes) == 4
    narrow = replace(SPILL, max_gb=2.2 * max(sizes) / 1e9)
    again = engine_of(model, tmp_path, spill=SPILL)
    for prompt, salt in zip(prompts, "abcd", strict=True):
        assert source_of(again, prompt, salt)[0] == "spill"
    # With room for two, the two that were used last are there.
    engine = engine_of(model, tmp_path / "narrow", spill=narrow)
    for first, salt in zip((10, 110, 210, 310), "abcd", strict=True):
        _turn(engine, tuple(range(first, first + 90)), salt)
    engine.stop()
    assert spill_of(engine).skipped == {"room": 2}
    again = engine_of(model, tmp_path / "narrow", spill=narrow)
    sources = [source_of(again, p, s)[0] for p, s in zip(prompts, "abcd", strict=True)]
    assert sources == ["none", "none", "spill", "spill"]


def test_the_next_start_keeps_those_used_last_too(model: Path, tmp_path: Path):
    engine = engine_of(model, tmp_path, spill=SPILL)
    prompts = [
        _turn(engine, tuple(range(first, first + 90)), salt)
        for first, salt in ((10, "a"), (110, "b"), (210, "c"), (310, "d"))
    ]
    engine.stop()
    size_bytes = sum(file.stat().st_size for file in files_in(tmp_path))
    narrow = replace(SPILL, max_gb=0.6 * size_bytes / 1e9)
    again = engine_of(model, tmp_path, spill=narrow)
    sources = [source_of(again, p, s)[0] for p, s in zip(prompts, "abcd", strict=True)]
    assert sources == ["none", "none", "spill", "spill"]


def test_what_went_on_in_a_slot_is_not_written_a_second_time(model: Path, tmp_path: Path):
    engine = engine_of(model, tmp_path, spill=SPILL)
    prompt = _turn(engine, PROMPT)
    for first in (210, 310):  # its slot is taken, and it goes to the store
        _turn(engine, tuple(range(first, first + 90)), f"{first}")
    assert source_of(engine, prompt)[0] == "session"
    _turn(engine, prompt)
    engine.stop()
    is_hybrid = engine.kept._side.cache.delta is not None
    # Of delta layers the shorter one has a state that the longer one has not.
    assert len(files_in(tmp_path)) == 3 + is_hybrid


def test_writing_ends_with_its_time(model: Path, tmp_path: Path):
    engine = engine_of(model, tmp_path, spill=replace(SPILL, time_s=0.0))
    _turn(engine, PROMPT)
    with capture_logs() as logs:
        engine.stop()
    assert files_in(tmp_path) == [] and spill_of(engine).skipped == {"time": 1}
    [entry] = [entry for entry in logs if entry["event"] == "spill.written"]
    assert (entry["conversations"], entry["skipped"]) == (0, 1)


def test_a_write_that_would_not_end_in_time_is_not_begun(model: Path, tmp_path: Path, monkeypatch):
    clock = Clock()
    engine = engine_of(model, tmp_path, spill=replace(SPILL, time_s=10.0), clock=clock)
    for first, salt in ((10, "a"), (210, "b")):
        _turn(engine, tuple(range(first, first + 90)), salt)
    real = spill_of(engine).folder.write

    def slow(*arguments: object) -> int:
        clock.now += 6.0
        return real(*arguments)

    monkeypatch.setattr(spill_of(engine).folder, "write", slow)
    engine.stop()
    assert len(files_in(tmp_path)) == 1 and spill_of(engine).skipped == {"time": 1}


def test_a_prompt_that_only_begins_alike_leaves_the_conversation_where_it_is(
    model: Path, tmp_path: Path
):
    engine, long = engine_of(model, tmp_path, spill=SPILL), tuple(range(5, 205))
    prompt = _turn(engine, long)
    engine.stop()
    again = engine_of(model, tmp_path, spill=SPILL)
    assert source_of(again, long[:90] + tuple(range(400, 480))) == ("none", 0)
    assert source_of(again, prompt, "b") == ("none", 0)  # nor does another tenant find it
    assert len(files_in(tmp_path)) == 1
    assert source_of(again, prompt)[0] == "spill"


def test_x12_any_damage_costs_only_speed(model: Path, tmp_path: Path):
    prompt = _stopped(model, tmp_path)
    [file] = files_in(tmp_path)
    whole = file.read_bytes()
    cold = write(engine_of(model, tmp_path / "none"), prompt)
    data = 8 + int.from_bytes(whole[:8], "little")
    for place in (3, 20, data, data + 100, (data + len(whole)) // 2, len(whole) - 1):
        put(file, whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        again = engine_of(model, tmp_path, spill=SPILL)
        assert write(again, prompt) == cold
        assert spill_of(again).folder.removed == {"damaged": 1}
        assert files_in(tmp_path) == []
    put(file, whole[: len(whole) // 3])
    again = engine_of(model, tmp_path, spill=SPILL)
    assert write(again, prompt) == cold
    assert spill_of(again).folder.removed == {"damaged": 1}


def test_other_weights_use_nothing(model: Path, tmp_path: Path):
    prompt = _stopped(model, tmp_path)
    kind = "llama" if "llama" in model.name else "qwen3_5"
    write_tiny(kind, tmp_path / "other", seed=1)
    other = engine_of(tmp_path / "other", tmp_path, spill=SPILL)
    assert source_of(other, prompt) == ("none", 0)
    assert spill_of(other).folder.removed == {"fingerprint": 1}


def test_conversations_are_forgotten_after_a_day(model: Path, tmp_path: Path):
    clock = Clock()
    prompt = _stopped(model, tmp_path, clock=clock)
    clock.now += 25 * HOUR_S
    again = engine_of(model, tmp_path, spill=SPILL, clock=clock)
    assert source_of(again, prompt) == ("none", 0) and files_in(tmp_path) == []
    prompt = _stopped(model, tmp_path, clock=clock)
    again = engine_of(model, tmp_path, spill=SPILL, clock=clock)
    clock.now += 25 * HOUR_S  # while the worker runs
    assert source_of(again, prompt) == ("none", 0) and files_in(tmp_path) == []
    assert spill_of(again).folder.removed == {"old": 1}


def test_the_longest_of_disk_and_spill_is_taken_and_the_disk_when_both_are_as_long(
    model: Path, tmp_path: Path
):
    engine = engine_of(model, tmp_path, disk=DiskSettings(min_hits=1), spill=SPILL)
    write(engine, PROMPT)
    prompt = _turn(engine, PROMPT)
    while engine.file_away():
        continue
    engine.stop()
    again = engine_of(model, tmp_path, disk=DiskSettings(), spill=SPILL)
    assert source_of(again, prompt) == ("spill", len(prompt) - len(NEXT) - 1)
    again = engine_of(model, tmp_path, disk=DiskSettings(), spill=SPILL)
    assert source_of(again, prompt) == ("disk", 96)  # the other is gone


def test_without_memory_for_a_copy_nothing_is_written_or_read(model: Path, tmp_path: Path):
    prompt = _stopped(model, tmp_path)
    again = engine_of(model, tmp_path, spill=SPILL)
    asked: list[int] = []
    again.kept._has_host_room = lambda size_bytes: asked.append(size_bytes)
    assert source_of(again, prompt) == ("none", 0)
    assert asked[0] == again.cache_bytes(len(PROMPT) + TAIL - 1)
    assert spill_of(again).skipped == {"memory": 1} and len(files_in(tmp_path)) == 1
    write(again, prompt)
    again.stop()
    assert spill_of(again).skipped == {"memory": 3} and len(files_in(tmp_path)) == 1


def test_of_two_that_spare_as_much_the_one_on_disk_is_read(model: Path, tmp_path: Path):
    prompt = tuple(range(5, 101))  # three whole chunks
    engine = engine_of(model, tmp_path, disk=DiskSettings(min_hits=1))
    for _ in range(2):
        write(engine, prompt + NEXT)
    file_all(engine)
    engine = engine_of(model, tmp_path, spill=SPILL)
    write(engine, prompt, count=1)
    engine.stop()
    again = engine_of(model, tmp_path, disk=DiskSettings(), spill=SPILL)
    assert source_of(again, prompt + NEXT) == ("disk", 96)
    assert len(files_in(tmp_path / "spill")) == 1
    alone = engine_of(model, tmp_path, spill=SPILL)
    assert source_of(alone, prompt + NEXT) == ("spill", 96)


# Drafters.


def _drafted(folder: Path) -> dict[str, object]:
    return {"draft": DraftSettings(LookupSettings(), BlockSettings(str(folder)))}


def _block_of(engine: Engine, slot_prompt: tuple[int, ...]) -> tuple[BlockDrafter, list[int]]:
    slot = begin(engine, slot_prompt)
    block = next(one for one in slot.drafting._drafters if isinstance(one, BlockDrafter))
    written = [read(engine, slot), *write_on(engine, slot, 10)]
    return block, written


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dense")
    write_tiny("llama", path)
    return path


def test_a_drafters_rows_outlive_the_stop_too(dense: Path, tmp_path: Path):
    write_drafter(tmp_path / "drafter")
    drafted = _drafted(tmp_path / "drafter")
    prompt = _stopped(dense, tmp_path, **drafted)
    stays = engine_of(dense, tmp_path / "none", **drafted)
    _turn(stays, PROMPT)
    (one, written), (two, same) = (
        _block_of(engine, prompt)
        for engine in (engine_of(dense, tmp_path, spill=SPILL, **drafted), stays)
    )
    assert written == same
    assert one._length == two._length == len(prompt) + 10
    for mine, theirs in zip(one.freeze(), two.freeze(), strict=True):
        assert torch.equal(mine, theirs)


def test_rows_of_another_drafter_are_not_used(dense: Path, tmp_path: Path):
    write_drafter(tmp_path / "drafter")
    prompt = _stopped(dense, tmp_path, **_drafted(tmp_path / "drafter"))
    write_drafter(tmp_path / "other", block_size=4)
    drafted = _drafted(tmp_path / "other")
    again = engine_of(dense, tmp_path, spill=SPILL, **drafted)
    block, written = _block_of(again, prompt)
    assert written == write(engine_of(dense, tmp_path / "none"), prompt)[:11]
    assert block.freeze() == ()


def test_a_drafter_without_its_rows_guesses_nothing_until_a_prompt_is_read_whole(
    dense: Path, tmp_path: Path
):
    write_drafter(tmp_path / "drafter")
    drafted = _drafted(tmp_path / "drafter")
    engine = engine_of(dense, tmp_path, disk=DiskSettings(min_hits=1), **drafted)
    for _ in range(2):
        write(engine, PROMPT)
    while engine.file_away():
        continue
    engine.kept.files.disk.wait(10.0)
    engine.file_away()
    again = engine_of(dense, tmp_path, disk=DiskSettings(min_hits=1), **drafted)
    slot = begin(again, PROMPT)
    assert str(slot.start.source) == "disk"
    block = next(one for one in slot.drafting._drafters if isinstance(one, BlockDrafter))
    written = [read(again, slot), *write_on(again, slot, TAIL - 1)]
    assert written == write(engine_of(dense, tmp_path / "none"), PROMPT)
    assert block.propose(slot.ctx, 4, slot.chooser) is None
    assert block.freeze() == () and block._length == 0
    frozen = slot.freeze()
    slot.thaw(frozen)
    assert block.freeze() == ()
    write_on(again, slot, 3)
    assert block.propose(slot.ctx, 4, slot.chooser) is None
    again.close(slot)
    # The next turn in the same slot lacks them as well; a new sequence does not.
    turn = tuple(slot.ctx) + NEXT
    slot = begin(again, turn)
    read(again, slot)
    assert slot.start.position > 96 and block.propose(slot.ctx, 4, slot.chooser) is None
    again.close(slot)
    block.start("a")
    assert block.freeze()[0].shape[2] == 0


# Settings.


@pytest.mark.parametrize("name", ["max_gb", "ttl_d", "ttl_h", "time_s", "min_hits"])
def test_numbers_that_make_no_sense_are_refused(name: str):
    for bad in (-1, float("nan"), float("inf")):
        for part, settings in (("disk", DiskSettings()), ("spill", SpillSettings())):
            if hasattr(settings, name):
                changed = CacheSettings(**{part: replace(settings, **{name: bad})})
                with pytest.raises(StartFault, match=rf"worker\.cache\.{part}\.{name}"):
                    keeping_of(changed, is_cuda=False)
    with pytest.raises(StartFault, match="min_hits"):
        keeping_of(CacheSettings(disk=DiskSettings(min_hits=0)), is_cuda=False)


def test_a_spill_that_is_off_writes_nothing(model: Path, tmp_path: Path):
    engine = engine_of(model, tmp_path, spill=replace(SPILL, enabled=False))
    _turn(engine, PROMPT)
    engine.stop()
    assert files_in(tmp_path) == [] and not os.listdir(tmp_path)
