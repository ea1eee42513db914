"""What kind of turn a request is, and whose words are in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.turn import (
    MACHINE_PREFIXES,
    WRAPPERS,
    Turn,
    last_index,
    last_user_turn,
    own_words,
    turn_of,
)
from proto.chat import Call, ImagePart, Message, TextPart
from tests.conductor.client_requests import call_of, called, result, said

ASKS = said("user", "why does it fail?")
IMAGE = ImagePart("https://x.invalid/1.png")
PICTURE = Message("user", (IMAGE,))
REMINDER = "<system-reminder>\nMind the date.\n</system-reminder>"
COMPACTED = said("user", "Another language model started to solve this problem and wrote: …")


def kind_of(*messages: Message) -> str:
    return turn_of(call_of(*messages)).kind


def test_a_users_message_is_a_turn_of_theirs() -> None:
    assert turn_of(call_of(said("system", "S"), ASKS)) == Turn("user", "why does it fail?", 1)


@pytest.mark.parametrize(
    "messages",
    [
        (ASKS, called(), result()),
        (ASKS, called(), result(), PICTURE),
        (ASKS, called(), result(), said("system", "Mind."), PICTURE),
        (ASKS, called(), result(), Message("user", (TextPart(REMINDER), IMAGE))),
        (ASKS, called(), result(), said("system", "Mind."), said("developer", "Mind.")),
    ],
)
def test_a_tool_result_in_any_form(messages: tuple[Message, ...]) -> None:
    assert kind_of(*messages) == "tool_result"


def test_a_picture_elsewhere_is_a_users() -> None:
    assert turn_of(call_of(PICTURE)) == Turn("user", "", 0, has_files=True)
    assert kind_of(ASKS, said("assistant", "Which?"), PICTURE) == "user"
    assert kind_of(ASKS, called(), result(), Message("user", (TextPart("this?"), IMAGE))) == "user"


def test_the_models_own_message_is_a_continuation() -> None:
    assert kind_of(ASKS, said("assistant", "Because")) == "continuation"
    assert kind_of(ASKS, said("assistant", "Because"), said("system", "Mind.")) == "continuation"


def test_system_messages_behind_the_last_one_do_not_count() -> None:
    turn = turn_of(call_of(ASKS, said("system", "Agents: none."), said("developer", "Mind.")))
    assert (turn.kind, turn.index) == ("user", 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  \n ",
        REMINDER,
        f"{REMINDER}\n\n{REMINDER}",
        "<environment_context>\n<cwd>/x</cwd>\n</environment_context>",
        "<local-command-stdout></local-command-stdout>",
        "[CONTEXT COMPACTION — for reference] They wanted …",
        "[System note: the session was resumed]",
        "[Runtime note: time is up]",
        f"{REMINDER}\n[System note: go on]",
        "Another language model started to solve this problem and …",
        "Tool call error:\n\n<error>\nNo call.\n</error>",
        "Tool call error: <error>No call.</error>",
        "Please provide a concise summary of our conversation so far, capturing the key context, …",
    ],
)
def test_what_a_program_wrote_into_the_users_place_is_a_machines(text: str) -> None:
    assert kind_of(ASKS, said("assistant", "Yes."), said("user", text)) == "machine"


@pytest.mark.parametrize(
    "text",
    [
        "What does [System note: x] mean?",
        "Tool call error: what is that?",
        "I see <error> in a Tool call error:",
        "Is <system-reminder> a tag?",
        "continue",
        "continue if you have next steps",
        "Please provide a concise summary of our conversation so far.",
    ],
)
def test_a_user_may_write_the_same_words(text: str) -> None:
    turn = turn_of(call_of(ASKS, said("assistant", "Yes."), said("user", text)))
    assert (turn.kind, turn.text) == ("user", text)


@pytest.mark.parametrize("text", ["continue", "Continue.", "Continue if you have next steps, or …"])
@pytest.mark.parametrize(
    "before",
    [
        (COMPACTED,),
        (COMPACTED, said("assistant", "So far …")),
        (COMPACTED, called(), result()),
        (ASKS, said("assistant", "[CONTEXT COMPACTION] So far …")),
        (said("user", "What did we do so far?"), said("assistant", "We …")),
        (COMPACTED, said("system", "Mind.")),
        (said("system", "You help."), said("assistant", "So far …")),
    ],
)
def test_to_go_on_after_a_compaction_is_a_machines(text: str, before: tuple[Message, ...]) -> None:
    assert kind_of(*before, said("user", text)) == "machine"


def test_to_go_on_later_is_a_users() -> None:
    messages = (COMPACTED, said("assistant", "So."), ASKS, said("assistant", "Because."))
    assert kind_of(*messages, said("user", "continue")) == "user"
    assert kind_of(COMPACTED, said("user", "continue with the tests")) == "user"
    assert kind_of(said("user", "continue")) == "user"
    assert kind_of(said("assistant", "So."), said("user", "Go on with it.")) == "user"
    assert kind_of(called(), result(), said("user", "continue")) == "user"


def test_a_request_without_a_message_is_a_machines() -> None:
    assert turn_of(Call("m", (), prompt="Once upon")) == Turn("machine")
    assert turn_of(call_of(said("system", "S"))) == Turn("machine")
    assert last_index(()) is None


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_are_not_the_users_words(name: str) -> None:
    wrapped = f'<{name} kind="x">\nwritten\nby a program\n</{name}>'
    assert own_words(f"{wrapped}\nfix it{wrapped} now\n{wrapped}") == "fix it now"
    assert own_words(f"<{name}>left open, fix it") == f"<{name}>left open, fix it"


def test_parts_count_as_their_text_does() -> None:
    parts = Message("user", (TextPart(REMINDER), IMAGE, TextPart("\nfix "), TextPart("it\n")))
    assert turn_of(call_of(parts)) == Turn("user", "fix it", 0, has_files=True)


def test_lines_of_ours_are_not_the_users_words() -> None:
    text = "› waiting\nfix it\n› waiting too"
    call = call_of(said("user", text))
    assert turn_of(call, lambda line: line.startswith("› waiting")).text == "fix it"
    assert turn_of(call).text == text
    assert turn_of(call, lambda line: True).kind == "machine"


def test_an_overlapping_wrapper_ends_where_the_first_one_ends() -> None:
    text = "<command-name>/x <command-args>a</command-name> b </command-args> c"
    assert own_words(text) == "b </command-args> c"


def test_the_body_of_a_slash_command_is_known_by_the_commands_name() -> None:
    name = "<command-message>x is running</command-message>\n<command-name>/x</command-name>"
    assert turn_of(call_of(said("user", f"{name}\nRead all files."))) == Turn(
        "user", "Read all files.", 0, is_command=True
    )
    behind = turn_of(call_of(said("user", name), said("user", "Read all files.")))
    assert behind.is_command
    assert not turn_of(call_of(said("user", f"{name} do"), said("user", "Read."))).is_command
    assert not turn_of(call_of(said("assistant", name), said("user", "Read."))).is_command
    assert not turn_of(call_of(ASKS, said("user", "Read."))).is_command
    assert not turn_of(call_of(said("user", REMINDER), said("user", "Read."))).is_command
    assert not turn_of(call_of(said("user", "What is <command-name>?"))).is_command


def test_the_last_user_turn_is_the_newest_that_a_person_wrote() -> None:
    call = call_of(ASKS, called(), result(), said("user", REMINDER), said("assistant", "So."))
    assert last_user_turn(call) == Turn("user", "why does it fail?", 0)
    assert last_user_turn(call_of(COMPACTED, result())) == Turn("machine")


TAGS = st.sampled_from([f"<{name}>" for name in WRAPPERS] + [f"</{name}>" for name in WRAPPERS])


@given(st.lists(TAGS | st.sampled_from(["a", " ", "\n", "<", "›"]), max_size=30).map("".join))
def test_taking_wrappers_out_keeps_what_stands_outside(text: str) -> None:
    words = own_words("before " + text + " behind")
    assert words.startswith("before")
    assert len(words) <= len(text) + 14
    assert own_words(f"<system-reminder>{text.replace('</', '<')}</system-reminder>x") == "x"


@given(st.sampled_from(MACHINE_PREFIXES), st.text(max_size=50))
def test_a_machines_prefix_needs_the_beginning(prefix: str, text: str) -> None:
    assert kind_of(said("user", prefix + text)) == "machine"
    assert kind_of(said("user", "Q: " + prefix + text)) == "user"


def test_many_open_tags_cost_one_pass() -> None:
    text = "<system-reminder>" * 200_000
    assert own_words(text) == text
