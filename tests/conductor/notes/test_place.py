"""A note stands at the end of the last message or nowhere, and only when there is something new."""

from dataclasses import replace

import pytest

from conductor.notes.place import IMAGE_TOKENS, MESSAGE_TOKENS, Turn, new_note, place_of, room_left
from conductor.notes.render import Say, render
from conductor.notes.replay import Replay
from conductor.profiles import NoteRules, Rule
from conductor.session import Choice, History
from conductor.tokens import estimated_tokens
from conductor.types import Package, TurnKind
from gateway.notebook.keeping import Keeping
from gateway.notebook.memory import MemoryNotebook
from proto.chat import ImagePart, Message, Tool
from tests.conductor.notes.talking import Conductor, answer, result, system, user

TWO_CALLS = answer("", ("read", "{}"), ("read", "{}"))
CALL = answer("", ("read", "{}"))
ONE, OTHER = result("one", 0), result("two", 1)
RULE, RULE_TOO = Rule("tests", "Run the tests."), Rule("lock", "Leave the lock file.")
NOTHING = Replay()
LOGS = Package("logs", "Logs", "Read the end first.", hash="")


@pytest.fixture
def conductor() -> Conductor:
    notebook = MemoryNotebook(Keeping())
    return Conductor(notebook.sessions, notebook.notes)


# -- where ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "index"),
    [
        ((user("x"),), 0),
        ((system("s"), user("x")), 1),
        ((user("x"), CALL, ONE), 2),
        ((user("x"), TWO_CALLS, ONE, OTHER), 3),
        ((user("x"), TWO_CALLS, ONE, OTHER, user("and")), 4),
        ((user("x"), system("trailing")), 1),
        ((user("x"), TWO_CALLS, ONE, OTHER, system("a"), Message("developer")), 5),
        ((result("one"),), 0),
        ((user(),), 0),
    ],
)
def test_a_note_stands_in_the_last_message(messages: tuple[Message, ...], index: int) -> None:
    assert place_of(messages) == index


@pytest.mark.parametrize(
    "messages",
    [
        (),
        (system("s"),),
        (system("s"), Message("developer")),
        (user("x"), answer("y")),
        (user("x"), answer("y"), system("trailing")),
        (user("x"), TWO_CALLS, ONE),
        (user("x"), TWO_CALLS, ONE, system("trailing")),
    ],
)
def test_no_note_in_a_system_prompt_an_answer_or_between_results(
    messages: tuple[Message, ...],
) -> None:
    assert place_of(messages) is None


async def test_it_stands_at_the_end_of_the_text(conductor: Conductor) -> None:
    seen = await conductor.ask((user("one", ImagePart("https://x.example/p.png"), " two"),))
    assert seen.prompt.endswith(f"one two{seen.segments[0].text}[assistant]")
    (segment,) = seen.segments
    assert (segment.kind, segment.message, segment.part, segment.offset) == ("note", 0, None, None)


# -- when -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["side", "continuation", "machine"])
async def test_other_turns_get_no_note(kind: TurnKind, conductor: Conductor) -> None:
    seen = await conductor.ask((user("x"),), kind=kind)
    assert (seen.segments, seen.events) == ((), [])


async def test_several_choices_get_no_note(conductor: Conductor) -> None:
    assert not (await conductor.ask((user("x"),), choices=2)).segments
    assert (await conductor.ask((user("x"), answer("y"), user("z")))).segments


async def test_a_profile_may_want_none(conductor: Conductor) -> None:
    conductor.rules = NoteRules(enabled=False)
    assert not (await conductor.ask((user("x"),))).segments


async def test_nothing_to_say_is_no_note(conductor: Conductor) -> None:
    conductor.effort = ""
    seen = await conductor.ask((user("x"),))
    assert (seen.segments, seen.placed.record, seen.events) == ((), None, [])


async def test_a_note_says_what_it_is_in_the_journal(conductor: Conductor) -> None:
    seen = await conductor.ask((system("s"), user("x")))
    (line,) = seen.placed.journal
    assert (line.event, line.reason, line.task) == ("note_new", "user", "edit")
    assert line.numbers == {"message": 1, "tokens": 27}
    record = seen.placed.record
    assert record is not None and record.text == seen.segments[0].text
    assert (record.scope, record.role, record.kind, record.task_class) == (
        "alice", "user", "note", "edit"
    )  # fmt: skip
    again = await conductor.ask((system("s"), user("x")))
    assert again.replayed.notes[-1].task_class == "edit"


async def test_a_retry_of_a_turn_without_a_note_gets_none(conductor: Conductor) -> None:
    effort, conductor.effort = conductor.effort, ""
    before = await conductor.ask((user("x"),))
    conductor.effort = effort
    after = await conductor.ask((user("x"),))
    assert after.prompt == before.prompt


CALLED = (user("x"), CALL, ONE)
CALLED_AGAIN = (*CALLED, CALL, result("three"))


async def test_a_result_gets_a_note_where_none_stands(conductor: Conductor) -> None:
    conductor.rules = NoteRules(enabled=False)
    await conductor.ask(CALLED[:1])
    conductor.rules = NoteRules()
    seen = await conductor.ask(CALLED)
    assert [segment.message for segment in seen.segments] == [2]
    assert not (await conductor.ask(CALLED_AGAIN)).placed.record


async def test_a_result_gets_a_note_of_what_does_not_stand_yet(conductor: Conductor) -> None:
    conductor.say = Say("Effort.", (RULE,))
    await conductor.ask(CALLED[:1])
    conductor.say = Say("Effort.", (RULE,), memories=(("m1", "Tabs."),))
    same = await conductor.ask(CALLED)
    assert same.placed.record is None
    conductor.say = Say("Effort.", (RULE, RULE_TOO))
    by_rule = await conductor.ask(CALLED_AGAIN)
    assert by_rule.placed.said == render(Say(rules=(RULE_TOO,)), 2_000)
    conductor.say = Say("Effort.", (RULE, RULE_TOO), (LOGS,))
    more = (*CALLED_AGAIN, CALL, result("four"))
    by_package = await conductor.ask(more)
    assert by_package.placed.said == render(Say(packages=(LOGS,)), 2_000)
    last = await conductor.ask((*more, CALL, result("five")))
    assert last.placed.record is None and len(last.segments) == 3


async def test_a_user_hears_rules_again_but_no_package_twice(conductor: Conductor) -> None:
    conductor.say = Say("Effort.", (RULE,), (LOGS,), (("m1", "Tabs."),))
    first = await conductor.ask((user("x"),))
    assert first.placed.said == render(conductor.say, 2_000)
    second = await conductor.ask((user("x"), answer("y"), user("z")))
    assert second.placed.said == render(Say("Effort.", (RULE,)), 2_000)
    edited = await conductor.ask((user("other"),))
    assert edited.placed.said.packages == ("logs",)  # the first one does not stand here


# -- room -----------------------------------------------------------------------------------------


def placed_with(room_tokens: int | None, say: Say, most: int = 2_000) -> tuple[int, list[str]]:
    history = History((user("x"),))
    placed = new_note(
        history, Replay(), say, Turn("user", room_tokens=room_tokens), NoteRules(max_tokens=most),
        scope="alice", choice=Choice("key"), now_ms=5,
    )  # fmt: skip
    events = [f"{line.event} {line.reason}" for line in placed.journal]
    return (0 if placed.segment is None else 1), events


def test_the_newest_note_is_left_out_where_it_would_not_fit() -> None:
    say = Say("Think.")
    tokens = estimated_tokens(render(say, 100).text)
    assert placed_with(tokens, say) == (1, ["note_new user"])
    assert placed_with(tokens - 1, say) == (0, ["note_lost room"])
    assert placed_with(None, say) == (1, ["note_new user"])


def test_pieces_that_are_left_out_are_said_so() -> None:
    long = Rule("long", "word " * 100)
    assert placed_with(None, Say("Think.", (long,)), 100) == (
        1, ["note_lost piece", "note_new user"]
    )  # fmt: skip
    assert placed_with(None, Say(rules=(long,)), 100) == (0, ["note_lost piece"])


async def test_room_counts_everything_that_is_sent(conductor: Conductor) -> None:
    seen = await conductor.ask((user("x"),))
    standing = replace(seen.replayed, segments=seen.segments)

    def room(messages: tuple[Message, ...], *tools: Tool, replayed: Replay = NOTHING) -> int:
        return room_left(messages, tools, replayed, context_tokens=10_000, answer_tokens=1_000)

    assert room(()) == 9_000
    assert room((user("x" * 300),)) == 9_000 - 100 - MESSAGE_TOKENS
    assert room((user(ImagePart("https://x.example")),)) == 9_000 - IMAGE_TOKENS - MESSAGE_TOKENS
    called = answer("abc", ("read", '{"a": 1}'), reasoning="abcdef")
    assert room((called,)) == 9_000 - 1 - 2 - 4 - MESSAGE_TOKENS
    tool = Tool("read", "Reads.", {"type": "object"})
    assert room((), tool) < 9_000 - 5
    assert room((), Tool("read")) == 9_000 - 2
    assert room((), replayed=standing) == 9_000 - 17
