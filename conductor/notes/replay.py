"""Puts what was placed in earlier turns where it stood. Never judges it again, never changes it.

Knows no store: records come in, and those to be stored go out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

from conductor.session import Choice, History, link, message_hash
from conductor.types import JournalLine, NoteRecord
from proto.chat import Json, Message
from proto.plan import REASONING_PART, Segment

KEY_CHARS = 24  # of a segment's key: it only tells those of one request apart
TOUCH_MS = 3_600_000  # a record's last use is written anew once it is so old

Place = tuple[str, str, str, int]  # chain, role, message, ordinal
Likeness = tuple[str, str, int]  # the same without the chain


@dataclass(frozen=True, slots=True)
class Replay:
    """What stands in the prompt again.

    `standing`: the record of each segment, in the same order. `saved`: what is to be stored of
    them, because its chain is new or its last use long ago.
    """

    segments: tuple[Segment, ...] = ()
    standing: tuple[NoteRecord, ...] = ()
    saved: tuple[NoteRecord, ...] = ()
    journal: tuple[JournalLine, ...] = ()

    @property
    def notes(self) -> tuple[NoteRecord, ...]:
        """The notes among them, without hidden texts."""
        return tuple(record for record in self.standing if record.kind == "note")

    def at(self, history: History) -> NoteRecord | None:
        """The note at the last message: there when this very turn was asked before."""
        places = _places(history)
        return next((record for record in self.notes if _place(record) == places[-1]), None)


@dataclass(slots=True)
class _Walk:
    """Records by the index of their message; at those of `copied` they are new to the store."""

    found: dict[int, list[NoteRecord]]
    copied: set[int] = field(default_factory=set)
    moved: int = 0
    adopted: int = 0


def replay(
    history: History,
    records: Iterable[NoteRecord],
    choice: Choice,
    *,
    scope: str,
    tokenizer_hash: str | None,
    now_ms: int,
) -> Replay:
    """What of the records stands in this request, and where.

    `records`: those of `Notes.find` for all chains and hashes of the history. `tokenizer_hash`: of
    the backend that will answer, None where nobody knows.
    """
    in_scope = [record for record in records if record.scope == scope]
    own = [record for record in in_scope if record.session == choice.key]
    walk = _Walk(_exact(history, own))
    if choice.is_new and not own:
        _adopt(walk, history, in_scope, choice.key, now_ms)
    elif not choice.is_whole:
        _reattach(walk, history, own, now_ms)
    return _made(walk, history, tokenizer_hash, now_ms)


def with_ids(record: NoteRecord, note_ids: Sequence[int], tokenizer_hash: str) -> NoteRecord:
    """The record with the token ids that a worker returned for its text."""
    return replace(record, ids=tuple(note_ids), tokenizer_hash=tokenizer_hash)


def learned(
    records: Iterable[NoteRecord], note_ids: Mapping[str, Sequence[int]], tokenizer_hash: str
) -> tuple[NoteRecord, ...]:
    """The records whose ids a worker returned, to be stored. `note_ids`: by segment key."""
    return tuple(
        with_ids(record, note_ids[key], tokenizer_hash)
        for record in records
        if (key := segment_key(record)) in note_ids
    )


def hidden_record(
    history: History,
    answer: Message,
    text: str,
    *,
    scope: str,
    session: str,
    part: int | None,
    offset: int,
    now_ms: int,
) -> NoteRecord:
    """The record of text that the model was given while it wrote this answer to the history.

    `part`, `offset`: where it stood, as a `Segment` says it.
    """
    name = message_hash(answer)
    ordinal = history.hashes.count(name)
    return NoteRecord(
        scope, session, link(history.tip, answer), name, answer.role, ordinal, "hidden", text,
        part=part, offset=offset, created_ms=now_ms, used_ms=now_ms,
        part_hash=_text_hash(answer.reasoning) if part == REASONING_PART else None,
    )  # fmt: skip


def segment_of(record: NoteRecord, index: int, tokenizer_hash: str | None) -> Segment:
    """The record as the worker is told of it. Ids of another tokenizer are left out."""
    is_usable = tokenizer_hash in (None, record.tokenizer_hash)
    return Segment(
        key=segment_key(record),
        kind=record.kind,
        message=index,
        text=record.text,
        part=record.part,
        offset=record.offset,
        ids=record.ids if is_usable else None,
        tokenizer_hash=record.tokenizer_hash if is_usable else None,
    )


def segment_key(record: NoteRecord) -> str:
    """What a segment is called between us and the worker."""
    place = (*_place(record), record.kind, record.part, record.offset)
    return sha256(repr(place).encode()).hexdigest()[:KEY_CHARS]


# -- where records stand --------------------------------------------------------------------------


def _exact(history: History, records: Iterable[NoteRecord]) -> dict[int, list[NoteRecord]]:
    """Those whose chain agrees. No walk is needed: behind the first mismatch none can."""
    by_place: dict[Place, list[NoteRecord]] = {}
    for record in records:
        by_place.setdefault(_place(record), []).append(record)
    return {
        index: by_place[place] for index, place in enumerate(_places(history)) if place in by_place
    }


def _adopt(
    walk: _Walk, history: History, records: Iterable[NoteRecord], session: str, now_ms: int
) -> None:
    """A new session whose history has answers was forked from another, or its system text changed:
    it takes over what stands before its last answer, all from the one that goes furthest."""
    by_session: dict[str, list[NoteRecord]] = {}
    for record in records:
        by_session.setdefault(record.session, []).append(record)
    best: dict[int, list[NoteRecord]] = {}
    reached: tuple[int, int] = (-1, -1)
    for others in by_session.values():
        known = _exact(history, others)
        answered = {index: at for index, at in known.items() if index <= history.last_answer}
        reach = (max(answered, default=-1), max(record.used_ms for record in others))
        if reach[0] > -1 and reach > reached:
            best, reached = answered, reach
    for index, at in best.items():
        walk.adopted += len(at)
        walk.copied.add(index)
        walk.found[index] = [_copied(record, record.chain, session, now_ms) for record in at]


def _reattach(walk: _Walk, history: History, records: Iterable[NoteRecord], now_ms: int) -> None:
    """Behind the last record whose chain agrees, a message is known by its hash and number.

    Not the last message: it is new, and gets its own note.
    """
    settled = max(walk.found, default=-1)
    by_likeness = _newest_chain(records)
    for index in range(settled + 1, len(history.messages) - 1):
        message, name = history.messages[index], history.hashes[index]
        at = by_likeness.get((message.role, name, history.ordinals[index]), [])
        if at:
            chain, session = history.chains[index], at[0].session
            walk.found[index] = [_copied(record, chain, session, now_ms) for record in at]
            walk.copied.add(index)
            walk.moved += len(at)


def _newest_chain(records: Iterable[NoteRecord]) -> dict[Likeness, list[NoteRecord]]:
    """For each message all records of the branch in which it was placed last."""
    found: dict[Likeness, list[NoteRecord]] = {}
    for record in sorted(records, key=lambda record: record.created_ms, reverse=True):
        others = found.setdefault((record.role, record.message, record.ordinal), [])
        if not others or others[0].chain == record.chain:
            others.append(record)
    return found


def _copied(record: NoteRecord, chain: str, session: str, now_ms: int) -> NoteRecord:
    return replace(record, chain=chain, session=session, created_ms=now_ms, used_ms=now_ms)


# -- what comes out -------------------------------------------------------------------------------


def _made(walk: _Walk, history: History, tokenizer_hash: str | None, now_ms: int) -> Replay:
    lost: dict[str, int] = {}
    standing: list[NoteRecord] = []
    segments: list[Segment] = []
    saved: list[NoteRecord] = []
    for index in sorted(walk.found):
        for record in sorted(walk.found[index], key=_order):
            if not _has_its_part(record, history.messages[index]):
                # Said once, when the answer comes back for the first time.
                _count(lost, "reasoning", int(index == history.last_answer))
                continue
            is_foreign = record.ids is not None and tokenizer_hash != record.tokenizer_hash
            _count(lost, "tokenizer", int(is_foreign and tokenizer_hash is not None))
            if index in walk.copied or now_ms - record.used_ms > TOUCH_MS:
                record = replace(record, used_ms=now_ms)
                saved.append(record)
            standing.append(record)
            segments.append(segment_of(record, index, tokenizer_hash))
    journal = [
        JournalLine("note_lost", reason, numbers={"count": count})
        for reason, count in lost.items()
        if count
    ]
    if standing:
        numbers: dict[str, Json] = {"count": len(standing)}
        numbers |= {"moved": walk.moved, "adopted": walk.adopted}
        journal.insert(0, JournalLine("note_replay", numbers=numbers))
    return Replay(tuple(segments), tuple(standing), tuple(saved), tuple(journal))


def _has_its_part(record: NoteRecord, message: Message) -> bool:
    """Whether what a text stood in came back. An answer's text did, or no hash would agree."""
    if record.part != REASONING_PART:
        return True
    return message.reasoning is not None and record.part_hash == _text_hash(message.reasoning)


def _order(record: NoteRecord) -> tuple[bool, int, int]:
    """What stands in the reasoning, then in the text, then at its end."""
    part = record.part if record.part is not None else 0
    return record.offset is None, part, record.offset or 0


def _place(record: NoteRecord) -> Place:
    return record.chain, record.role, record.message, record.ordinal


def _places(history: History) -> list[Place]:
    rows = zip(history.chains, history.messages, history.hashes, history.ordinals, strict=True)
    return [(chain, message.role, name, ordinal) for chain, message, name, ordinal in rows]


def _count(lost: dict[str, int], reason: str, count: int) -> None:
    lost[reason] = lost.get(reason, 0) + count


def _text_hash(text: str | None) -> str | None:
    return None if text is None else sha256(text.encode(errors="surrogatepass")).hexdigest()
