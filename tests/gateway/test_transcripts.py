"""Transcripts: a file a session, closed to others, deleted in time."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway import transcripts
from gateway.background import Background
from gateway.transcripts import DAY_MS, PRUNE_EVERY_MS, Transcripts

NOW = 1_764_590_400_000


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background("transcripts")
    yield made
    made.close(60)


def test_blocks_of_a_session_stand_in_one_file(tmp_path: Path, background: Background) -> None:
    kept = Transcripts(tmp_path / "t", background, lambda: NOW)
    for block in ("one\n\n", "two\n\n"):
        kept.add(profile="coding", session="5e55", block=block, days=14)
    background.close(60)
    file = tmp_path / "t" / "coding" / "5e55.txt"
    assert file.read_text() == "one\n\ntwo\n\n"
    modes = [path.stat().st_mode & 0o777 for path in (file, file.parent, tmp_path / "t")]
    assert modes == [0o600, 0o700, 0o700]


def test_no_name_leads_out_of_the_folder(tmp_path: Path, background: Background) -> None:
    kept = Transcripts(tmp_path / "t", background, lambda: NOW)
    kept.add(profile="../../x", session="../y", block="b", days=1)
    background.close(60)
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert file.parent.parent == tmp_path / "t"


def test_files_go_when_nobody_wrote_to_them_for_so_long(
    tmp_path: Path, background: Background
) -> None:
    now = [NOW]
    kept = Transcripts(tmp_path, background, lambda: now[0])
    kept.add(profile="coding", session="old", block="b", days=2)
    kept.add(profile="other", session="old", block="b", days=2)
    now[0] += 2 * DAY_MS + 1
    kept.add(profile="coding", session="new", block="b", days=2)
    background.close(60)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.txt")) == [
        "coding/new.txt",
        "other/old.txt",
    ]


def test_they_are_looked_through_once_an_hour(tmp_path: Path, background: Background) -> None:
    now = [NOW]
    kept = Transcripts(tmp_path, background, lambda: now[0])
    kept.add(profile="coding", session="a", block="b", days=1)
    kept.add(profile="coding", session="b", block="b", days=0)
    now[0] += PRUNE_EVERY_MS - 1
    kept.add(profile="coding", session="c", block="b", days=0)
    background.close(60)
    assert len(list(tmp_path.rglob("*.txt"))) == 3


def test_a_session_does_not_fill_the_disk(
    tmp_path: Path, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcripts, "FILE_BYTES", 4)
    kept = Transcripts(tmp_path, background, lambda: NOW)
    for _ in range(3):
        kept.add(profile="p", session="s", block="abc", days=1)
    background.close(60)
    assert (tmp_path / "p" / "s.txt").read_text() == "abcabc"


def test_a_disk_that_takes_nothing_is_said(tmp_path: Path, background: Background) -> None:
    (tmp_path / "t").touch()
    kept = Transcripts(tmp_path / "t", background, lambda: NOW)
    with capture_logs() as logs:
        kept.add(profile="p", session="s", block="b", days=1)
        background.close(60)
    assert [line["event"] for line in logs] == ["transcript.not_written"]
