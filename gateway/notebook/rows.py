"""Sessions and notes as rows of the database and back. Knows no statement and no connection."""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from conductor.types import NoteRecord, Session

ROW_BYTES = 256  # of a row beside its texts: numbers, and its part of the indexes

Row = tuple[Any, ...]  # values in the order of `SESSION` or `NOTE`


def place_of(record: NoteRecord) -> str:
    """The hash of all that says where a note stands: there is one note at a place."""
    place = (
        record.scope, record.session, record.chain, record.role, record.message, record.ordinal,
        record.kind, record.part, record.offset,
    )  # fmt: skip
    return sha256(json.dumps(place).encode()).hexdigest()


def row_of_session(session: Session) -> Row:
    """Its values, in the order of `SESSION`."""
    lists = [json.dumps(names) for names in (session.packages, session.memories, session.lines)]
    texts = [session.scope, session.key, session.opening, session.chain, session.profile]
    row = (
        *texts, session.task_class, *lists, session.turns, session.config_rev,
        session.created_ms, session.used_ms,
    )  # fmt: skip
    return (*row, _size_of(row))


def session_of(row: Sequence[Any]) -> Session:
    """The session that a row was made of."""
    (
        scope, key, opening, chain, profile, task_class, packages, memories, lines, turns,
        config_rev, created_ms, used_ms, _,
    ) = row  # fmt: skip
    return Session(
        scope=scope,
        key=key,
        chain=chain,
        profile=profile,
        task_class=task_class,
        packages=tuple(json.loads(packages)),
        memories=tuple(json.loads(memories)),
        lines=tuple(json.loads(lines)),
        turns=turns,
        config_rev=config_rev,
        created_ms=created_ms,
        used_ms=used_ms,
        opening=opening,
    )


def row_of_note(record: NoteRecord) -> Row:
    """Its values, in the order of `NOTE`."""
    ids = None if record.ids is None else json.dumps(record.ids, separators=(",", ":"))
    row = (
        place_of(record), record.scope, record.session, record.chain, record.message, record.role,
        record.ordinal, record.kind, record.part, record.offset, record.part_hash, record.text,
        ids, record.tokenizer_hash, record.task_class, record.version, record.created_ms,
        record.used_ms,
    )  # fmt: skip
    return (*row, _size_of(row))


def note_of(row: Sequence[Any]) -> NoteRecord:
    """The record that a row was made of."""
    (
        _, scope, session, chain, message, role, ordinal, kind, part, offset, part_hash, text,
        ids, tokenizer_hash, task_class, version, created_ms, used_ms, _,
    ) = row  # fmt: skip
    return NoteRecord(
        scope=scope,
        session=session,
        chain=chain,
        message=message,
        role=role,
        ordinal=ordinal,
        kind=kind,
        text=text,
        part=part,
        offset=offset,
        ids=None if ids is None else tuple(json.loads(ids)),
        tokenizer_hash=tokenizer_hash,
        task_class=task_class,
        version=version,
        created_ms=created_ms,
        used_ms=used_ms,
        part_hash=part_hash,
    )


def _size_of(row: Row) -> int:
    texts = [value for value in row if isinstance(value, str)]
    return ROW_BYTES + sum(len(text.encode(errors="surrogatepass")) for text in texts)
