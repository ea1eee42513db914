"""Profiles and packages as one value for the conductor, and what ties them to `tandem.yaml`.

Knows no key of a profile or a package.
"""

from dataclasses import dataclass
from operator import attrgetter

from conductor.classes import CLASSES
from conductor.types import Settings as Planning
from gateway.settings.packages import ReadPackages, read_packages
from gateway.settings.profiles import ReadProfiles, read_profiles
from gateway.settings.texts import Texts
from gateway.settings.types import Settings
from gateway.settings.yaml import Problem, Reader, instead_of

# Least values; the most of each is enough to mean "never".
LEAST = {"notes.ttl_days": 1, "notes.max_mb": 1, "memory.quiet_s": 0, "memory.min_turns": 1}
LARGEST = 10**6


@dataclass(frozen=True, slots=True)
class Beside:
    """What was read beside `tandem.yaml`, mistakes included."""

    profiles: ReadProfiles
    packages: ReadPackages

    @property
    def problems(self) -> list[Problem]:
        """Every mistake, file by file."""
        return [*self.profiles.problems, *self.packages.problems]

    def planning(self, default_profile: str) -> Planning:
        """The value for the conductor, where there was no mistake; its revision is not set."""
        return Planning(self.profiles.profiles, default_profile, self.packages.packages, "")


def read_planning(texts: Texts) -> Beside:
    """Reads profiles and packages, and checks what they say of each other."""
    packages = read_packages(texts.packages or {})
    profiles = read_profiles(texts.profiles or {}, packages.of)
    known = {*CLASSES, *(name for p in profiles.profiles.values() for name in p.router.classes)}
    for name, package in packages.packages.items():
        for index, task_class in enumerate(package.classes):
            if task_class not in known and not profiles.problems:
                where = f"classes[{index}]"
                advice = instead_of(task_class, known)
                message = f"{where}: no class is named {task_class!r}; {advice}"
                packages.of[name].note(where, message)
    return Beside(profiles, packages)


def check_conductor(reader: Reader, settings: Settings, beside: Beside, texts: Texts) -> None:
    """Notes what is wrong with the section `conductor`, and with keys that name profiles."""
    conductor, profiles = settings.conductor, beside.profiles.names
    for name, found in (("profiles", texts.profiles), ("packages", texts.packages)):
        if found is None and f"conductor.{name}" in reader.lines:
            where = f"conductor.{name}"
            reader.note(where, f"{where}: there is no folder {getattr(conductor, name)}")
    if conductor.default_profile not in profiles:
        _note_profile(reader, "conductor.default_profile", conductor.default_profile, profiles)
    _check_asked(reader, settings)
    _check_numbers(reader, settings)
    for index, client in enumerate(settings.keys):
        where = f"keys[{index}].profiles"
        if client.profiles == ():
            reader.note(where, f"{where}: name at least one, or leave the key out for all")
        for name in client.profiles or ():
            if name not in profiles:
                _note_profile(reader, where, name, profiles)


def _check_asked(reader: Reader, settings: Settings) -> None:
    asked, where = settings.conductor.ask_backend, "conductor.ask_backend"
    known = ["same", *settings.backends, *(["worker"] if settings.worker else [])]
    if asked not in known:
        advice = instead_of(asked, known)
        reader.note(where, f"{where}: no backend is named {asked!r}; {advice}")
    elif (backend := settings.backends.get(asked)) is not None:
        if backend.kind != "openai":
            reader.note(where, f"{where}: {asked} is of kind {backend.kind}; it must be openai")
        elif not backend.small:
            reader.note(where, f"{where}: name the model to ask first in backends.{asked}.small")


def _check_numbers(reader: Reader, settings: Settings) -> None:
    for key, least in LEAST.items():
        where, value = f"conductor.{key}", attrgetter(key)(settings.conductor)
        if not least <= value <= LARGEST:
            reader.note(where, f"{where}: expected {least} to {LARGEST}, found {value}")


def _note_profile(reader: Reader, where: str, name: str, profiles: frozenset[str]) -> None:
    advice = instead_of(name, profiles)
    reader.note(where, f"{where}: no profile is named {name!r}; {advice}")
