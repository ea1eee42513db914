"""YAML into frozen dataclasses, every mistake with its line. Knows no setting by name.

YAML 1.1 surprises are left out: only `true` and `false` are booleans, there are no timestamps, no
octal or base-60 numbers, no custom tags, no merge keys; a duplicate key is an error. Nothing is
interpolated.
"""

import dataclasses
import math
import re
import types
from collections.abc import Collection, Iterable, Mapping
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import yaml

from gateway.settings.secrets import read_secret
from gateway.settings.types import Secret

_SECRET_PATHS = ("keys", "secret", "token", "headers", "url")
MOST_DIGITS = 18  # of a whole number
NEAR_EDITS = 3  # a key this close is taken for a typing mistake
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)([eE][-+]?[0-9]+)?")


class StrictLoader(yaml.SafeLoader):
    """SafeLoader that resolves plain scalars to null, true/false and decimal numbers only."""

    yaml_implicit_resolvers = {}


for _tag, _pattern, _first in (
    ("null", re.compile(r"~|null|"), [*"~n", ""]),
    ("bool", re.compile(r"true|false"), [*"tf"]),
    ("int", _INT, [*"-+0123456789"]),
    ("float", _FLOAT, [*"-+.0123456789"]),
):
    StrictLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern.pattern})$"), _first
    )
_KNOWN_TAGS = {
    f"tag:yaml.org,2002:{t}" for t in ("null", "bool", "int", "float", "str", "map", "seq")
}


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in one file, in a sentence."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


class _Wrong(Exception):
    """A value that was reported already; its parent goes on with the next one."""


class Reader:
    """Reads one file's nodes into typed values and collects every problem on the way.

    `lines` maps the dotted path of each key to its line, for checks across keys.
    """

    def __init__(self, file: str, environ: Mapping[str, str], known_keys: list[str]) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.lines: dict[str, int] = {}
        self._environ = environ
        self._known_keys = known_keys

    def compose(self, text: str) -> yaml.Node | None:
        """The file's root node, or None with a problem noted (or nothing in the file)."""
        try:
            return yaml.compose(text, Loader=StrictLoader)
        except yaml.MarkedYAMLError as fault:
            mark = fault.problem_mark or fault.context_mark
            line = mark.line + 1 if mark else 1
            self.problems.append(Problem(self.file, line, f"not YAML: {fault.problem}"))
        except yaml.YAMLError as fault:
            self.problems.append(Problem(self.file, 1, f"not YAML: {str(fault).splitlines()[0]}"))
        return None

    def read_fields(self, node: yaml.Node, path: str, *classes: type) -> list[Any] | None:
        """One mapping shared by several dataclasses: each takes its own keys. None when wrong."""
        try:
            return self._dataclasses(node, path, classes)
        except _Wrong:
            return None

    def note(self, path: str, message: str) -> None:
        """Notes a problem at a key that was read before."""
        line = self.lines.get(path, 0)
        while line == 0 and "." in path:
            path = path.rpartition(".")[0]
            line = self.lines.get(path, 0)
        self.problems.append(Problem(self.file, line or 1, message))

    def read(self, hint: Any, node: yaml.Node, path: str) -> Any:
        """The node as `hint`. Raises _Wrong after noting a problem."""
        self._check_tag(node, path)
        origin = get_origin(hint)
        if origin in (Union, types.UnionType):
            if any(get_origin(option) is list for option in get_args(hint)):  # proto.chat.Json
                return self._json(node, path)
            return self._union(get_args(hint), node, path)
        if origin is Literal:
            return self._literal(get_args(hint), node, path)
        if origin is tuple:
            return self._list(get_args(hint)[0], node, path)
        if origin in (dict, Mapping):
            return self._map(get_args(hint)[1], node, path)
        if hint is Secret:
            return self._secret(node, path)
        if dataclasses.is_dataclass(hint):
            return self._dataclasses(node, path, (hint,))[0]
        return self._scalar(hint, node, path)

    def _dataclasses(self, node: yaml.Node, path: str, classes: tuple[Any, ...]) -> list[Any]:
        self._check_tag(node, path)
        hints = {cls: get_type_hints(cls) for cls in classes}
        owners = {f.name: cls for cls in classes for f in dataclasses.fields(cls)}
        values: dict[Any, dict[str, Any]] = {cls: {} for cls in classes}
        wrong = False
        for key, item in self._entries(node, path):
            full = f"{path}.{key}" if path else key
            owner = owners.get(key)
            if owner is None:
                self.note_unknown(path, key, list(owners))
                wrong = True
                continue
            try:
                values[owner][key] = self.read(hints[owner][key], item, full)
            except _Wrong:
                wrong = True
        for cls in classes:
            for field in dataclasses.fields(cls):
                if _is_required(field) and field.name not in values[cls] and not wrong:
                    self._fail(node, path, f"key {field.name!r} is missing")
        if wrong:
            raise _Wrong
        return [cls(**values[cls]) for cls in classes]

    def _check_tag(self, node: yaml.Node, path: str) -> None:
        if node.tag not in _KNOWN_TAGS:
            self._fail(node, path, f"tag {node.tag!r} is not allowed")

    def _entries(self, node: yaml.Node, path: str) -> list[tuple[str, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            self._fail(node, path, f"expected a mapping, found {_kind(node, path)}")
        entries: list[tuple[str, yaml.Node]] = []
        seen: set[str] = set()
        for key_node, item in node.value:
            key = str(key_node.value)
            full = f"{path}.{key}" if path else key
            if key in seen:
                self._note(key_node, f"key {full!r} is given twice")
                continue
            seen.add(key)
            self.lines[full] = key_node.start_mark.line + 1
            entries.append((key, item))
        return entries

    def _map(self, item_hint: Any, node: yaml.Node, path: str) -> dict[str, Any]:
        result: dict[str, Any] = {}
        wrong = False
        for key, item in self._entries(node, path):
            try:
                result[key] = self.read(item_hint, item, f"{path}.{key}")
            except _Wrong:
                wrong = True
        if wrong:
            raise _Wrong
        return result

    def _list(self, item_hint: Any, node: yaml.Node, path: str) -> tuple[Any, ...]:
        if not isinstance(node, yaml.SequenceNode):
            self._fail(node, path, f"expected a list, found {_kind(node, path)}")
        result: list[Any] = []
        wrong = False
        for index, item in enumerate(node.value):
            where = f"{path}[{index}]"
            self.lines[where] = item.start_mark.line + 1
            try:
                result.append(self.read(item_hint, item, where))
            except _Wrong:
                wrong = True
        if wrong:
            raise _Wrong
        return tuple(result)

    def _union(self, options: tuple[Any, ...], node: yaml.Node, path: str) -> Any:
        if node.tag.endswith(":null") and types.NoneType in options:
            return None
        members = [option for option in options if option is not types.NoneType]
        for member in members:  # a list where a list is possible, otherwise the first that is none
            if (get_origin(member) is tuple) == isinstance(node, yaml.SequenceNode):
                return self.read(member, node, path)
        return self.read(members[0], node, path)

    def _json(self, node: yaml.Node, path: str) -> Any:
        """Whatever stands there: what it may be is known to whoever uses it."""
        self._check_tag(node, path)
        if isinstance(node, yaml.MappingNode):
            entries = self._entries(node, path)
            return {key: self._json(item, f"{path}.{key}") for key, item in entries}
        if isinstance(node, yaml.SequenceNode):
            return [self._json(item, f"{path}[{i}]") for i, item in enumerate(node.value)]
        kind = node.tag.rpartition(":")[2]
        if kind == "null":
            return None
        return self._scalar({"bool": bool, "int": int, "float": float}.get(kind, str), node, path)

    def _literal(self, options: tuple[Any, ...], node: yaml.Node, path: str) -> Any:
        if isinstance(node, yaml.ScalarNode) and node.value in options:
            return node.value
        self._fail(
            node, path, f"expected one of {', '.join(map(str, options))}, found {_kind(node, path)}"
        )

    def _secret(self, node: yaml.Node, path: str) -> Secret:
        reference = self._scalar(str, node, path)
        try:
            return read_secret(reference, self._environ)
        except ValueError as fault:
            self._fail(node, path, str(fault))

    def _scalar(self, cls: Any, node: yaml.Node, path: str) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            self._fail(node, path, f"expected {_noun(cls)}, found {_kind(node, path)}")
        text: str = node.value
        tag = node.tag.rpartition(":")[2]
        if cls is bool and tag == "bool":
            return text == "true"
        if cls is int and tag == "int" and len(text) <= MOST_DIGITS:
            return int(text)
        if cls is float and tag in ("int", "float") and math.isfinite(float(text)):
            return float(text)
        if cls in (str, Path) and tag == "str":
            return cls(text)
        if cls is Decimal and tag in ("int", "float", "str"):
            return self._decimal(text, node, path)
        if cls is date:
            return self._date(text, node, path)
        hint = " (quote it to make it text)" if cls in (str, Path) else ""
        self._fail(node, path, f"expected {_noun(cls)}, found {_kind(node, path)}{hint}")

    def _decimal(self, text: str, node: yaml.Node, path: str) -> Decimal:
        try:
            value = Decimal(text)
        except InvalidOperation:
            self._fail(node, path, f"expected a number, found {text!r}")
        if not value.is_finite() or value < 0:
            self._fail(node, path, f"expected a number of at least 0, found {text!r}")
        return value

    def _date(self, text: str, node: yaml.Node, path: str) -> date:
        try:
            return date.fromisoformat(text)
        except ValueError:
            self._fail(node, path, f"expected a date such as 2026-01-31, found {text!r}")

    def note_unknown(self, path: str, key: str, level: Collection[str]) -> None:
        """Notes that there is no such key below `path`. `level`: those that there are."""
        full = f"{path}.{key}" if path else key
        best = nearest(key, level)
        if best is not None:
            best = f"{path}.{best}" if path else best
        elif "." in key:  # written with dots instead of nested
            best = nearest(full, self._known_keys)
        if best is not None:
            advice = f"nearest known key: {best!r}"
        elif elsewhere := [k for k in self._known_keys if k.rpartition(".")[2] == key]:
            advice = f"it belongs at {elsewhere[0]!r}"
        else:
            advice = f"known here: {', '.join(sorted(level))}"
        self.problems.append(
            Problem(self.file, self.lines.get(full, 1), f"unknown key {full!r}; {advice}")
        )

    def _note(self, node: yaml.Node, message: str) -> None:
        self.problems.append(Problem(self.file, node.start_mark.line + 1, message))

    def _fail(self, node: yaml.Node, path: str, message: str) -> NoReturn:
        self._note(node, f"{path}: {message}" if path else message)
        raise _Wrong


def known_keys(cls: type, prefix: str = "") -> list[str]:
    """Every dotted key of a settings dataclass; `*` stands for a name the operator chooses."""
    keys: list[str] = []
    for name, hint in get_type_hints(cls).items():
        path = f"{prefix}{name}"
        keys.append(path)
        inner, suffix = _inner(hint)
        if dataclasses.is_dataclass(inner) and inner is not Secret:
            keys += known_keys(inner, f"{path}{suffix}.")  # type: ignore[arg-type]
    return keys


def instead_of(word: str, known: Iterable[str]) -> str:
    """What to write in place of a name that nobody has."""
    names = sorted(known)
    best = nearest(word, names)
    return f"nearest: {best!r}" if best else f"known: {', '.join(names) or 'none'}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that a typing mistake may have made this one of."""
    near = sorted((edit_distance(word, other), other) for other in known)
    if near and near[0][0] <= min(NEAR_EDITS, len(word) // 2):
        return near[0][1]
    return None


def edit_distance(one: str, other: str) -> int:
    """Levenshtein distance. Source: Wagner and Fischer, 1974."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        previous, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (a != b))
    return row[-1]


def _inner(hint: Any) -> tuple[Any, str]:
    """The dataclass inside an optional, a list or a map, and how its keys are reached."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _inner(next(a for a in get_args(hint) if a is not types.NoneType))
    if origin in (dict, Mapping):
        return get_args(hint)[1], ".*"
    if origin is tuple:
        return get_args(hint)[0], "[]"
    return hint, ""


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _noun(cls: Any) -> str:
    return {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        Decimal: "a number",
        str: "text",
        Path: "a path",
        date: "a date",
    }[cls]


def _kind(node: yaml.Node, path: str) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if node.tag.endswith(":null"):
        return "nothing"
    if any(word in path for word in _SECRET_PATHS):  # what stands there may be a secret
        return {"str": "text"}.get(node.tag.rpartition(":")[2], "a number")
    return repr(str(node.value)[:64])
