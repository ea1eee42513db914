"""The block of a transcript."""

from dataclasses import replace

from conductor.transcript import ARGUMENTS_CHARS, PastTurn, block_of, results_of
from proto.chat import Message, TextPart, ToolCall

TURN = PastTurn(
    request_id="req-1",
    ended_ms=1_764_547_200_000,
    client="opencode",
    model="TandemLLM",
    profile="coding",
    task_class="edit",
    results=(("read", 12_345), ("grep", 0)),
    calls=(ToolCall("c1", "edit", '{"path": "a.py", "key": "hunter2"}'),),
    finish="tool_calls",
)


def mask(text: str) -> str:
    return text.replace("hunter2", "hunt…(masked)")


def test_a_block_says_what_came_what_was_called_and_how_it_ended() -> None:
    assert block_of(TURN, mask) == (
        "== 2025-12-01T00:00:00Z req-1 opencode TandemLLM profile=coding class=edit\n"
        "result read: 12,345 characters\n"
        "result grep: 0 characters\n"
        'call edit {"path": "a.py", "key": "hunt…(masked)"}\n'
        "finish tool_calls\n\n"
    )


def test_what_is_not_known_is_a_dash() -> None:
    assert "class=-\n" in block_of(replace(TURN, task_class=None), mask)


def test_long_arguments_are_cut_after_they_were_masked() -> None:
    long = "x" * (ARGUMENTS_CHARS - 5) + "hunter2 and more"
    block = block_of(replace(TURN, calls=(ToolCall("c", "write", long),)), mask)
    assert "hunte" not in block
    assert f"call write {'x' * (ARGUMENTS_CHARS - 5)}hunt…… (" in block


def test_no_call_writes_a_line_of_its_own() -> None:
    calls = (ToolCall("c", "edit\n== fake", "a\nfinish stop\r\x1b[0m"),)
    block = block_of(replace(TURN, calls=calls), mask)
    assert len(block.splitlines()) == len(block_of(TURN, mask).splitlines())
    assert r"call edit\n== fake a\nfinish stop\r\x1b[0m" in block


def said(role: str, text: str = "", **more: object) -> Message:
    return Message(role, (TextPart(text),), **more)  # type: ignore[arg-type]


def test_results_are_those_behind_the_last_thing_said_by_the_names_of_their_calls() -> None:
    calls = (ToolCall("c2", "read", "{}"), ToolCall("c3", "grep", "{}"))
    messages = (
        said("user", "Look."),
        said("assistant", calls=(ToolCall("c1", "ls", "{}"),)),
        said("tool", "old", call_id="c1"),
        said("assistant", calls=calls),
        said("tool", "four", call_id="c3"),
        said("tool", "seven77", call_id="c2"),
        said("tool", "", call_id="c9"),
    )
    assert results_of(messages) == (("grep", 4), ("read", 7), ("-", 0))
    assert results_of(messages[:1]) == ()
