"""What no single key of a profile shows: ranges, references, sets that must fit together.

Knows no file. Only what a profile's own file says is complained about: mistakes of a parent are
told where they stand.
"""

from collections.abc import Collection, Iterator
from operator import attrgetter
from typing import get_args

from conductor.classes import faults_of
from conductor.markers import marker_in
from conductor.monitor.tasks import override_faults
from conductor.packages import pattern_fault
from conductor.profiles import StatusRules
from conductor.types import SideKind
from gateway.settings.profile_file import ProfileFile
from gateway.settings.yaml import Reader, instead_of

# Of numbers: least and most. The most is far above what is useful, and below what would hurt.
RANGES: dict[str, tuple[float, float]] = {
    "router.timeout_ms": (1, 60_000),
    "router.head_chars": (0, 4_000),  # the question has 1,024 tokens at most
    "router.tail_chars": (0, 4_000),
    "router.tool_names": (0, 32),
    "router.min_margin": (0, 1),
    "thinking.reserve_min": (0, 10**6),
    "thinking.reserve_share": (0, 1),
    "packages.max_count": (0, 16),
    "packages.max_tokens": (0, 10**6),
    "note.max_tokens": (0, 10**6),
    "monitor.continuations": (0, 16),
    "monitor.regenerations": (0, 16),
    "monitor.hidden_tokens": (0, 10**6),
    "status.min_wait_s": (0, 3_600),
    "status.min_interval_s": (0, 3_600),
    "status.max_per_turn": (0, 1_000),
    "memory.budget_tokens": (0, 10**6),
    "transcript.days": (1, 3_650),
    "sampling.temperature": (0, 2),  # as clients may ask
    "sampling.top_p": (0, 1),
    "sampling.top_k": (0, 10**6),
    "sampling.min_p": (0, 1),
    "sampling.presence_penalty": (-2, 2),
    "sampling.frequency_penalty": (-2, 2),
    "sampling.repetition_penalty": (0, 2),
    "limits.max_output": (1, 10**6),
}
ABOVE = ("sampling.top_p", "sampling.repetition_penalty")  # not the least itself
SIDE_KINDS: tuple[str, ...] = get_args(SideKind)
STEPS = StatusRules().steps


def check_profile(reader: Reader, profile: ProfileFile, packages: Collection[str]) -> None:
    """Notes what is wrong with a resolved profile where its own file says so."""
    found = [
        *_ranges(profile),
        *_match(profile),
        *_router(profile, packages),
        *_rules(profile),
        *_packages(profile, packages),
        *_side(profile),
        *_status(profile),
    ]
    for path, message in found:
        if path in reader.lines:
            reader.note(path, f"{path}: {message}")
    _check_names(reader, profile)


Found = Iterator[tuple[str, str]]


def _ranges(profile: ProfileFile) -> Found:
    for path, (least, most) in RANGES.items():
        value = attrgetter(path)(profile)
        if value is not None and not least <= value <= most:
            yield path, f"expected {least} to {most}, found {value}"
        elif value == least and path in ABOVE:
            yield path, f"expected more than {least}, found {value}"


def _match(profile: ProfileFile) -> Found:
    match = profile.match
    if match is None:
        return
    if not (match.clients or match.user_agent or match.headers or match.has_tools is not None):
        yield "match", "it would take every request; give clients, user_agent, headers or has_tools"
    for index, pattern in enumerate(match.user_agent):
        if (fault := pattern_fault(pattern)) is not None:
            yield f"match.user_agent[{index}]", fault


def _router(profile: ProfileFile, packages: Collection[str]) -> Found:
    classes = profile.router.classes
    for fault in faults_of(classes):
        path = "router.classes" + (f".{fault.name}" if fault.name else "")
        yield path, fault.message
    for name, task_class in classes.items():
        if (marker := marker_in(task_class.effort)) is not None:
            yield f"router.classes.{name}.effort", f"{marker!r} may not stand in a note"
        for index, package in enumerate(task_class.packages):
            yield from _named(
                f"router.classes.{name}.packages[{index}]", "package", package, packages
            )
    yield from _named("router.default_class", "class", profile.router.default_class, classes)


def _rules(profile: ProfileFile) -> Found:
    ids: set[str] = set()
    for index, rule in enumerate(profile.rules):
        where = f"rules[{index}]"
        if rule.id in ids:
            yield f"{where}.id", f"{rule.id!r} is given twice"
        ids.add(rule.id)
        if not rule.text.strip():
            yield f"{where}.text", "there is nothing to say"
        if (marker := marker_in(rule.text)) is not None:
            yield f"{where}.text", f"{marker!r} may not stand in a note"
        if rule.when.regex is not None and (fault := pattern_fault(rule.when.regex)) is not None:
            yield f"{where}.when.regex", fault
        for at, name in enumerate(rule.when.classes):
            yield from _named(f"{where}.when.classes[{at}]", "class", name, profile.router.classes)


def _packages(profile: ProfileFile, packages: Collection[str]) -> Found:
    for name, ids in profile.packages.per_class.items():
        where = f"packages.per_class.{name}"
        yield from _named(where, "class", name, profile.router.classes)
        for index, package in enumerate(ids):
            yield from _named(f"{where}[{index}]", "package", package, packages)


def _side(profile: ProfileFile) -> Found:
    for kind, rule in profile.side.kinds.items():
        if rule.max_output is not None and rule.max_output < 1:
            yield f"side.kinds.{kind}.max_output", f"expected at least 1, found {rule.max_output}"


def _status(profile: ProfileFile) -> Found:
    for index, step in enumerate(profile.status.steps):
        yield from _named(f"status.steps[{index}]", "step", step, STEPS)


def _check_names(reader: Reader, profile: ProfileFile) -> None:
    """Names of things that are not an operator's to choose: kinds, tasks and their parameters."""
    for kind in profile.side.kinds:
        if kind not in SIDE_KINDS and f"side.kinds.{kind}" in reader.lines:
            reader.note_unknown("side.kinds", kind, SIDE_KINDS)
    for fault in override_faults(profile.monitor.tasks):
        *above, name = ("monitor.tasks", *fault.path)
        where, path = ".".join(above), ".".join((*above, name))
        if path not in reader.lines:
            continue
        if fault.known and name != "mode":
            reader.note_unknown(where, name, fault.known)
        else:
            sentence = fault.sentence.removeprefix(f"{'.'.join(fault.path)}: ")
            reader.note(path, f"{path}: {sentence}")


def _named(path: str, what: str, name: str, known: Collection[str]) -> Found:
    """A reference that leads nowhere."""
    if name not in known:
        yield path, f"no {what} is named {name!r}; {instead_of(name, known)}"
