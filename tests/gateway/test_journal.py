"""The journal: lines in day files, written behind everyone's back; and its verbs."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from conductor.ports import Journal as JournalPort
from conductor.types import JournalLine
from gateway import journal_verbs
from gateway.background import Background
from gateway.cli import main
from gateway.journal import EXCERPT_CHARS, DayFiles, Journal, JournalHead
from gateway.settings.types import JournalSettings

NOON = 1_764_590_400_000  # 2025-12-01T12:00:00Z
DAY_MS = 86_400_000
HEAD = JournalHead("req-1", "5e55", "coding", "c0ffee")
LINE = JournalLine("monitor_act", "period", "D1", "act", {"tokens": 900, "period": 3}, 4)


class Clock:
    """The time, as the test wants it."""

    def __init__(self) -> None:
        self.now_ms = NOON

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background("journal")
    yield made
    made.close(60)


def journal_in(
    folder: Path, background: Background, clock: Clock | None = None, **settings: Any
) -> Journal:
    return Journal(folder, JournalSettings(**settings), background, clock or Clock())


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_says_everything_and_nothing_twice(tmp_path: Path, background: Background) -> None:
    journal = journal_in(tmp_path / "j", background).of(HEAD)
    port: JournalPort = journal
    port.emit(LINE)
    journal.head = JournalHead("req-2")
    port.emit(JournalLine("config"))
    background.close(60)
    assert lines_of(tmp_path / "j" / "journal-2025-12-01.jsonl") == [
        {
            "ts": "2025-12-01T12:00:00.000Z", "request_id": "req-1", "session": "5e55",
            "profile": "coding", "config_rev": "c0ffee", "event": "monitor_act", "task": "D1",
            "mode": "act", "reason": "period", "numbers": {"tokens": 900, "period": 3}, "ms": 4,
        },
        {"ts": "2025-12-01T12:00:00.000Z", "request_id": "req-2", "event": "config"},
    ]  # fmt: skip


def test_nobody_else_may_read_it(tmp_path: Path, background: Background) -> None:
    journal_in(tmp_path / "j", background).emit(HEAD, LINE)
    background.close(60)
    (file,) = (tmp_path / "j").iterdir()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_folder_of_the_operator_s_keeps_its_mode(tmp_path: Path, background: Background) -> None:
    tmp_path.chmod(0o750)
    journal_in(tmp_path, background).emit(HEAD, LINE)
    background.close(60)
    assert tmp_path.stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("is_on", [False, True])
def test_text_is_written_only_where_it_is_wanted(
    tmp_path: Path, background: Background, is_on: bool
) -> None:
    journal = journal_in(tmp_path, background, log_content=is_on)
    journal.of(HEAD).emit(LINE, excerpt="secret plans " * 20)
    background.close(60)
    (file,) = tmp_path.iterdir()
    (line,) = lines_of(file)
    assert line.get("excerpt") == (("secret plans " * 20)[:EXCERPT_CHARS] if is_on else None)
    assert ("secret" in file.read_text()) is is_on


def test_a_disk_that_takes_nothing_costs_lines_and_is_said_once_a_minute(
    tmp_path: Path, background: Background
) -> None:
    folder = tmp_path / "j"
    folder.write_text("in the way")
    clock = Clock()
    journal = journal_in(folder, background, clock)
    with capture_logs() as logs:
        for passed_ms in (0, 59_999, 1):
            clock.now_ms += passed_ms
            journal.emit(HEAD, LINE)
        background.close(60)
    assert [line["event"] for line in logs] == ["journal.not_written"] * 2


# -- files -----------------------------------------------------------------------------------------


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_full_file_is_followed_by_the_next(tmp_path: Path) -> None:
    files = DayFiles(tmp_path, rotate_bytes=10, days=3)
    for _ in range(5):
        files.append(NOON, b"12345\n")
    files.close()
    again = DayFiles(tmp_path, rotate_bytes=10, days=3)  # after a restart
    again.append(NOON, b"12345\n")
    again.close()
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {
        "journal-2025-12-01.jsonl": 12,
        "journal-2025-12-01.1.jsonl": 12,
        "journal-2025-12-01.2.jsonl": 12,
    }


def test_every_day_has_its_file_and_old_ones_go(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / "journal-2025-02-31.jsonl").touch()  # no day
    files = DayFiles(tmp_path, rotate_bytes=10, days=2)
    for day in range(4):
        files.append(NOON + day * DAY_MS, b"12345678901\n")
        files.append(NOON + day * DAY_MS, b"1\n")
    files.close()
    assert names(tmp_path) == [
        "journal-2025-02-31.jsonl",
        "journal-2025-12-03.1.jsonl",
        "journal-2025-12-03.jsonl",
        "journal-2025-12-04.1.jsonl",
        "journal-2025-12-04.jsonl",
        "notes.txt",
    ]


def test_a_file_or_folder_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    files = DayFiles(tmp_path / "j", rotate_bytes=100, days=2)
    files.append(NOON, b"1\n")
    (tmp_path / "j" / "journal-2025-12-01.jsonl").unlink()
    (tmp_path / "j").rmdir()
    files.append(NOON, b"2\n")
    files.close()
    assert (tmp_path / "j" / "journal-2025-12-01.jsonl").read_bytes() == b"2\n"


def test_several_processes_write_to_one_file(tmp_path: Path) -> None:
    one, other = (DayFiles(tmp_path, rotate_bytes=7, days=2) for _ in range(2))
    for files, data in ((one, b"1\n"), (other, b"2\n"), (one, b"3333\n"), (other, b"4\n")):
        files.append(NOON, data)
    one.close()
    other.close()
    assert (tmp_path / "journal-2025-12-01.jsonl").read_bytes() == b"1\n2\n3333\n"
    assert (tmp_path / "journal-2025-12-01.1.jsonl").read_bytes() == b"4\n"


# -- verbs -----------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path, background: Background, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration whose journal has lines of two days. It is 13 o'clock on the second."""
    file = tmp_path / "tandem.yaml"
    file.write_text(f"worker: {{}}\nserver: {{state_dir: {tmp_path}/state}}\n")
    clock = Clock()
    journal = journal_in(tmp_path / "state" / "journal", background, clock)
    journal.emit(HEAD, replace(LINE, task="E1", numbers={}, ms=None))
    clock.now_ms += DAY_MS
    journal.emit(replace(HEAD, session="7a11"), LINE, "shown")
    journal.emit(HEAD, JournalLine("class", numbers={"margin": 0.5}))
    background.close(60)
    with (tmp_path / "state" / "journal" / "journal-2025-12-02.jsonl").open("a") as torn:
        torn.write('[1]\n{"ts": "2025-')
    now = datetime(2025, 12, 2, 13, tzinfo=UTC)
    monkeypatch.setattr(journal_verbs, "_now", lambda: now)
    monkeypatch.setenv("TZ", "UTC")
    return file


def printed(config: Path, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["journal", *words, "--config", str(config)]) == 0
    return capsys.readouterr().out.splitlines()


def test_tail_prints_the_last_lines(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(config, capsys, "tail") == [
        "2025-12-01T12:00:00.000Z req-1 5e55 monitor_act E1 act period",
        "2025-12-02T12:00:00.000Z req-1 7a11 monitor_act D1 act period tokens=900 period=3 4 ms",
        "2025-12-02T12:00:00.000Z req-1 5e55 class margin=0.5",
    ]
    assert len(printed(config, capsys, "tail", "-n", "1")) == 1
    assert printed(config, capsys, "tail", "-n", "0") == []


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["--task", "D1"], 1),
        (["--session", "5e"], 2),
        (["--session", "5e", "--task", "D1"], 0),
        (["--since", "2025-12-02"], 2),
        (["--since", "2025-12-02T12:00:00+00:00"], 2),
        (["--since", "2025-12-02T12:01Z"], 0),
        (["--since", "59m"], 0),
        (["--since", "2h"], 2),
        (["--since", "2d"], 3),
    ],
)
def test_lines_are_filtered(
    config: Path, capsys: pytest.CaptureFixture[str], words: list[str], count: int
) -> None:
    assert len(printed(config, capsys, "tail", *words)) == count


def test_grep_finds_a_pattern_or_says_that_there_is_none(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(printed(config, capsys, "grep", "period|nothing")) == 2
    assert main(["journal", "grep", "absent", "--config", str(config)]) == 1
    assert capsys.readouterr().out == ""


def test_as_json_lines_are_as_they_stand(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = printed(config, capsys, "grep", '"class"', "--json")
    assert json.loads(line)["numbers"] == {"margin": 0.5}


@pytest.mark.parametrize("words", [["grep", "("], ["tail", "--since", "yesterday"]])
def test_a_word_that_is_not_understood_is_one_sentence(
    config: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["journal", *words, "--config", str(config)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_without_a_journal_there_are_no_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tandem.yaml"
    file.write_text(f"worker: {{}}\njournal: {{dir: {tmp_path}/none}}\n")
    assert printed(file, capsys, "tail") == []
    assert not os.path.exists(tmp_path / "none")


def test_an_excerpt_is_printed(
    tmp_path: Path, background: Background, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = journal_in(tmp_path / "j", background, log_content=True)
    journal.emit(HEAD, JournalLine("class"), "what is\nthis?")
    background.close(60)
    file = tmp_path / "tandem.yaml"
    file.write_text(f"worker: {{}}\njournal: {{dir: {tmp_path}/j}}\n")
    (line,) = printed(file, capsys, "tail")
    assert line.endswith(' class "what is\\nthis?"')
