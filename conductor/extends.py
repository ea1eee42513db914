"""How a profile takes over what another one says. Knows no key of a profile and no file."""

from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

T = TypeVar("T")


class ExtendsFault(Exception):
    """A line of parents that has no end. `at`: the name whose parent is wrong."""

    def __init__(self, at: str, message: str) -> None:
        super().__init__(message)
        self.at = at


class UnknownParent(ExtendsFault):
    """`parent` is nobody's name."""

    def __init__(self, at: str, parent: str) -> None:
        super().__init__(at, f"no profile is named {parent!r}")
        self.parent = parent


class EndlessParents(ExtendsFault):
    """A line leads back to a name in it, `at`."""

    def __init__(self, line: tuple[str, ...]) -> None:
        super().__init__(line[-1], f"it leads back to itself: {' → '.join(line)}")


def parents_of(name: str, parents: Mapping[str, str | None]) -> tuple[str, ...]:
    """The line from a name to the one without a parent, the name itself left out.

    `parents`: of every name. Raises: UnknownParent, EndlessParents.
    """
    line = [name]
    while (parent := parents[line[-1]]) is not None:
        if parent not in parents:
            raise UnknownParent(line[-1], parent)
        if parent in line:
            raise EndlessParents((*line, parent))
        line.append(parent)
    return tuple(line[1:])


def overlay(parent: T, child: T, given: Set[str]) -> T:
    """What `child` says, and the parent's word on everything else.

    Maps merge; lists and single values replace. `given`: dotted paths of the keys that the child's
    author wrote, those in maps included.
    """
    return cast(T, _merged(parent, child, given, ""))


def _merged(parent: Any, child: Any, given: Set[str], path: str) -> Any:
    if path and path not in given:
        return parent
    if is_dataclass(child) and is_dataclass(parent):
        values = {
            name: _merged(getattr(parent, name), getattr(child, name), given, _below(path, name))
            for name in (key.name for key in fields(child))
        }
        return replace(cast(Any, child), **values)
    if isinstance(child, Mapping) and isinstance(parent, Mapping):
        own = {
            key: _merged(parent[key], value, given, _below(path, key)) if key in parent else value
            for key, value in child.items()
        }
        return {**parent, **own}
    return child


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
