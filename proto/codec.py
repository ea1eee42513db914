"""The one way a message becomes bytes and back. Knows no message by name.

A message is a msgpack map: `v` (protocol version), `t` (type), then its fields; fields that are
None are left out, fields nobody knows are ignored. Readers are built once from the dataclasses'
type hints, so a wrong type is named by its path and never reaches the caller.

Nothing is ever unpickled, and the size is checked before anything is unpacked.
"""

import dataclasses
import types
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgpack

from proto import messages
from proto.chat import Json
from proto.faults import BadField, CodecFault, MessageTooLarge, UnknownMessage, VersionMismatch
from proto.limits import LINK_MESSAGE_BYTES

VERSION = 1

T = TypeVar("T")
Reader = Callable[[Any, str], Any]

MESSAGE_TYPES: dict[str, type] = {t.__name__: t for t in get_args(messages.LinkMessage)}


def encode(message: messages.LinkMessage, limit_bytes: int = LINK_MESSAGE_BYTES) -> bytes:
    """Packs a message.

    Raises: MessageTooLarge; CodecFault for a number msgpack cannot hold or text with surrogates.
    """
    fields = to_wire(message)
    try:
        data = cast(bytes, msgpack.packb({"v": VERSION, "t": type(message).__name__, **fields}))
    except (OverflowError, UnicodeEncodeError, ValueError) as fault:
        raise CodecFault(f"{type(message).__name__} cannot be packed: {fault}") from fault
    if len(data) > limit_bytes:
        raise MessageTooLarge(len(data), limit_bytes)
    return data


def decode(data: bytes, limit_bytes: int = LINK_MESSAGE_BYTES) -> messages.LinkMessage:
    """Unpacks a message.

    Raises: CodecFault (MessageTooLarge, VersionMismatch, UnknownMessage, BadField).
    """
    if len(data) > limit_bytes:
        raise MessageTooLarge(len(data), limit_bytes)
    try:
        fields = msgpack.unpackb(data, strict_map_key=True)
    except Exception as fault:
        raise CodecFault(f"not msgpack: {type(fault).__name__}") from fault
    if not isinstance(fields, dict):
        raise CodecFault(f"a message is a map, not {type(fields).__name__}")
    if fields.get("v") != VERSION:
        raise VersionMismatch(fields.get("v"), VERSION)
    name = fields.get("t")
    known = MESSAGE_TYPES.get(name) if isinstance(name, str) else None
    if known is None:
        raise UnknownMessage(str(name))
    try:
        return cast(messages.LinkMessage, from_wire(known, fields))
    except RecursionError as fault:
        raise CodecFault("a value is nested too deeply") from fault


def to_wire(value: Any) -> Any:
    """A dataclass as a map of plain values, None left out; tagged classes carry their `type`."""
    if dataclasses.is_dataclass(value):
        fields = {
            name: to_wire(item)
            for name in _field_names(cast(Any, type(value)))
            if (item := getattr(value, name)) is not None
        }
        tag = getattr(value, "TAG", None)
        return {"type": tag, **fields} if tag else fields
    if isinstance(value, (tuple, list)):
        return [to_wire(item) for item in value]
    if isinstance(value, dict):
        return {key: to_wire(item) for key, item in value.items()}
    return value


def from_wire(cls: type[T], value: Any, path: str = "") -> T:
    """The dataclass `cls` from a map of plain values.

    Raises: BadField with the dotted path of what is missing or wrong.
    """
    return cast(T, _reader(cast(Any, cls))(value, path or cls.__name__))


@cache
def _field_names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


@cache
def _reader(hint: Any) -> Reader:
    origin = get_origin(hint)
    if _is_json(hint):
        return _read_json
    if dataclasses.is_dataclass(hint):
        return _dataclass_reader(cast(type, hint))
    if origin in (Union, types.UnionType):
        return _union_reader(get_args(hint))
    if origin is tuple:
        return _tuple_reader(get_args(hint)[0])
    if origin is dict:
        return _map_reader(get_args(hint)[1])
    if origin is Literal:
        return _literal_reader(get_args(hint))
    return _scalar_reader(hint)


def _dataclass_reader(cls: type) -> Reader:
    hints = get_type_hints(cls)
    # Readers are looked up at the first read: a class may contain itself.
    fields = [(f.name, hints[f.name], _is_required(f)) for f in dataclasses.fields(cls)]

    def read(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise BadField(path, "a map", _name_of(value))
        known: dict[str, Any] = {}
        for name, hint, required in fields:
            if name in value:
                known[name] = _reader(hint)(value[name], f"{path}.{name}")
            elif required:
                if types.NoneType not in get_args(hint):
                    raise BadField(f"{path}.{name}", "a value", "nothing")
                known[name] = None
        return cls(**known)

    return read


def _union_reader(options: tuple[Any, ...]) -> Reader:
    optional = types.NoneType in options
    members = [option for option in options if option is not types.NoneType]
    if len(members) == 1:
        inner = _reader(members[0])
        return lambda value, path: None if value is None and optional else inner(value, path)
    tagged = {member.TAG: member for member in members}

    def read(value: Any, path: str) -> Any:
        tag = value.get("type") if isinstance(value, dict) else None
        if tag not in tagged:
            raise BadField(f"{path}.type", "one of " + ", ".join(tagged), _name_of(tag))
        return _reader(tagged[tag])(value, path)

    return read


def _tuple_reader(item_hint: Any) -> Reader:
    item = _reader(item_hint)

    def read(value: Any, path: str) -> Any:
        if not isinstance(value, (list, tuple)):
            raise BadField(path, "a list", _name_of(value))
        return tuple(item(entry, f"{path}[{i}]") for i, entry in enumerate(value))

    return read


def _map_reader(value_hint: Any) -> Reader:
    item = _reader(value_hint)

    def read(value: Any, path: str) -> Any:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise BadField(path, "a map with text keys", _name_of(value))
        return {key: item(entry, f"{path}.{key}") for key, entry in value.items()}

    return read


def _literal_reader(options: tuple[Any, ...]) -> Reader:
    def read(value: Any, path: str) -> Any:
        if value not in options:
            raise BadField(path, "one of " + ", ".join(map(str, options)), repr(value)[:64])
        return value

    return read


def _scalar_reader(cls: type) -> Reader:
    def read(value: Any, path: str) -> Any:
        if cls is float and type(value) is int:
            return float(value)
        if type(value) is not cls:
            raise BadField(path, cls.__name__, _name_of(value))
        return value

    return read


def _read_json(value: Any, path: str) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [_read_json(entry, path) for entry in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _read_json(entry, path) for key, entry in value.items()}
    raise BadField(path, "JSON", _name_of(value))


def _is_json(hint: Any) -> bool:
    """Whether a hint is `proto.chat.Json`, whose inner references are resolved by now."""
    return hint is Json or (
        get_origin(hint) in (Union, types.UnionType)
        and any(get_origin(option) is list for option in get_args(hint))
    )


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _name_of(value: Any) -> str:
    return type(value).__name__
