"""The documents tell the truth: every setting, log event and link is in them, nothing else is."""

import ast
import re
from pathlib import Path

import pytest

from conductor.classes import CLASSES
from conductor.profiles import TaskClass
from gateway.settings.load import all_keys
from gateway.settings.packages import package_keys
from gateway.settings.profiles import profile_keys

ROOT = Path(__file__).resolve().parents[2]
LEVELS = {"debug", "info", "warning", "error", "exception"}
EVENT = re.compile(r"[a-z]+(_[a-z]+)*\.[a-z]+(_[a-z]+)*")
OPEN_ENDS = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")


def events_logged() -> dict[str, str]:
    """Every event name given to a logger, and where."""
    found: dict[str, str] = {}
    for package in ("gateway", "conductor", "worker"):
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text())
            constants = {
                node.targets[0].id: node.value.value
                for node in tree.body
                if isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Name)
                and isinstance(node.value, ast.Constant)
            }
            for node in ast.walk(tree):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in LEVELS
                    and "log" in ast.unparse(node.func.value)
                    and node.args
                ):
                    event = node.args[0]
                    name = constants.get(event.id) if isinstance(event, ast.Name) else None
                    name = event.value if isinstance(event, ast.Constant) else name
                    where = f"{path.relative_to(ROOT)}:{node.lineno}"
                    assert isinstance(name, str), f"{where}: the event is not a constant"
                    found[name] = where
    return found


def documented(file: str, heading: str) -> set[str]:
    """The code-formatted first cells of the table under a heading."""
    text = (ROOT / "docs" / file).read_text()
    section = text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"^\| `([^`]+)`", section, flags=re.MULTILINE))


def test_every_setting_is_documented_and_none_is_made_up() -> None:
    text = (ROOT / "docs/configuration.md").read_text()
    written = set(re.findall(r"^\| `([^`]+)`", text, flags=re.MULTILINE))
    assert written == set(all_keys())


def test_every_key_of_profiles_and_packages_is_documented_and_none_is_made_up() -> None:
    assert documented("profiles.md", "profiles/NAME.yaml") == set(profile_keys())
    assert documented("profiles.md", "Packages") == set(package_keys())


def test_the_classes_that_are_shipped_are_the_documented_ones() -> None:
    text = (ROOT / "docs/profiles.md").read_text().split("## Classes\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in text.splitlines()]
    written = {
        row[0]: TaskClass(row[1], int(row[2].replace(",", "")), row[3])
        for row in rows
        if len(row) == 4 and row[2].replace(",", "").isdigit()
    }
    assert written == CLASSES


def test_every_log_event_is_documented_and_none_is_made_up() -> None:
    events = events_logged()
    assert all(EVENT.fullmatch(event) for event in events), events
    assert documented("operations.md", "Log events") == set(events)


@pytest.mark.parametrize("path", [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"])
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), f"{path.name} points to {target}"


def test_no_open_ends_in_the_code() -> None:
    for package in ("proto", "conductor", "gateway", "worker"):
        for path in (ROOT / package).rglob("*.py"):
            assert not OPEN_ENDS.search(path.read_text()), path


def test_every_make_target_is_explained() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = next(line for line in text.splitlines() if line.startswith(".PHONY:")).split()[1:]
    for target in phony:
        assert re.search(rf"^{target}:.*## \S", text, flags=re.MULTILINE), target
