"""Whole conversations over a notebook in a database: restarts, and several gateways on one."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.notebook.desk import Desk
from gateway.notebook.keeping import Keeping
from gateway.notebook.stored import StoredNotebook
from gateway.store.db import Database
from tests.conductor.notes import shapes
from tests.conductor.notes.talking import Conductor
from tests.gateway.notebook.test_notebook import PATIENCE_S


def opened(target: str) -> tuple[StoredNotebook, Conductor]:
    """What a gateway has that just started. Its clock goes on."""
    database = Database.open(target, only_below=Path(tempfile.gettempdir()))
    notebook = StoredNotebook(database, Keeping(), Desk(database, wait_s=PATIENCE_S))
    return notebook, Conductor(notebook.sessions, notebook.notes)


@pytest.mark.parametrize("shape", shapes.ALL)
async def test_a_restart_between_any_two_requests_changes_no_prompt(
    shape: Callable[[], shapes.Requests], database: Database
) -> None:
    before = ""
    now_ms = 0
    for messages in shape():
        notebook, conductor = opened(database.target)
        conductor.now_ms += now_ms
        seen = await conductor.ask(messages)
        assert seen.prompt.startswith(before) and seen.segments
        assert all(segment.ids for segment in seen.replayed.segments)
        before, now_ms = seen.prompt, conductor.now_ms
        notebook.close(PATIENCE_S)


async def test_two_gateways_take_turns_in_one_conversation(database: Database) -> None:
    (one, first), (other, second) = opened(database.target), opened(database.target)
    before = ""
    for number, messages in enumerate(shapes.opencode()):
        conductor = (first, second)[number % 2]
        conductor.now_ms = 1_000 * number
        seen = await conductor.ask(messages)
        assert seen.prompt.startswith(before) and seen.choice.is_whole == (number > 0)
        before = seen.prompt
    one.close(PATIENCE_S)
    other.close(PATIENCE_S)
