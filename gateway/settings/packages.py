"""Reads packages: Markdown with YAML front matter, or skills. Knows not what a package is good for.

Source of a skill's form: https://agentskills.io/specification
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from conductor.packages import faults_of
from conductor.types import Package
from gateway.settings.texts import SKILL
from gateway.settings.yaml import Problem, Reader, known_keys

FRONT = re.compile(r"---\n((?:.*\n)*?)---\n")
# Of a skill, for programs that run it: nothing of it concerns a text in a note.
NOT_OURS = frozenset({"license", "compatibility", "metadata", "allowed-tools"})


@dataclass(frozen=True, slots=True)
class Signs:
    """By what of a turn a package is chosen: any of it."""

    regex: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    file_ext: tuple[str, ...] = ()
    lang: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Choice:
    """When a package is placed, and how long it may be."""

    version: str = ""
    classes: tuple[str, ...] = ()
    match: Signs = Signs()
    not_match: tuple[str, ...] = ()
    priority: int = 0
    max_tokens: int = 600


@dataclass(frozen=True, slots=True)
class _Named:
    """What a package calls itself."""

    id: str
    title: str


@dataclass(frozen=True, slots=True)
class _Skill:
    """What a skill calls itself."""

    name: str
    description: str


@dataclass(slots=True)
class ReadPackages:
    """What was found: packages by id, and the reader of each file with what is wrong in it."""

    packages: dict[str, Package] = field(default_factory=dict)
    readers: list[Reader] = field(default_factory=list)
    of: dict[str, Reader] = field(default_factory=dict)  # by id

    @property
    def problems(self) -> list[Problem]:
        """Every mistake, file by file."""
        return [
            problem
            for reader in self.readers
            for problem in sorted(reader.problems, key=lambda problem: problem.line)
        ]


def package_keys() -> list[str]:
    """Every dotted key of the front matter of a package."""
    return [*known_keys(_Named), *known_keys(_Choice)]


def read_packages(texts: Mapping[str, str]) -> ReadPackages:
    """Reads and checks packages. `texts`: of their files, by path."""
    found = ReadPackages()
    for file, text in texts.items():
        reader = Reader(file, {}, package_keys())
        found.readers.append(reader)
        package = _read(reader, text, is_skill=Path(file).name == SKILL)
        if package is None:
            continue
        if package.id in found.of:
            reader.note("id", f"id: {package.id!r} is that of {found.of[package.id].file} already")
            continue
        found.packages[package.id], found.of[package.id] = package, reader
    return found


def _read(reader: Reader, text: str, *, is_skill: bool) -> Package | None:
    found = FRONT.match(text)
    if found is None:
        reader.note("", "expected front matter: a line '---', keys, a line '---', then the text")
        return None
    front, body = found.group(1), text[found.end() :]
    # The line before it is empty, so that lines have the numbers they have in the file.
    root = reader.compose("\n" + front)
    if root is None:
        if not reader.problems:
            reader.note("", "there is nothing in the front matter")
        return None
    if is_skill and isinstance(root, yaml.MappingNode):
        root.value = [entry for entry in root.value if entry[0].value not in NOT_OURS]
    read = reader.read_fields(root, "", _Skill if is_skill else _Named, _Choice)
    if read is None:
        return None
    name, choice = read
    package_id, title = (name.name, name.description) if is_skill else (name.id, name.title)
    package = _package(package_id, title, choice, body.strip("\n"))
    reader.lines["text"] = front.count("\n") + 3
    for fault in faults_of(package):
        key = _key_of(fault.field, is_skill)
        reader.note(key, f"{key}: {fault.message}")
    return package


def _package(package_id: str, title: str, choice: _Choice, text: str) -> Package:
    return Package(
        id=package_id,
        title=title,
        text=text,
        hash=hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest(),
        version=choice.version,
        classes=choice.classes,
        regex=choice.match.regex,
        tools=choice.match.tools,
        file_ext=choice.match.file_ext,
        lang=choice.match.lang,
        not_match=choice.not_match,
        priority=choice.priority,
        max_tokens=choice.max_tokens,
    )


def _key_of(package_field: str, is_skill: bool) -> str:
    """The key in the file that a field of a package was read from."""
    if package_field in ("regex", "file_ext", "lang"):
        return f"match.{package_field}"
    if is_skill:
        return {"id": "name", "title": "description"}.get(package_field, package_field)
    return package_field
