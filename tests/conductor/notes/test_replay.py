"""Notes stand again where they stood: whole sessions, and everything clients do to a history."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from conductor.notes.replay import TOUCH_MS, hidden_record, learned, replay, segment_key, with_ids
from conductor.session import Choice, History
from conductor.types import NoteRecord, Session
from gateway.notebook.keeping import Keeping
from gateway.notebook.memory import MemoryNotebook
from proto.chat import Message, TextPart, ToolCall
from proto.plan import REASONING_PART
from tests.conductor.notes import shapes
from tests.conductor.notes.talking import (
    TOKENIZER,
    Conductor,
    Seen,
    answer,
    prompt_of,
    result,
    system,
    user,
)

Shape = Callable[[], shapes.Requests]


@pytest.fixture
def notebook() -> MemoryNotebook:
    return MemoryNotebook(Keeping())


@pytest.fixture
def conductor(notebook: MemoryNotebook) -> Conductor:
    return Conductor(notebook.sessions, notebook.notes)


def texts(seen: Seen) -> list[str]:
    return [segment.text for segment in seen.segments]


def at(seen: Seen) -> list[int]:
    return [segment.message for segment in seen.segments]


def respelled(message: Message) -> Message:
    """As another build of the client would write it, in the same words."""
    pieces = [TextPart(letter) for letter in message.text] if message.text else [TextPart("")]
    images = [part for part in message.content if not isinstance(part, TextPart)]
    calls = tuple(
        ToolCall(f"item_{call.name}", call.name, json.dumps(json.loads(call.arguments), indent=1))
        for call in message.calls
    )
    return replace(
        message, content=(*pieces, *images), calls=calls, reasoning=None, name="x", call_id="y"
    )


# -- whole sessions -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", shapes.ALL)
@pytest.mark.parametrize("session_id", ["ses_1", None], ids=["id", "content"])
async def test_each_prompt_begins_with_the_one_before(
    shape: Shape, session_id: str | None, conductor: Conductor
) -> None:
    before = ""
    note_count = 0
    for messages in shape():
        seen = await conductor.ask(messages, session_id=session_id)
        assert seen.prompt.startswith(before)
        assert ("note_lost" not in dict(seen.events)) and len(seen.segments) >= note_count
        before, note_count = seen.prompt, len(seen.segments)
    users = sum(message.role == "user" for message in shape()[-1])
    assert note_count >= users / 2  # a prefix of no notes at all would be easy


@pytest.mark.parametrize("shape", shapes.ALL)
async def test_another_spelling_of_the_history_changes_no_prompt(
    shape: Shape, conductor: Conductor
) -> None:
    conductor.shows_reasoning = False
    before = ""
    for messages in shape():
        images_first = [_images_last(message) for message in messages]
        asked = [*map(respelled, images_first[:-1]), images_first[-1]]
        seen = await conductor.ask(asked)
        assert seen.prompt.startswith(before)
        assert texts(await conductor.ask(images_first)) == texts(seen)
        before = seen.prompt


def _images_last(message: Message) -> Message:
    images = tuple(part for part in message.content if not isinstance(part, TextPart))
    return replace(message, content=(TextPart(message.text), *images))


@pytest.mark.parametrize("shape", shapes.ALL)
async def test_the_same_request_twice_is_the_same_prompt(
    shape: Shape, conductor: Conductor
) -> None:
    for messages in shape():
        first = await conductor.ask(messages)
        second = await conductor.ask(messages)
        assert second.prompt == first.prompt
        assert second.placed.record is None


async def test_a_changed_date_in_the_system_prompt_costs_no_note(conductor: Conductor) -> None:
    *_, last = shapes.opencode()
    for session_id in ("ses_1", None):
        for messages in shapes.opencode()[:-1]:
            seen = await conductor.ask(messages, session_id=session_id)
        tomorrow = [system("You mend code in a terminal. It is Tuesday."), *last[1:]]
        after = await conductor.ask(tomorrow, session_id=session_id)
        assert texts(after)[: len(seen.segments)] == texts(seen)
        assert len(after.segments) == len(seen.segments) + 1


# -- what clients do to a history: `spec/conductor.md` 13.5 ----------------------------------------


TALK = (user("one"), answer("1"), user("two"), answer("2"), user("three"))


async def talk(conductor: Conductor, messages: tuple[Message, ...] = TALK) -> list[Seen]:
    """A session of so many requests."""
    ends = [index for index in range(len(messages)) if messages[index].role != "assistant"]
    return [await conductor.ask(messages[: end + 1]) for end in ends]


async def test_an_edit_keeps_what_is_before_it_and_gets_a_note_of_its_own(
    conductor: Conductor,
) -> None:
    one, _, three = await talk(conductor)
    edited = await conductor.ask((*TALK[:2], user("two, please")))
    assert texts(edited)[:1] == texts(one) and at(edited) == [0, 2]
    assert texts(edited)[1] not in texts(three)
    on = await conductor.ask((*TALK[:2], user("two, please"), answer("2!"), user("three")))
    assert on.prompt.startswith(edited.prompt)
    assert texts(on)[2] not in texts(three)  # the other branch's, at an equal message
    back = await conductor.ask((*TALK, answer("3"), user("four")))
    assert back.prompt.startswith(three.prompt)


async def test_a_regenerated_answer_is_asked_with_the_same_prompt(conductor: Conductor) -> None:
    _, two, _ = await talk(conductor)
    again = await conductor.ask(TALK[:3])
    assert again.prompt == two.prompt and again.placed.record is None
    other = await conductor.ask((*TALK[:3], answer("zwei"), user("three")))
    assert other.prompt.startswith(two.prompt)


@pytest.mark.parametrize("forked_id", ["ses_2", None])
async def test_a_fork_replays_the_common_part(forked_id: str | None, conductor: Conductor) -> None:
    *_, three = await talk(conductor)
    one_more = await conductor.ask((*TALK, answer("3"), user("four")))
    forked = await conductor.ask((*TALK, answer("3"), user("vier")), session_id=forked_id)
    assert forked.prompt.startswith(three.prompt)
    assert ("note_new", "user") in forked.events
    on = await conductor.ask(
        (*TALK, answer("3"), user("vier"), answer("4"), user("five")), session_id=forked_id
    )
    assert on.prompt.startswith(forked.prompt)
    first = await conductor.ask((*TALK, answer("3"), user("four"), answer("4"), user("five")))
    assert first.prompt.startswith(one_more.prompt)


async def test_a_new_chat_with_the_same_first_words_shares_nothing(conductor: Conductor) -> None:
    await talk(conductor)
    for session_id in ("ses_2", "ses_3"):
        other = await conductor.ask(TALK[:1], session_id=session_id)
        assert not other.replayed.segments and other.placed.record is not None
        on = await conductor.ask(TALK[:3], session_id=session_id)
        assert on.prompt.startswith(other.prompt)


async def test_a_known_session_without_notes_takes_none_of_another(conductor: Conductor) -> None:
    await talk(conductor)
    bare = await conductor.ask(TALK[:1], session_id="ses_2", choices=2)
    on = await conductor.ask(TALK[:3], session_id="ses_2")
    assert on.prompt.startswith(bare.prompt) and at(on) == [2]


async def test_a_record_of_ones_own_comes_before_another_sessions(
    conductor: Conductor, notebook: MemoryNotebook
) -> None:
    own = await conductor.ask(TALK[:1], session_id="ses_2")
    await talk(conductor)
    notebook.session_rows.clear()
    on = await conductor.ask(TALK, session_id="ses_2")
    assert on.prompt.startswith(own.prompt) and at(on) == [0, 4]


async def test_nothing_crosses_keys(conductor: Conductor) -> None:
    await talk(conductor)
    stranger = replace(conductor, scope="bob")
    for messages in (TALK, (*TALK, answer("3"), user("four"))):
        for session_id in ("ses_1", None):
            seen = await stranger.ask(messages, session_id=session_id, kind="continuation")
            assert not seen.segments


LONG = (
    system("You work."), user("look"), answer("", ("read", '{"path": "a"}')), result("long " * 50),
    answer("seen"), user("again"), answer("", ("read", '{"path": "b"}')), result("wide " * 50),
    answer("seen"), user("and?"), answer("so"), user("go on"),
)  # fmt: skip


def pruned(messages: tuple[Message, ...], *indexes: int) -> tuple[Message, ...]:
    cleared = result("[cleared]")
    return tuple(cleared if index in indexes else message for index, message in enumerate(messages))


async def test_notes_behind_a_pruned_result_attach_again_and_stay(conductor: Conductor) -> None:
    before = [await conductor.ask(LONG[:end]) for end in (2, 4, 6, 8, 10)][-1]
    once = await conductor.ask(pruned(LONG, 3))
    assert texts(once)[:-1] == texts(before)
    assert at(once) == [1, 5, 9, 11]
    assert once.replayed.journal[0].numbers == {"count": 3, "moved": 2, "adopted": 0}
    assert all(record.chain in History(pruned(LONG, 3)).chains for record in once.replayed.saved)
    on = (*pruned(LONG, 3), answer("gone on"), user("more"))
    then = await conductor.ask(on)
    assert then.prompt.startswith(once.prompt)
    assert then.replayed.journal[0].numbers == {"count": 4, "moved": 0, "adopted": 0}
    twice = await conductor.ask((*pruned(on, 7), answer("more"), user("end")))
    assert texts(twice)[:-1] == texts(then)


async def test_a_note_on_a_pruned_result_goes_with_it(conductor: Conductor) -> None:
    conductor.effort = ""
    await conductor.ask(LONG[:2])
    conductor.effort = "Think."
    noted = await conductor.ask(LONG[:4])
    assert at(noted) == [3]
    conductor.effort = ""
    seen = await conductor.ask(pruned(LONG[:6], 3))
    assert not seen.segments and seen.choice.session is not None


async def test_an_answer_that_was_edited_gives_the_last_message_a_note_of_its_own(
    conductor: Conductor,
) -> None:
    _, two, three = await talk(conductor)
    edited = await conductor.ask((*TALK[:3], answer("zwei"), user("three")))
    assert texts(edited)[:2] == texts(two) and texts(edited)[2] not in texts(three)


async def test_what_attaches_again_is_of_the_branch_that_was_placed_last(
    conductor: Conductor,
) -> None:
    """Both have the same message at the same number."""
    await talk(conductor)
    branch = (*TALK[:2], user("other"), answer("2"), user("three"))
    later = await talk(conductor, branch)
    cut = (*branch[:3], answer("[cleared]"), branch[4], answer("3"), user("four"))
    assert texts(await conductor.ask(cut))[:3] == texts(later[-1])


async def test_a_compaction_begins_anew_and_keeps_the_class_of_its_id(
    conductor: Conductor,
) -> None:
    await talk(conductor)
    sessions = await conductor.sessions.find("alice", (await _key(conductor)))
    await conductor.sessions.save(replace(sessions[0], task_class="debug"))
    compacted = await conductor.ask((user("So far: 1, 2. Go on."),), kind="machine")
    assert not compacted.segments and compacted.choice.is_new
    assert compacted.choice.task_class == "debug"
    fresh = await conductor.ask((user("So far: 1, 2. Go on."), answer("yes"), user("three")))
    assert at(fresh) == [2] and fresh.placed.record is not None


async def _key(conductor: Conductor) -> str:
    seen = await conductor.ask(TALK)
    return seen.choice.key


async def test_a_branch_in_which_no_note_was_written_gets_none_later(
    conductor: Conductor,
) -> None:
    """Its messages equal those of another branch that had some."""
    await talk(conductor)
    edited = (*TALK[:2], user("other"), answer("2"), user("three"))
    await conductor.ask(edited[:3])
    plain = await conductor.ask(edited, choices=2)
    assert at(plain) == [0, 2]
    on = await conductor.ask((*edited, answer("3"), user("four")))
    assert at(on) == [0, 2, 6] and on.prompt.startswith(plain.prompt)


async def test_agents_that_share_an_id_keep_apart(conductor: Conductor) -> None:
    first = (user("part one"), answer("a"), user("go on"), answer("b"), user("go on"))
    second = (user("part two"), answer("x"), user("go on"), answer("y"), user("go on"))
    before = {"first": "", "second": ""}
    for end in (1, 3, 5):
        for name, messages in (("first", first), ("second", second)):
            seen = await conductor.ask(messages[:end])
            assert seen.prompt.startswith(before[name]) and len(seen.segments) == (end + 1) // 2
            assert "moved" not in str(seen.events)
            before[name] = seen.prompt


async def test_records_without_their_session_still_stand(
    conductor: Conductor, notebook: MemoryNotebook
) -> None:
    *_, three = await talk(conductor)
    notebook.session_rows.clear()
    on = await conductor.ask((*TALK, answer("3"), user("four")))
    assert on.prompt.startswith(three.prompt)


# -- ids and last uses ----------------------------------------------------------------------------


async def test_ids_are_used_while_the_tokenizer_is_the_same(conductor: Conductor) -> None:
    await talk(conductor)
    messages = (*TALK, answer("3"), user("four"))
    same = await conductor.ask(messages, choices=2)
    assert [segment.ids for segment in same.segments] == [
        tuple(segment.text.encode()) for segment in same.segments
    ]
    assert {segment.tokenizer_hash for segment in same.segments} == {TOKENIZER}
    conductor.tokenizer_hash = "tokenizer-2"
    other = await conductor.ask(messages, choices=2)
    assert texts(other) == texts(same)
    assert {(segment.ids, segment.tokenizer_hash) for segment in other.segments} == {(None, None)}
    assert ("note_lost", "tokenizer") in other.events
    assert [line.numbers for line in other.replayed.journal][1] == {"count": 3}
    learned_again = await conductor.ask(messages, choices=2)
    assert {segment.tokenizer_hash for segment in learned_again.segments} == {"tokenizer-2"}
    assert ("note_lost", "tokenizer") not in learned_again.events
    conductor.tokenizer_hash = None
    unknown = await conductor.ask(messages, choices=2)
    assert {segment.tokenizer_hash for segment in unknown.segments} == {"tokenizer-2"}
    assert ("note_lost", "tokenizer") not in unknown.events


async def test_a_note_that_no_worker_encoded_yet_is_not_lost(conductor: Conductor) -> None:
    conductor.has_ids = False
    *_, last = await talk(conductor)
    assert ("note_lost", "tokenizer") not in last.events and len(last.segments) == 3


async def test_a_last_use_is_written_once_an_hour(conductor: Conductor) -> None:
    *_, last = await talk(conductor)
    assert last.replayed.saved == ()
    conductor.now_ms += TOUCH_MS
    later = await conductor.ask((*TALK, answer("3"), user("four")))
    assert [record.used_ms for record in later.replayed.saved] == [conductor.now_ms] * 3
    assert {record.created_ms for record in later.replayed.saved} < set(range(2_000, 10_000))


def note(**more: object) -> NoteRecord:
    record = NoteRecord("alice", "key", "c", "m", "user", 0, "note", "text")
    return replace(record, **more)  # type: ignore[arg-type]


def test_ids_that_a_worker_returned_go_to_their_records() -> None:
    one, other = note(), note(chain="d")
    assert segment_key(one) != segment_key(other)
    assert with_ids(one, [1, 2], "t") == replace(one, ids=(1, 2), tokenizer_hash="t")
    assert learned([one, other], {segment_key(other): [3]}, "t") == (with_ids(other, [3], "t"),)
    assert learned([one], {}, "t") == ()


def test_segments_of_one_message_have_keys_of_their_own() -> None:
    places = [{}, {"kind": "hidden"}, {"kind": "hidden", "offset": 0}, {"part": REASONING_PART}]
    assert len({segment_key(note(**place)) for place in places}) == len(places)


# -- hidden text in answers -----------------------------------------------------------------------


ASKED = History((user("sum it up"),))
WRITTEN = answer("All is well.", reasoning="Let me see. It is fine.")


def hidden(text: str, part: int | None, offset: int, answered: Message = WRITTEN) -> NoteRecord:
    return hidden_record(
        ASKED, answered, text, scope="alice", session="key", part=part, offset=offset, now_ms=5
    )


def replayed(records: list[NoteRecord], *messages: Message) -> tuple[str, list[tuple[str, str]]]:
    history = History((*ASKED.messages, *messages))
    session = Session("alice", "key", ASKED.tip, "p", opening=ASKED.tip)
    seen = replay(
        history, records, Choice("key", session, is_whole=True), scope="alice",
        tokenizer_hash=None, now_ms=9,
    )  # fmt: skip
    assert len(seen.standing) == len(seen.segments)
    prompt = prompt_of(history.messages, seen.segments, shows_reasoning=True)
    return prompt, [(line.event, line.reason) for line in seen.journal]


def test_hidden_text_stands_again_where_it_stood() -> None:
    records = [hidden("<b>", None, 4), hidden("<a>", REASONING_PART, 11), hidden("<c>", None, 0)]
    prompt, events = replayed(records, WRITTEN)
    assert "(Let me see.<a> It is fine.)<c>All <b>is well." in prompt
    assert events == [("note_replay", "")]
    in_parts = replace(WRITTEN, content=(TextPart("Al"), TextPart("l is well.")))
    assert replayed(records, in_parts)[0] == prompt


def test_hidden_text_goes_with_the_reasoning_it_stood_in() -> None:
    records = [hidden("<a>", REASONING_PART, 11), hidden("<c>", None, 0)]
    for reasoning in (None, "Let me see. It is fine", ""):
        prompt, events = replayed(records, replace(WRITTEN, reasoning=reasoning))
        assert "<a>" not in prompt and "<c>All is well." in prompt
        assert ("note_lost", "reasoning") in events
    later = replayed(records, replace(WRITTEN, reasoning=None), user("so?"), answer("So."))
    assert ("note_lost", "reasoning") not in later[1]  # that was said before


def test_hidden_text_goes_with_an_answer_that_was_edited() -> None:
    prompt, events = replayed([hidden("<c>", None, 0)], answer("All is bad."))
    assert "<c>" not in prompt and events == []


def test_hidden_text_in_no_reasoning_stands_nowhere() -> None:
    quiet = answer("All is well.")
    prompt, events = replayed([hidden("<a>", REASONING_PART, 0, quiet)], quiet)
    assert "<a>" not in prompt and events == [("note_lost", "reasoning")]


def test_records_of_another_scope_stand_nowhere() -> None:
    strange = replace(hidden("<c>", None, 0), scope="bob")
    assert replayed([strange], WRITTEN) == (replayed([], WRITTEN)[0], [])


def test_hidden_text_of_equal_answers_is_told_apart() -> None:
    again = History((user("x"), WRITTEN, user("y")))
    record = hidden_record(
        again, WRITTEN, "<d>", scope="alice", session="key", part=None, offset=0, now_ms=5
    )
    assert record.ordinal == 1 and hidden("<c>", None, 0).ordinal == 0
    prompt, _ = replayed([record], WRITTEN)
    assert "<d>" not in prompt
