"""One conversation has one chain, however a client writes it; ids are asked and not believed."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.session import (
    Choice,
    History,
    body_ids,
    chain,
    choose,
    content_key,
    link,
    message_hash,
    moved_on,
    session_ids,
)
from conductor.types import Asked, Session
from proto.chat import ImagePart, Json, Message, TextPart, Tool, ToolCall

CAT, DOG = ImagePart("data:image/png;base64,AAAA"), ImagePart("https://pictures.example/dog.png")


def said(role: str, *pieces: str, calls: tuple[ToolCall, ...] = ()) -> Message:
    return Message(role, tuple(TextPart(piece) for piece in pieces), calls)  # type: ignore[arg-type]


def asked(headers: dict[str, str] | None = None, **ids: str) -> Asked:
    return Asked("chat", headers or {}, body_ids=ids)


# -- ids ------------------------------------------------------------------------------------------


def test_ids_come_in_their_order_and_never_as_they_are() -> None:
    headers = {
        "x-openwebui-chat-id": "nine", "x-claude-code-session-id": "eight",
        "x-opencode-session": "seven", "x-codex-session-id": "six", "x-session-id": "five",
        "session_id": "four", "session-id": "three", "x-session-affinity": "two",
        "x-tandem-session": "one", "user-agent": "zero",
    }  # fmt: skip
    ids = session_ids(asked(headers, prompt_cache_key="ten"))
    names = "one two three four five six seven eight nine ten".split()  # noqa: SIM905
    singly = [session_ids(asked({"x-tandem-session": name})) for name in names]
    assert [(name,) for name in ids] == singly
    assert all(len(name) == 64 for name in ids)


def test_one_id_in_two_places_is_one_and_none_is_none() -> None:
    headers = {"x-session-id": "ses_1", "x-session-affinity": "ses_1", "x-tandem-session": ""}
    assert len(session_ids(asked(headers))) == 1
    assert session_ids(asked()) == ()


def test_an_id_of_any_characters_is_hashed() -> None:
    assert len(session_ids(asked({"x-session-id": "\ud800é"}))) == 1


def test_ids_of_a_body() -> None:
    assert body_ids({"prompt_cache_key": "a", "metadata": {"session_id": "b", "user_id": "c"}}) == {
        "prompt_cache_key": "a",
        "metadata.session_id": "b",
    }
    document = json.dumps({"device_id": "d", "session_id": "e"})
    assert body_ids({"metadata": {"user_id": document}}) == {"metadata.user_id": "e"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"user": "somebody", "metadata": "words", "prompt_cache_key": ""},
        {"prompt_cache_key": 5, "metadata": {"session_id": ["x"], "user_id": "account_7"}},
        {"metadata": {"user_id": '["session_id"]'}},
        {"metadata": {"user_id": '{"session_id": 5}'}},
        {"metadata": {"user_id": "[" * 100_000}},
        {"metadata": {"user_id": {"session_id": "x"}}},
    ],
)
def test_what_names_no_session_is_no_id(fields: dict[str, Json]) -> None:
    assert body_ids(fields) == {}


def test_chats_that_begin_alike_share_a_content_key_and_no_others_do() -> None:
    tools = (Tool("read"), Tool("bash"))
    talk = (said("system", "Be kind."), said("user", "Hello."), said("assistant", "Hi."))
    key = content_key("alice", talk, tools)
    assert key == content_key("alice", talk[:2], tools[::-1])
    assert key == content_key("alice", (*talk, said("system", "Reminder.")), tools)
    others = [
        content_key("bob", talk, tools),
        content_key("alice", talk, tools[:1]),
        content_key("alice", (said("system", "Be brief."), *talk[1:]), tools),
        content_key("alice", (talk[0], said("user", "Hello!")), tools),
        content_key("alice", talk[1:], tools),
    ]
    assert len({key, *others}) == 6


# -- the chain ------------------------------------------------------------------------------------

TALK = (
    said("system", "You work in a repository."),
    said("user", "Which tests fail?"),
    Message(
        "assistant",
        (),
        (ToolCall("call_1", "bash", '{"command": "make test", "quiet": true, "n": 1}'),),
        reasoning="I should look.",
    ),
    Message("tool", (TextPart("2 failed\n"),), call_id="call_1"),
    said("assistant", "Two of them."),
    Message("user", (TextPart("Like here?"), CAT)),
)


def test_a_system_message_repeats_the_hash_before_it() -> None:
    hashes = chain(TALK)
    assert len(hashes) == len(TALK) and len(set(hashes)) == len(TALK)
    changed = chain((said("system", "It is Tuesday."), *TALK[1:], said("developer", "Now.")))
    assert changed == (*hashes, hashes[-1])
    assert link(hashes[-1], said("user", "More.")) == chain((*TALK, said("user", "More.")))[-1]


def value_again(value: Json, draw: st.DrawFn) -> Json:
    """The same JSON value, its keys in another order and its whole numbers otherwise."""
    match value:
        case dict():
            names = draw(st.permutations(sorted(value)))
            return {name: value_again(value[name], draw) for name in names}
        case list():
            return [value_again(inner, draw) for inner in value]
        case bool():
            return value
        case int():
            return draw(st.sampled_from([value, float(value)]))
        case _:
            return value


@st.composite
def written_again(draw: st.DrawFn, message: Message) -> Message:
    """A legal spelling of a message: what clients do to a history that they send back."""
    content: list[TextPart | ImagePart] = []
    for part in message.content:
        if isinstance(part, TextPart):
            at = draw(st.integers(0, len(part.text)))
            content += [TextPart(part.text[:at]), TextPart(part.text[at:])]
        else:
            content.append(replace(part, detail=draw(st.sampled_from([None, "low"]))))
    if draw(st.booleans()):
        content = [part for part in content if part != TextPart("")]
    calls = []
    for call in message.calls:
        separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,", " : ")]))
        arguments = json.dumps(
            value_again(json.loads(call.arguments), draw),
            separators=separators,
            ensure_ascii=draw(st.booleans()),
        )
        calls.append(replace(call, id=draw(st.text(max_size=3)), arguments=arguments))
    return replace(
        message,
        content=tuple(content),
        calls=tuple(calls),
        call_id=draw(st.none() | st.text(max_size=3)),
        name=draw(st.none() | st.just("ada")),
        reasoning=draw(st.sampled_from([None, message.reasoning, "other"])),
    )


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
PARTS = st.builds(TextPart, st.text(max_size=8)) | st.sampled_from([CAT, DOG])
CALLS = st.builds(
    ToolCall,
    st.just("id"),
    st.sampled_from(["read", "bash"]),
    st.builds(json.dumps, st.dictionaries(st.text(max_size=3), JSON_VALUES, max_size=3)),
)
MESSAGES = st.builds(
    Message,
    st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
    st.lists(PARTS, max_size=3).map(tuple),
    st.lists(CALLS, max_size=2).map(tuple),
)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.lists(MESSAGES, min_size=1, max_size=5))
def test_any_legal_spelling_of_a_history_gives_one_chain(
    data: st.DataObject, messages: list[Message]
) -> None:
    again = [data.draw(written_again(message)) for message in messages]
    assert chain(again) == chain(messages)
    assert History(tuple(again)).hashes == History(tuple(messages)).hashes


@settings(max_examples=200, deadline=None)
@given(st.data(), st.lists(MESSAGES, min_size=1, max_size=4), st.characters())
def test_any_character_more_gives_another_chain(
    data: st.DataObject, messages: list[Message], character: str
) -> None:
    index = data.draw(st.integers(0, len(messages) - 1))
    message = messages[index]
    at = data.draw(st.integers(0, len(message.content)))
    parts = (*message.content[:at], TextPart(character), *message.content[at:])
    changed = [*messages]
    changed[index] = replace(message, content=parts)
    assert message_hash(changed[index]) != message_hash(message)
    is_seen = message.role not in ("system", "developer")
    assert (chain(changed)[-1] != chain(messages)[-1]) == is_seen


CALL = ToolCall("c", "read", '{"path": "a", "lines": [1, 2], "all": true}')


@pytest.mark.parametrize(
    "other",
    [
        replace(CALL, name="Read"),
        replace(CALL, arguments='{"path": "b", "lines": [1, 2], "all": true}'),
        replace(CALL, arguments='{"path": "a", "lines": [2, 1], "all": true}'),
        replace(CALL, arguments='{"path": "a", "lines": [1, 2], "all": 1}'),
        replace(CALL, arguments='{"path": "a", "lines": [1, 2.5], "all": true}'),
        replace(CALL, arguments='{"path": "a", "lines": ["1", 2], "all": true}'),
        replace(CALL, arguments='{"path": "a", "lines": [1, 2], "all": true'),
        replace(CALL, arguments='"{\\"path\\": \\"a\\", \\"lines\\": [1, 2], \\"all\\": true}"'),
    ],
)
def test_another_name_or_value_in_a_call_is_another_message(other: ToolCall) -> None:
    before, after = (Message("assistant", calls=(call,)) for call in (CALL, other))
    assert message_hash(before) != message_hash(after)


def test_order_role_and_place_count() -> None:
    def alike(one: Message, other: Message) -> bool:
        return message_hash(one) == message_hash(other)

    assert not alike(said("user", "x"), said("assistant", "x"))
    assert not alike(Message("user", (CAT, DOG)), Message("user", (DOG, CAT)))
    assert not alike(Message("user", (CAT, TextPart("x"))), Message("user", (TextPart("x"), CAT)))
    two = (CALL, replace(CALL, name="write"))
    assert not alike(Message("assistant", calls=two), Message("assistant", calls=two[::-1]))
    one, other = said("user", "a"), said("user", "b")
    assert chain((one, other))[-1] != chain((other, one))[-1]
    assert chain((said("user", "ab"),))[-1] != chain((one, other))[-1]


@pytest.mark.parametrize(
    "arguments",
    ['{"a": 1', '{"a": NaN}', "[" * 100_000, "9" * 5_000, "\ud800", '{"a": "\ud800"}'],
)
def test_arguments_that_are_no_json_count_as_they_are(arguments: str) -> None:
    broken = Message("assistant", calls=(ToolCall("c", "read", arguments),))
    spaced = Message("assistant", calls=(ToolCall("c", "read", arguments + "}"),))
    assert message_hash(broken) == message_hash(replace(broken, reasoning="x"))
    assert message_hash(broken) != message_hash(spaced)


def test_a_number_that_json_has_not_is_no_word() -> None:
    calls = [ToolCall("c", "read", text) for text in ('{"a": NaN}', '{"a": "NaN"}')]
    assert len({message_hash(Message("assistant", calls=(call,))) for call in calls}) == 2


def test_no_arguments_are_written_in_several_ways() -> None:
    ways = [
        Message("assistant", calls=(ToolCall("c", "now", text),)) for text in ("", "{}", " { }")
    ]
    assert len({message_hash(way) for way in ways}) == 1


def test_equal_messages_of_a_role_are_numbered() -> None:
    go = said("user", "go on")
    yes = said("assistant", "go on")
    history = History((go, yes, go, said("user", "stop"), go, yes, go))
    assert history.ordinals == (0, 0, 1, 0, 2, 1, 3)
    history = History(history.messages[:5])
    assert (history.last_answer, history.opening) == (1, history.chains[1])
    first = History((go, go))
    assert (first.last_answer, first.opening, first.tip) == (-1, first.tip, first.chains[-1])
    assert History(()).tip == History((said("system", "x"),)).tip


# -- which session it is --------------------------------------------------------------------------


def history(*texts: str) -> History:
    """Question, answer, question, …"""
    roles = ("user", "assistant")
    return History(tuple(said(roles[index % 2], text) for index, text in enumerate(texts)))


def after(*texts: str, **more: str) -> Session:
    """The session that such a request left behind."""
    session = moved_on(Choice("key"), history(*texts), scope="alice", now_ms=5)
    return replace(session, **more)  # type: ignore[arg-type]


def chosen(candidates: list[Session], *texts: str, is_id: bool = True) -> Choice:
    return choose("key", candidates, history(*texts), scope="alice", is_id=is_id)


def test_a_history_that_goes_on_is_known_whole() -> None:
    session = after("a", "b", "c", task_class="debug")
    for texts in (("a", "b", "c"), ("a", "b", "c", "d", "e")):
        assert chosen([session], *texts) == Choice(
            "key", session, is_whole=True, task_class="debug"
        )


def test_a_history_that_was_changed_behind_its_opening_is_known_in_part() -> None:
    session = after("a", "b", "c", "d", "e", task_class="edit")
    for texts in (("a", "b", "C"), ("a", "b", "c", "pruned", "e", "f", "g")):
        assert chosen([session], *texts) == Choice("key", session, task_class="edit")


def test_an_id_alone_is_never_trusted_and_keeps_the_class_alone() -> None:
    others = [after("x", "y", "z", task_class="math"), after("p", task_class="chat")]
    choice = chosen(others, "a", "b", "c")
    assert choice == Choice("key", task_class="math") and choice.is_new
    assert chosen(others, "a", is_id=False) == Choice("key")
    assert chosen([], "a") == Choice("key")


def test_the_longest_known_beginning_is_chosen() -> None:
    stem, one, other = after("a"), after("a", "b", "c"), after("a", "B", "C", "D", "E")
    assert chosen([stem, one, other], "a", "b", "c", "d", "e").session == one
    assert chosen([stem, one, other], "a", "B", "other").session == other
    assert chosen([one, other, stem], "a", "third", "c") == Choice("key", stem, is_whole=True)
    assert chosen([one, other], "a", "third", "c").is_new


def test_nothing_of_another_key_or_scope_is_chosen() -> None:
    mine = after("a", "b", "c")
    strangers = [replace(mine, scope="bob"), replace(mine, key="other")]
    assert chosen(strangers, "a", "b", "c").is_new


def test_a_session_moves_on_with_its_request() -> None:
    first = moved_on(Choice("key", task_class="math"), history("a"), scope="alice", now_ms=5)
    assert (first.scope, first.key, first.turns, first.created_ms) == ("alice", "key", 1, 5)
    assert first.chain == first.opening == history("a").tip and first.task_class == "math"
    kept = replace(first, packages=("p",), profile="coding")
    then = moved_on(Choice("key", kept), history("a", "b", "c"), scope="alice", now_ms=9)
    assert then == replace(
        kept, chain=history("a", "b", "c").tip, opening=history("a", "b").tip, turns=2, used_ms=9
    )
