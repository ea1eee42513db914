"""A client's two turns before the conductor, and what the gateway wrote of them.

Knows no test: what should have been written is theirs to say.
"""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clients.engine import PROMPT_TOKENS, ScriptedEngine
from tests.e2e.clients.programs import Desk, Program, Said
from tests.e2e.server import serving

INSTALLED = Path(os.environ.get("TANDEM_CLIENTS", ".clients")).absolute()
CONFIG = """
server: {{state_dir: STATE_DIR}}
worker: {{endpoint: '{endpoint}', spawn: false, conductor: true}}
"""
# The words of a turn say nothing about their kind: only the model can tell it.
PROMPTS = ("Which word does first.txt hold?", "And which word does second.txt hold?")
ANSWERS = ("It says word-first.", "It says word-second.")


@dataclass(frozen=True, slots=True)
class Played:
    """What a client did, and what was written of it: rows and journal lines, oldest first."""

    program: Program
    said: tuple[Said, ...]
    engine: ScriptedEngine
    rows: list[dict[str, Any]]
    journal: list[dict[str, Any]]

    @property
    def turns(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["kind"] == "generation"]

    @property
    def sides(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["kind"] == "side"]

    def lines(self, row: dict[str, Any], event: str) -> list[dict[str, Any]]:
        """What the journal says of one request."""
        of_request = [line for line in self.journal if line["request_id"] == row["request_id"]]
        return [line for line in of_request if line["event"] == event]


def played_by(
    program: Program, folder: Path, *, full_tokens: int = PROMPT_TOKENS, lines: int = 1
) -> Played:
    """Both turns, in one session. `full_tokens`: see `ScriptedEngine`; `lines`: of either file."""
    path = program.path(INSTALLED)
    if not path.exists():
        pytest.skip(f"not run: {path} is not there (make clients)")
    workspace = folder / "desk" / "workspace"
    workspace.mkdir(parents=True)
    for name in ("first", "second"):
        (workspace / f"{name}.txt").write_text(f"Here stands word-{name}, alone.\n" * lines)
    engine = ScriptedEngine(str(workspace), full_tokens)
    return asyncio.run(_play(program, path, folder, engine))


async def _play(program: Program, path: Path, folder: Path, engine: ScriptedEngine) -> Played:
    with ExitStack() as stack:
        async with engine.worker().listening(folder) as endpoint:
            config = CONFIG.format(endpoint=endpoint)
            server = await asyncio.to_thread(stack.enter_context, serving(folder, config))
            await asyncio.to_thread(server.wait_until, True)
            desk = Desk(program, path, folder / "desk", server.base)
            await desk.set_up()
            said = [await desk.ask(PROMPTS[0]), await desk.ask(PROMPTS[1], goes_on=True)]
            await asyncio.to_thread(server.stop)
    rows = list(_booked(server.state_dir))
    return Played(program, tuple(said), engine, rows, _journal(folder / "tandem.yaml"))


def _booked(state_dir: Path) -> Iterator[dict[str, Any]]:
    with closing(sqlite3.connect(state_dir / "ledger.sqlite")) as database:
        database.row_factory = sqlite3.Row
        for row in database.execute("SELECT * FROM ledger ORDER BY ts_ms, request_id"):
            yield dict(row)


def _journal(config: Path) -> list[dict[str, Any]]:
    """What `tandem journal` shows."""
    words = ["journal", "grep", ".", "--json", "--config", str(config)]
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", *words], capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
