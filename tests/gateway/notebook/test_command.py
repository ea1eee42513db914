"""Where the store is opened, and what is said where it cannot be."""

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.conducting.rooms import Rooms
from gateway.notebook.command import open_existing_store, open_store
from gateway.preflight import CommandFailed
from gateway.settings.load import load
from gateway.settings.types import Secret, Settings, StoreSettings
from tests.gateway.harness import backend, running_gateway


def settings_of(tmp_path: Path, url: str | None = None) -> Settings:
    file = tmp_path / "tandem.yaml"
    state = f"worker: {{}}\nserver: {{state_dir: {tmp_path}/state}}\n"
    file.write_text(state if url is None else f"{state}store: {{url: '{url}'}}\n")
    return load(file, {})


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_rooms_of_the_conductor_are_in_the_store(tmp_path: Path, *, elsewhere: bool) -> None:
    usual, named = tmp_path / "state" / "tandem.sqlite", tmp_path / "notes.sqlite"
    url = f"sqlite:///{named}" if elsewhere else None
    Rooms(settings_of(tmp_path, url), b"key").close()
    assert (usual.exists(), named.exists()) == (not elsewhere, elsewhere)


def test_who_only_reads_makes_no_store(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    with pytest.raises(CommandFailed, match="there is no store at"):
        open_existing_store(settings)
    assert not settings.state_dir.exists()
    open_store(settings).close()
    open_existing_store(settings).close()


def test_an_address_names_no_file_that_must_be_there(tmp_path: Path) -> None:
    database = open_existing_store(settings_of(tmp_path, "postgresql://me@db.invalid/notes"))
    assert database.path is None
    database.close()


def test_what_is_no_database_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.sqlite").write_text("Dear diary, today it rained again. " * 90)
    for url in (f"sqlite:///{tmp_path}/notes.sqlite", f"sqlite:///{tmp_path}/tandem.yaml/below"):
        with pytest.raises(CommandFailed, match=r"the store cannot be opened: .*\Z"):
            open_store(settings_of(tmp_path, url))


async def test_a_reload_does_not_move_the_store(tmp_path: Path) -> None:
    backends = {"b": backend("http://127.0.0.1:1")}
    async with running_gateway(tmp_path, backends=backends) as gateway:
        before = gateway.gateway.settings
        moved = StoreSettings(Secret("", f"sqlite:///{tmp_path}/elsewhere.sqlite"))
        gateway.gateway.apply(replace(before, store=moved, rev="two"))
        assert gateway.gateway.settings == replace(before, rev="two")
