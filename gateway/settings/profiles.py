"""Reads profiles: the shipped ones and those beside `tandem.yaml`. Knows not what a profile does.

A profile of a shipped name replaces the shipped one.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import PurePath

from conductor.classes import CLASSES
from conductor.extends import ExtendsFault, UnknownParent, overlay, parents_of
from conductor.profiles import Profile, Router
from gateway.settings.profile_checks import check_profile
from gateway.settings.profile_file import ProfileFile
from gateway.settings.yaml import Problem, Reader, instead_of, known_keys

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")  # so that any client can put it in a header

# What every profile without a parent stands on.
GROUND = ProfileFile(name="", router=Router(classes=CLASSES))


@dataclass(slots=True)
class ReadProfiles:
    """What was found: profiles by name, and the reader of each file with what is wrong in it.

    `names`: of all there are, also of those that have mistakes.
    """

    names: frozenset[str]
    profiles: dict[str, Profile] = field(default_factory=dict)
    readers: list[Reader] = field(default_factory=list)

    @property
    def problems(self) -> list[Problem]:
        """Every mistake, file by file."""
        return [
            problem
            for reader in self.readers
            for problem in sorted(reader.problems, key=lambda problem: problem.line)
        ]


def profile_keys() -> list[str]:
    """Every dotted key of a profile's file."""
    return known_keys(ProfileFile)


def read_profiles(texts: Mapping[str, str], packages: Collection[str]) -> ReadProfiles:
    """Reads and checks profiles. `texts`: of their files, by path; `packages`: ids there are."""
    own = {PurePath(file).stem: (file, text) for file, text in texts.items()}
    sources = {**_shipped(), **own}
    found = ReadProfiles(frozenset(sources))
    parsed: dict[str, tuple[ProfileFile, Reader]] = {}
    for name, (file, text) in sorted(sources.items()):
        reader = Reader(file, {}, profile_keys())
        found.readers.append(reader)
        if (profile := _read(reader, name, text)) is not None:
            parsed[name] = profile, reader
    for name, (_, reader) in parsed.items():
        resolved = _resolved(name, parsed, found.names)
        if resolved is not None:
            check_profile(reader, resolved, packages)
            found.profiles[name] = resolved.profile()
    return found


def _shipped() -> dict[str, tuple[str, str]]:
    folder = files("conductor") / "shipped"
    return {
        file.name.removesuffix(".yaml"): (f"shipped/{file.name}", file.read_text("utf-8"))
        for file in folder.iterdir()
    }


def _read(reader: Reader, name: str, text: str) -> ProfileFile | None:
    if reader.file.endswith(".yml"):
        reader.note("", f"a profile's file ends in .yaml: name it {name}.yaml")
    root = reader.compose(text)
    if root is None:
        if not reader.problems:
            reader.note("", "there is nothing in it; it needs at least 'name'")
        return None
    read = reader.read_fields(root, "", ProfileFile)
    if read is None:
        return None
    profile = read[0]
    assert isinstance(profile, ProfileFile)
    if not NAME.fullmatch(name):
        reader.note("name", "name: expected a-z, 0-9, '-', '_' and '.', 64 of them at most")
    if profile.name != name:
        reader.note("name", f"name: expected {name!r}, as its file, found {profile.name!r}")
    return profile


def _resolved(
    name: str, parsed: Mapping[str, tuple[ProfileFile, Reader]], names: Collection[str]
) -> ProfileFile | None:
    """A profile with what its parents say; None where that cannot be known."""
    parents: dict[str, str | None] = dict.fromkeys(names)
    parents |= {other: profile.extends for other, (profile, _) in parsed.items()}
    profile, reader = parsed[name]
    try:
        line = parents_of(name, parents)
    except ExtendsFault as fault:
        if fault.at == name:  # or it is told of another
            known = fault.parent if isinstance(fault, UnknownParent) else None
            advice = f"; {instead_of(known, names)}" if known is not None else ""
            reader.note("extends", f"extends: {fault}{advice}")
        return None
    if any(parent not in parsed for parent in line):
        return None  # what is wrong with it is told where it stands
    under = GROUND
    for parent in reversed(line):
        value, its_reader = parsed[parent]
        under = overlay(under, value, its_reader.lines.keys())
    return overlay(under, profile, reader.lines.keys())
