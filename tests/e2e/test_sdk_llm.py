"""The program `llm` through a gateway that relays, run as its users run it: a process a command."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.e2e.relayed import Relayed
from tests.fakes.dialects.turn import PIECES, TEXT

COMMAND_S = 90
XDG = ("CONFIG", "DATA", "CACHE", "STATE")
MODELS = """
- model_id: gw
  model_name: kestrel-large
  api_base: {base}/v1
  api_key_name: gw
  supports_tools: true
"""

Llm = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def llm(relayed: Relayed, loopback: None, tmp_path_factory: pytest.TempPathFactory) -> Llm:
    """Runs a command of `llm` in a home of its own, where `gw` is the gateway's model."""
    home: Path = tmp_path_factory.mktemp("home")
    user_path = home / "llm"
    user_path.mkdir()
    (user_path / "extra-openai-models.yaml").write_text(MODELS.format(base=relayed.base))
    environ = {
        **os.environ, "HOME": str(home), "LLM_USER_PATH": str(user_path),
        "PYTHONIOENCODING": "utf-8", **{f"XDG_{name}_HOME": str(home / name) for name in XDG},
    }  # fmt: skip

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "llm", *arguments], cwd=home, env=environ, encoding="utf-8",
            stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S,
        )  # fmt: skip

    assert run("keys", "set", "gw", "--value", relayed.key).returncode == 0
    return run


def answer(done: "subprocess.CompletedProcess[str]") -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n")


def test_a_prompt_is_answered_in_a_stream(llm: Llm, relayed: Relayed, delivery: None) -> None:
    """What is printed is the whole text; the stream was asked for with its usage."""
    assert answer(llm("-m", "gw", "say hello")) == TEXT
    body = relayed.calls()[-1].request.body
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


def test_a_prompt_is_answered_whole(llm: Llm, relayed: Relayed) -> None:
    """`--no-stream`."""
    assert answer(llm("-m", "gw", "--no-stream", "say hello")) == TEXT
    assert not relayed.calls()[-1].request.body.get("stream")


def test_a_tool_is_run_and_the_model_asked_again(
    llm: Llm, relayed: Relayed, delivery: None
) -> None:
    """A tool without parameters: its result goes back, the text is printed."""
    assert answer(llm("-m", "gw", "-T", "llm_version", "which version")) == TEXT
    results = [m for m in relayed.calls()[-1].request.body["messages"] if m["role"] == "tool"]
    assert [result["content"] for result in results] == [version("llm")]


def test_a_stream_that_breaks_off_is_said_so(llm: Llm, relayed: Relayed) -> None:
    """What came is printed, then the reason; the command fails."""
    relayed.provider.break_before = 3
    done = llm("-m", "gw", "say hello")
    assert (done.returncode, done.stdout.strip()) == (1, "".join(PIECES[:2]).strip())
    assert "broke off" in done.stderr


def test_a_wrong_key_is_said_so(llm: Llm, relayed: Relayed) -> None:
    """The gateway's own words reach the person at the terminal; nothing reaches the provider."""
    before = len(relayed.provider.asked)
    done = llm("-m", "gw", "--key", "sk-nobody", "say hello")
    assert done.returncode == 1
    assert "The API key is not known here" in done.stderr
    assert len(relayed.provider.asked) == before


def test_every_request_is_booked_once_with_the_providers_counts(llm: Llm, relayed: Relayed) -> None:
    """All requests of this module so far, and one: it looks like the openai SDK, which it uses."""
    answer(llm("-m", "gw", "say hello"))
    books = relayed.books("openai-sdk")
    assert books.faults == []
    assert books.refused == []
