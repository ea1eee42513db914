"""The clients: how each is set up in a home of its own, started, and told to go on.

Source: `spec/clients.md` 4, for commands and versions. Knows no gateway but its address.
"""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from conductor.client import ClientKind

MODEL = "TandemLLM"
KEY = "sk-made-up"
MOST_S = 90.0  # of one invocation: without an end of its own opencode asks again and again
# Anything that is not on loopback is asked of a proxy that is not there: it fails at once.
NOWHERE = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9"),
    **dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9"),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
}


@dataclass(frozen=True, slots=True)
class Program:
    """A client. `command`: its name in `versions.txt`; `begin`, `go_on`: words before a prompt.

    `write`: its configuration into a home, with the address of the gateway. `spares_loopback`:
    whether it asks no proxy for what `NO_PROXY` names.
    """

    kind: ClientKind
    command: str
    begin: tuple[str, ...]
    go_on: tuple[str, ...]
    environ: Callable[[str], Mapping[str, str]] = lambda base: {}
    write: Callable[[Path, str], None] = lambda home, base: None
    spares_loopback: bool = True

    def path(self, folder: Path) -> Path:
        """Where `make clients` puts it."""
        return folder / self.command / "node_modules" / ".bin" / self.command


@dataclass(frozen=True, slots=True)
class Said:
    """What one invocation printed, and how it ended."""

    status: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Desk:
    """A client with a home and a workspace of its own, before one gateway."""

    program: Program
    path: Path
    folder: Path
    base: str

    @property
    def workspace(self) -> Path:
        """The folder that it works in."""
        return self.folder / "workspace"

    async def set_up(self) -> None:
        """Writes its configuration, and makes its workspace a repository."""
        self.workspace.mkdir(parents=True, exist_ok=True)
        self.program.write(self.folder / "home", self.base)
        await self._run("git", "init", "--quiet")

    async def ask(self, prompt: str, *, goes_on: bool = False) -> Said:
        """One invocation. `goes_on`: in the session of the one before."""
        words = self.program.go_on if goes_on else self.program.begin
        return await self._run(str(self.path), *words, prompt)

    async def _run(self, *words: str) -> Said:
        process = await asyncio.create_subprocess_exec(
            *words, cwd=self.workspace, env=self._environ(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(MOST_S):
                out, err = await process.communicate()
        except TimeoutError:
            os.killpg(process.pid, 9)
            out, err = await process.communicate()
        assert process.returncode is not None
        return Said(process.returncode, out.decode(), err.decode())

    def _environ(self) -> dict[str, str]:
        home = self.folder / "home"
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
        return {
            **kept,
            **(NOWHERE if self.program.spares_loopback else {}),
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / ".config"),
            "XDG_DATA_HOME": str(home / ".local/share"),
            "XDG_STATE_HOME": str(home / ".local/state"),
            "XDG_CACHE_HOME": str(home / ".cache"),
            **self.program.environ(self.base),
        }


def _write_opencode(home: Path, base: str) -> None:
    models = {
        MODEL: {"name": MODEL, "limit": {"context": 100_000, "output": 8_000}},
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",  # built in: it is not fetched
        "name": "tandem",
        "options": {"baseURL": f"{base}/v1", "apiKey": KEY},
        "models": models,
    }
    config = {
        "autoupdate": False,
        "share": "disabled",
        "model": f"tandem/{MODEL}",
        "small_model": f"tandem/{MODEL}",
        "provider": {"tandem": provider},
    }
    _put(home / ".config/opencode/opencode.json", json.dumps(config))


def _write_qwen(home: Path, base: str) -> None:
    settings = {
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
    }
    _put(home / ".qwen/settings.json", json.dumps(settings))


def _write_continue(home: Path, base: str, **options: int) -> None:
    model = {
        "name": MODEL, "provider": "openai", "model": MODEL, "apiBase": f"{base}/v1",
        "apiKey": KEY, "roles": ["chat"], "defaultCompletionOptions": options,
    }  # fmt: skip
    config = {"name": "tandem", "version": "0.0.1", "schema": "v1", "models": [model]}
    _put(home / "continue.yaml", json.dumps(config))  # JSON is YAML too


def _put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


OPENCODE = Program(
    kind="opencode",
    command="opencode",
    begin=("run",),
    go_on=("run", "--continue"),
    environ=lambda base: {
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    },
    write=_write_opencode,
)
QWEN = Program(
    kind="qwen-code",
    command="qwen",
    begin=("--auth-type", "openai", "--yolo", "-p"),
    go_on=("--auth-type", "openai", "--yolo", "--continue", "-p"),
    environ=lambda base: {
        "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{base}/v1", "OPENAI_MODEL": MODEL,
    },
    write=_write_qwen,
    spares_loopback=False,
)  # fmt: skip
CONTINUE = Program(
    kind="continue",
    command="cn",
    begin=("--config", "../home/continue.yaml", "--auto", "-p"),
    go_on=("--config", "../home/continue.yaml", "--auto", "--resume", "-p"),
    environ=lambda base: {"CONTINUE_TELEMETRY_ENABLED": "0"},
    write=_write_continue,
)
# It counts what it sends by itself: this much is full after a file of some length.
NARROW_CONTINUE = replace(
    CONTINUE,
    write=lambda home, base: _write_continue(home, base, contextLength=6_000, maxTokens=500),
)
PROGRAMS = (OPENCODE, QWEN, CONTINUE)
