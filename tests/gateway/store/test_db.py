"""How databases are opened."""

import os
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy.exc import DBAPIError, OperationalError

from gateway.store.db import (
    BadAddress,
    Database,
    DriverMissing,
    NoDatabase,
    NotTemporary,
    UnknownDatabase,
    file_of,
)
from gateway.store.migrate import migrate


def test_file_and_folder_are_for_the_owner_alone(sqlite: Database) -> None:
    migrate(sqlite)
    assert sqlite.path is not None
    assert stat.S_IMODE(sqlite.path.parent.stat().st_mode) == 0o700
    for file in sqlite.path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.touch(0o644)
    Database.open(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_no_database_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    """A ledger's path that was meant for something else; as root it once closed a whole folder."""
    folder, text, pipe = tmp_path / "folder", tmp_path / "text", tmp_path / "pipe"
    folder.mkdir()
    text.write_text("a letter to somebody\n")
    os.mkfifo(pipe)
    for path in (folder, text, pipe):
        path.chmod(0o755)
        with pytest.raises(NoDatabase, match=path.name):
            Database.open(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert text.read_text() == "a letter to somebody\n"


def test_sqlite_is_set_up_before_its_first_table(sqlite: Database) -> None:
    migrate(sqlite)
    with sqlite.writer.transaction() as cursor:
        read = {
            name: cursor.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "auto_vacuum", "synchronous", "busy_timeout")
        }
    assert read == {
        "journal_mode": "wal", "auto_vacuum": 2, "synchronous": 1, "busy_timeout": 30_000,
    }  # fmt: skip


def test_a_reader_cannot_write(database: Database) -> None:
    migrate(database)
    with pytest.raises(DBAPIError), database.reader.connect() as connection:
        connection.exec_driver_sql("DELETE FROM ledger")


def test_a_reader_sees_one_moment(database: Database) -> None:
    migrate(database)
    count = "SELECT count(*) FROM ledger_meta"
    with database.reader.connect() as reading:
        before = reading.exec_driver_sql(count).scalar()
        with database.writer.transaction() as writing:
            writing.execute("INSERT INTO ledger_meta VALUES ('new', 'row')")
        assert reading.exec_driver_sql(count).scalar() == before


def test_a_writer_waits_for_the_lock_when_it_begins(sqlite: Database) -> None:
    assert sqlite.path is not None
    migrate(sqlite)
    with sqlite.editor.connect() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout = 0")
        connection.rollback()
        other = sqlite3.connect(sqlite.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OperationalError, match="locked"):
            connection.begin()
        other.close()


def test_many_processes_worth_of_openings_at_once(tmp_path: Path) -> None:
    def open_and_migrate(_: int) -> None:
        database = Database.open(tmp_path / "new" / "ledger.sqlite")
        migrate(database)
        database.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(open_and_migrate, range(8)))


@pytest.mark.parametrize(
    "target", ["/var/lib/ledger.sqlite", "sqlite:////var/lib/ledger.sqlite", "~/ledger.sqlite"]
)
def test_a_test_run_opens_no_file_elsewhere(target: str, tmp_path: Path) -> None:
    with pytest.raises(NotTemporary):
        Database.open(target, only_below=tmp_path)


def test_a_test_run_is_not_led_out_by_a_link(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    with pytest.raises(NotTemporary):
        Database.open(inside / "link" / "ledger.sqlite", only_below=inside)
    assert not list(outside.iterdir())


@pytest.mark.parametrize(
    "url",
    ["postgresql://me:secret@db.example/books", "postgresql:///books?host=/var/run/postgresql"],
)
def test_a_test_run_reaches_no_server_elsewhere(url: str, tmp_path: Path) -> None:
    with pytest.raises(NotTemporary) as refused:
        Database.open(url, only_below=tmp_path)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_every_name_of_postgresql_leads_to_psycopg(scheme: str) -> None:
    database = Database.open(f"{scheme}://me:secret@db.example/books")
    assert database.target == "postgresql://me:secret@db.example/books"
    assert database.reader.url.drivername == database.editor.url.drivername == "postgresql+psycopg"
    assert (database.writer.driver.__name__, database.path) == ("psycopg", None)
    database.close()


@pytest.mark.parametrize(
    "url", ["mysql://db/books", "sqlite://", "sqlite://db/books", "oracle://db"]
)
def test_an_address_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(UnknownDatabase):
        Database.open(url)


@pytest.mark.parametrize(
    ("target", "file"),
    [
        ("~/notes.sqlite", "/home/me/notes.sqlite"),
        ("sqlite:///~/notes.sqlite", "/home/me/notes.sqlite"),
        ("sqlite:////var/notes.sqlite?timeout=5", "/var/notes.sqlite"),
        ("postgresql://db/notes", None),
        ("sqlite://db/notes", None),
    ],
)
def test_a_file_is_known_before_it_is_opened(
    target: str, file: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert file_of(target) == (None if file is None else Path(file))


def test_a_missing_driver_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.store.db.find_spec", lambda name: None)
    with pytest.raises(DriverMissing, match="pip install"):
        Database.open("postgresql://db.example/books")


def test_an_address_that_cannot_be_read_is_not_quoted() -> None:
    with pytest.raises(BadAddress) as refused:
        Database.open("postgresql://me:secret%zz@db.example/books")
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None and refused.value.__suppress_context__


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}", "sqlite+pysqlite:///{}?timeout=5"])
def test_another_process_can_open_what_a_database_names(form: str, tmp_path: Path) -> None:
    """Whatever folder it runs in."""
    database = Database.open(form.format(tmp_path / "books" / "ledger.sqlite"))
    assert database.target == str(tmp_path / "books" / "ledger.sqlite")
    database.close()


def test_engines_are_made_once_and_when_they_are_wanted(database: Database) -> None:
    assert not database._engines
    assert database.reader is database.reader
    assert database.editor is not database.reader
