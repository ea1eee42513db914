"""Counts of several gateway processes: one sum, whichever is asked; none ever falls."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.observe.metrics import FAMILIES, Values
from gateway.observe.shared import SharedMetrics, forget_all, metrics_file, read, retire
from tests.gateway.ledger.made import closed

BACKEND = ("b",)


def counting(folder: Path, number: int, in_flight: float = 0.0) -> SharedMetrics:
    """The metrics of a process that answers so many requests right now."""
    metrics = SharedMetrics(folder, number)
    metrics.sources = [lambda: [("in_flight", BACKEND, in_flight)]]
    return metrics


def note(metrics: SharedMetrics, count: int) -> None:
    for _ in range(count):
        metrics.note_closed(closed(backend="b", path="relay"))


def requests(values: Values) -> float:
    return sum(value for value in values["requests"].values() if not isinstance(value, list))


async def test_whoever_is_asked_shows_the_sum_of_all(tmp_path: Path) -> None:
    first, second = counting(tmp_path, 1, in_flight=2), counting(tmp_path, 2, in_flight=3)
    note(first, 5)
    note(second, 7)
    first.write()
    second.write()
    for metrics in (first, second):
        values = await metrics.shown()
        assert requests(values) == 12
        assert values["in_flight"] == {BACKEND: 5}
        assert values["tokens"][("b", "prompt")] == 12 * 100
        counts = values["request_ms"][BACKEND]
        assert isinstance(counts, list) and (sum(counts[:-1]), counts[-1]) == (12, 12_000)


async def test_what_one_has_shown_the_next_one_does_not_take_back(tmp_path: Path) -> None:
    """A scraper that meets another process at once would take a smaller count for a restart."""
    first, second = counting(tmp_path, 1), counting(tmp_path, 2)
    note(first, 5)
    assert requests(await first.shown()) == 5
    assert requests(await second.shown()) == 5


async def test_a_process_that_comes_back_counts_on_where_the_dead_one_stood(tmp_path: Path) -> None:
    dead, other = counting(tmp_path, 1, in_flight=4), counting(tmp_path, 2)
    note(dead, 5)
    dead.write()
    retire(metrics_file(tmp_path, 1))
    assert (await other.shown())["in_flight"] == {BACKEND: 0}
    assert requests(await other.shown()) == 5
    back = counting(tmp_path, 1, in_flight=1)
    note(back, 2)
    for metrics in (back, other):
        values = await metrics.shown()
        assert (requests(values), values["in_flight"]) == (7, {BACKEND: 1})


async def test_a_process_killed_before_it_was_retired_hands_on_no_gauge(tmp_path: Path) -> None:
    dead = counting(tmp_path, 1, in_flight=4)
    dead.sources.append(lambda: [("ledger_waiting", (), 9.0)])
    dead.write()
    assert (await counting(tmp_path, 1).shown())["ledger_waiting"] == {}


async def test_files_are_written_again_and_again_for_the_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.observe.shared.WRITE_S", 0.01)
    metrics = counting(tmp_path, 1)
    file = metrics_file(tmp_path, 1)
    task = asyncio.create_task(metrics.keep_written())
    for count in (3, 6):
        note(metrics, 3)
        async with asyncio.timeout(5):
            while not file.exists() or requests({"requests": {}, **read(file)}) < count:
                await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


async def test_a_disk_that_refuses_costs_the_file_and_not_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.observe.shared.WRITE_S", 0.01)
    folder = tmp_path / "run"
    metrics = counting(folder, 1)  # which is not there yet
    task = asyncio.create_task(metrics.keep_written())
    with capture_logs() as logs:
        async with asyncio.timeout(5):
            while not logs:
                await asyncio.sleep(0.005)
            folder.mkdir()
            while not metrics_file(folder, 1).exists():
                await asyncio.sleep(0.005)
    assert [entry["event"] for entry in logs] == ["metrics.not_written"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_process_that_has_left_the_folder_counts_for_itself(tmp_path: Path) -> None:
    """Its parent is gone, and the next one begins at zero in the same folder."""
    orphan = counting(tmp_path, 1)
    note(orphan, 5)
    orphan.write()
    orphan.leave()
    forget_all(tmp_path)
    heir = counting(tmp_path, 2)
    note(heir, 1)
    note(orphan, 1)
    orphan.write()
    assert requests(await heir.shown()) == 1
    assert requests(await orphan.shown()) == 6


def test_every_family_survives_its_file(tmp_path: Path) -> None:
    metrics = counting(tmp_path, 1)
    samples: Values = {
        family.name: {tuple(family.labels): [1.0, 2.0] if family.kind == "histogram" else 1.0}
        for family in FAMILIES
    }
    metrics.values = lambda: samples  # type: ignore[method-assign]
    metrics.write()
    assert read(metrics_file(tmp_path, 1)) == samples
