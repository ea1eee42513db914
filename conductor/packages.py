"""Operators' texts for notes: which may be loaded, and which a turn gets. Knows no file.

Nothing of a request is put into a package, and no package is shortened or mended.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from conductor.markers import marker_in
from conductor.profiles import Profile
from conductor.tokens import estimated_tokens
from conductor.types import Package

ID = re.compile(r"[a-z0-9-]{1,64}")
WORD = re.compile(r"[\w+#-]{1,32}")  # of a file's ending, or of a language,
_FILE = r"(?i)\w\.{}(?![\w+#-])"  # as both stand in a text
_FENCE = r"(?im)^\s*(?:```|~~~)\s*{}(?![\w+#-])"
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
MOST_TITLE_CHARS = 1_024  # as a skill's description may have


@dataclass(frozen=True, slots=True)
class PackageFault:
    """Why a package cannot be loaded. `field`: of `Package`, where it is wrong."""

    field: str
    message: str


def faults_of(package: Package) -> Iterator[PackageFault]:
    """Everything that is wrong with a package; nothing where it can be loaded."""
    if not ID.fullmatch(package.id):
        yield PackageFault("id", "an id has 1 to 64 characters of a-z, 0-9 and '-'")
    if not package.title.strip() or len(package.title) > MOST_TITLE_CHARS:
        yield PackageFault("title", f"a title has 1 to {MOST_TITLE_CHARS} characters")
    yield from (PackageFault("text", message) for message in _text_faults(package))
    for field in ("regex", "not_match"):
        for pattern in getattr(package, field):
            if (fault := pattern_fault(pattern)) is not None:
                yield PackageFault(field, fault)
    for field in ("file_ext", "lang"):
        for word in getattr(package, field):
            if not WORD.fullmatch(word):
                yield PackageFault(field, f"{word!r} is none; an ending is given without its dot")


def _text_faults(package: Package) -> Iterator[str]:
    if not package.text.strip():
        yield "there is no text behind the front matter"
    if any("\udc80" <= character <= "\udcff" for character in package.text):
        yield "the text is not UTF-8"
    if _CONTROLS.search(package.text):
        yield "the text has control characters; lines end with a line feed alone"
    if (marker := marker_in(package.text)) is not None:
        yield f"the text has {marker!r}, which a model or Tandem takes for structure"
    if (tokens := estimated_tokens(package.text)) > package.max_tokens:
        yield f"the text takes up to {tokens} tokens, more than max_tokens = {package.max_tokens}"


def pattern_fault(pattern: str) -> str | None:
    """Why a text is no regular expression."""
    try:
        re.compile(pattern)
    except re.error as fault:
        return f"{pattern!r} is no regular expression: {fault}"
    return None


def choose_packages(
    profile: Profile,
    packages: Mapping[str, Package],
    task_class: str | None,
    user_text: str,
    tool_names: Collection[str],
    placed: Collection[str],
) -> tuple[Package, ...]:
    """The packages that a new note gets, in the order of their places.

    The profile's own for the class come first, then what matches, by priority and id. One that does
    not fit is left out whole. `placed`: ids that stand in the history.
    """
    rules = profile.packages
    if not rules.enabled:
        return ()
    matching = sorted(
        (p for p in packages.values() if _is_hit(p, task_class, user_text, tool_names)),
        key=lambda package: (-package.priority, package.id),
    )
    chosen: list[Package] = []
    room = rules.max_tokens
    for name in dict.fromkeys([*listed(profile, task_class), *(p.id for p in matching)]):
        package = packages[name]
        if name in placed or _has_any(package.not_match, user_text):
            continue
        tokens = estimated_tokens(package.text)
        if len(chosen) < rules.max_count and tokens <= room:
            chosen.append(package)
            room -= tokens
    return tuple(chosen)


def listed(profile: Profile, task_class: str | None) -> tuple[str, ...]:
    """Ids that a profile names for a class, under `packages` and at the class itself."""
    if task_class is None:
        return ()
    named = profile.router.classes.get(task_class)
    return (*profile.packages.per_class.get(task_class, ()), *(named.packages if named else ()))


def collisions(packages: Iterable[Package]) -> Iterator[tuple[str, str, str]]:
    """Pairs of ids between which only their names decide, or that say the same; and why."""
    seen: list[Package] = []
    for package in sorted(packages, key=lambda package: package.id):
        for other in seen:
            if other.hash == package.hash:
                yield other.id, package.id, "the same text"
            elif other.priority == package.priority and _meet(other, package):
                for what in sorted(_signs(other) & _signs(package)):
                    yield other.id, package.id, what
        seen.append(package)


def _meet(one: Package, other: Package) -> bool:
    """Whether there is a class in which both may fire."""
    return not (one.classes and other.classes) or bool({*one.classes} & {*other.classes})


def _signs(package: Package) -> set[str]:
    """What makes a package fire, in words."""
    named = {"regex": package.regex, "tool": package.tools, "file_ext": package.file_ext,
             "lang": package.lang}  # fmt: skip
    signs = {f"{kind} {sign}" for kind, all_signs in named.items() for sign in all_signs}
    return signs or {f"class {name}" for name in package.classes}


def _is_hit(
    package: Package, task_class: str | None, user_text: str, tool_names: Collection[str]
) -> bool:
    """Whether a package fires by itself: in one of its classes, by any of its signs.

    One without a sign fires in its classes; without those, only where a profile lists it.
    """
    if package.classes and task_class not in package.classes:
        return False
    if not (package.regex or package.tools or package.file_ext or package.lang):
        return bool(package.classes)
    return (
        _has_any(package.regex, user_text)
        or any(name in tool_names for name in package.tools)
        or _has_any((_FILE.format(re.escape(end)) for end in package.file_ext), user_text)
        or _has_any((_FENCE.format(re.escape(lang)) for lang in package.lang), user_text)
    )


def _has_any(patterns: Iterable[str], text: str) -> bool:
    return any(re.search(pattern, text) for pattern in patterns)
