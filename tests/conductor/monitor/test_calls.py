"""Calls that are complete: repaired, coerced, renamed, written again, or left as they are."""

import json

import pytest

from conductor.monitor.policy import Monitor
from conductor.monitor.verdicts import (
    GO_ON,
    Block,
    CallForm,
    Calls,
    Constrain,
    Continue,
    MadeCall,
    PastCall,
    PromptFacts,
    Regenerate,
    Stop,
    Verdict,
)
from proto.chat import Json, Tool
from tests.conductor.monitor.watched import facts, plan_with

READ = Tool(
    "read_file",
    None,
    {
        "type": "object",
        "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
        "required": ["path"],
    },
)
NOW = Tool("now", None, None)
WRITE = Tool("write_file", None, {"type": "object", "properties": {"text": {"type": "string"}}})
TOOLS = (READ, NOW, WRITE)
ALL = dict.fromkeys(("C1", "C3", "C4", "C5"), "act")


def monitor_of(tasks: dict[str, str] | None = None, **given: object) -> Monitor:
    limits = {"regenerations": 1} | {
        key: given.pop(key) for key in ("regenerations", "hidden_tokens") if key in given
    }
    return Monitor(
        plan_with(ALL if tasks is None else tasks, **limits),  # type: ignore[arg-type]
        facts(**{"tools": TOOLS} | given),
    )


def made(name: str, arguments: str, index: int = 0, *, is_sent: bool = False) -> MadeCall:
    return MadeCall(index, name, arguments, is_sent)


def judge(*calls: MadeCall, held: str = "", monitor: Monitor | None = None) -> Verdict:
    return (monitor or monitor_of()).on_calls(Calls(calls, held=held))


def told(monitor: Monitor) -> list[tuple[str, str, str]]:
    return [(one.task, one.mode, one.reason) for one in monitor.take_findings()]


def test_a_right_call_goes_through_as_it_was_written() -> None:
    monitor = monitor_of()
    call = made("read_file", '{ "path":"a",  "lines": 1.50e1 }')
    assert judge(call, monitor=monitor) == GO_ON
    assert told(monitor) == []


# C1.


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("", {}),
        ("  \n", {}),
        ('""', {}),
        ("null", {}),
        ("}", {}),
        ('"{\\"path\\": \\"a\\"}"', {"path": "a"}),
        ("{'path': 'a', 'lines': None}", {"path": "a", "lines": None}),
        ('{"path": "a",}', {"path": "a"}),
        ('{"path": "a"', {"path": "a"}),
        ('{"path": "a"}}', {"path": "a"}),
        ('{"path": "a\nb"}', {"path": "a\nb"}),
        ('{path: "a"}', {"path": "a"}),
    ],
)
def test_arguments_are_read_for_what_they_meant(written: str, meant: Json) -> None:
    monitor = monitor_of({"C1": "act"})
    verdict = judge(made("now", written), monitor=monitor)
    assert isinstance(verdict, Continue)
    assert verdict.calls is not None
    assert json.loads(verdict.calls[0].arguments) == meant
    assert [one[:2] for one in told(monitor)] == [("C1", "act")]


@pytest.mark.parametrize("written", ['{"path": "a', "a b", "[1]", "7", '"text"', '""""', "{1 2}"])
def test_arguments_that_cannot_be_read_stay(written: str) -> None:
    monitor = monitor_of({"C1": "act"})
    assert judge(made("now", written), monitor=monitor) == GO_ON
    assert told(monitor) == []


@pytest.mark.parametrize(
    ("held", "name", "arguments", "rest"),
    [
        ('<tool_call>\n{"name": "now", "arguments": {}}', "now", "{}", ""),
        ('One.\n<tool_call>{"name": "now"}</tool_call>', "now", "{}", "One."),
        ('<tool_call id="3">{"name": "now", "arguments": ""}}', "now", "{}", ""),
        ('<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"', "now", '{"a": 1}', ""),
        (
            "<function=read_file>\n<parameter=path>\na\n</parameter>\n<parameter=lines>\n7\n",
            "read_file", '{"path": "a", "lines": 7}', "",
        ),
        (
            "<tool_call>\n<function=read_file>\n<parameter=path>a<parameter=lines>7</function>",
            "read_file", '{"path": "a", "lines": 7}', "",
        ),
        ("<tool_call><function=now></function>", "now", "{}", ""),
        ("<function=other><parameter=a>1</parameter>", "other", '{"a": "1"}', ""),
        ('{"name": "now", "parameters": {}}', "now", "{}", ""),
        ('```json\n{"name": "now", "arguments": {}}\n```', "now", "{}", ""),
        ('[{"type": "function", "function": {"name": "now", "arguments": null}}]', "now", "{}", ""),
    ],
)  # fmt: skip
def test_a_call_in_markup_that_nobody_could_read_is_one(
    held: str, name: str, arguments: str, rest: str
) -> None:
    monitor = monitor_of({"C1": "act"})
    assert judge(held=held, monitor=monitor) == Continue(text=rest, calls=(made(name, arguments),))
    assert told(monitor) == [("C1", "act", "markup")]


def test_it_comes_behind_the_calls_that_were_read() -> None:
    verdict = judge(
        made("now", "{}"), held='<tool_call>{"name": "read_file", "arguments": {"path": "a"}}'
    )
    assert verdict == Continue(
        text="", calls=(made("now", "{}"), made("read_file", '{"path": "a"}', 1))
    )


def test_a_stray_tag_is_left_out() -> None:
    monitor = monitor_of({"C1": "act"})
    verdict = judge(held="It is done.\n</tool_call>\n", monitor=monitor)
    assert verdict == Continue(text="It is done.\n")
    assert told(monitor) == [("C1", "act", "stray_tag")]


@pytest.mark.parametrize(
    "held",
    [
        'Write this:\n```\n<tool_call>{"name": "now", "arguments": {}}</tool_call>\n```\n',
        "```\n</tool_call>\n```\n",
        "if a < b: print({'name': 'now'})",
        '{"name": "elsewhere", "arguments": {}}',
        '{"name": "now", "colour": 1}',
        '{"name": "now", "arguments": {}, "colour": 1}',
        '{"name": 5, "arguments": {}}',
        "[1, 2]",
        "[]",
        "{not json",
        "<tool_call>(none)</tool_call> is how it ends",
        "<tool_call>7",
        "x <function= y",
    ],
)
def test_code_and_other_text_stay_as_they_are(held: str) -> None:
    monitor = monitor_of({"C1": "act"})
    assert judge(held=held, monitor=monitor) == GO_ON
    assert told(monitor) == []


@pytest.mark.parametrize(
    "held",
    [
        '<tool_call>{"name": "now", "arguments": {"a": 1}',
        "<function=now><parameter=a>1</parameter>",
        '{"name": "now", "arguments": {}',
        'So.\n<tool_call>\n{"name": "now", "argum',
        "<tool_call>\n",
    ],
)
def test_what_a_limit_cut_is_no_call(held: str) -> None:
    assert monitor_of().on_calls(Calls((), held=held, is_cut=True)) == GO_ON


def test_what_was_whole_before_a_limit_is_one() -> None:
    held = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    verdict = monitor_of().on_calls(Calls((), held=held, is_cut=True))
    assert verdict == Continue(text="", calls=(made("now", "{}"),))


def test_without_tools_text_is_text() -> None:
    held = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    assert judge(held=held, monitor=monitor_of(tools=())) == GO_ON


def test_in_shadow_a_repair_is_only_told() -> None:
    monitor = monitor_of({"C1": "shadow"})
    assert judge(made("now", ""), monitor=monitor) == GO_ON
    assert told(monitor) == [("C1", "shadow", "empty")]


def test_a_call_that_the_client_has_is_only_told() -> None:
    monitor = monitor_of({"C1": "act", "C3": "act"})
    assert judge(made("NOW", "", is_sent=True), monitor=monitor) == GO_ON
    assert told(monitor) == [("C1", "shadow", "empty:late"), ("C3", "shadow", "renamed:late")]


# Echoes.


def test_an_echo_is_dropped() -> None:
    verdict = judge(made("now", "{}"), made("now", " { } ", 1), made("write_file", "{}", 2))
    assert verdict == Continue(calls=(made("now", "{}"), made("write_file", "{}", 1)))


def test_so_is_one_whose_keys_are_in_another_order_or_that_cannot_be_read() -> None:
    monitor = monitor_of({})
    one = '{"path": "a", "lines": [1, 2]}'
    calls = (made("now", one), made("now", '{"lines": [1,2], "path": "a"}', 1))
    assert judge(*calls, monitor=monitor) == Continue(calls=calls[:1])
    calls = (made("now", "{a"), made("now", "{a", 1))
    assert judge(*calls, monitor=monitor) == Continue(calls=calls[:1])
    calls = (made("now", "{a"), made("now", "{b", 1))
    assert judge(*calls, monitor=monitor) == GO_ON


def test_equal_calls_with_another_between_are_no_echo() -> None:
    assert judge(made("now", "{}"), made("write_file", "{}", 1), made("now", "{}", 2)) == GO_ON


def test_an_echo_that_was_sent_stays() -> None:
    assert judge(made("now", "{}"), made("now", "{}", 1, is_sent=True)) == GO_ON


# C3.


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("READ_FILE", "read_file"),
        ("read_fil", "read_file"),
        ("read_files", "read_file"),
        ("read-file", "read_file"),
        ("noww", "now"),
    ],
)
def test_a_name_one_edit_away_is_renamed(written: str, meant: str) -> None:
    monitor = monitor_of()
    verdict = judge(made(written, '{"path": "a"}'), monitor=monitor)
    assert verdict == Continue(calls=(made(meant, '{"path": "a"}'),))
    assert told(monitor) == [("C3", "act", "coerced")]


def test_calls_are_renamed_and_coerced_as_often_as_they_must() -> None:
    monitor = monitor_of()
    for _ in range(4):
        assert judge(made("NOW", "{}"), monitor=monitor) == Continue(calls=(made("now", "{}"),))


def test_a_name_that_could_be_two_is_written_again() -> None:
    monitor = monitor_of(tools=(Tool("run_a"), Tool("run_b")))
    assert judge(made("run_c", "{}"), monitor=monitor) == Regenerate(0, CallForm(None))


def test_a_call_that_does_not_fit_is_written_again_twice_and_then_sent_as_written() -> None:
    monitor = monitor_of()
    calls = (made("now", "{}"), made("read_file", '{"lines": 1}', 1))
    again = Regenerate(1, CallForm("read_file"))
    assert judge(*calls, monitor=monitor) == again
    assert judge(*calls, monitor=monitor) == again
    assert judge(*calls, monitor=monitor) == GO_ON
    assert told(monitor) == [
        ("C3", "act", "missing"), ("C3", "act", "missing"), ("C3", "shadow", "missing:turn"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [('{"path": "a", "lines": "many"}', "type"), ('{"path', "arguments"), ("[]", "arguments")],
)
def test_so_are_wrong_types_and_arguments_that_are_none(arguments: str, reason: str) -> None:
    monitor = monitor_of()
    verdict = judge(made("read_file", arguments), monitor=monitor)
    assert verdict == Regenerate(0, CallForm("read_file"))
    assert told(monitor) == [("C3", "act", reason)]


def test_calls_beside_one_that_stays_wrong_are_coerced() -> None:
    monitor = monitor_of(may_regenerate=False)
    verdict = judge(
        made("read_file", "{}"),
        made("read_file", '{"path": "a", "lines": "3"}', 1),
        monitor=monitor,
    )
    right = made("read_file", '{"path": "a", "lines": 3}', 1)
    assert verdict == Continue(calls=(made("read_file", "{}"), right))
    assert told(monitor) == [("C3", "shadow", "missing:host"), ("C3", "act", "coerced")]


def test_in_shadow_nothing_is_coerced_or_written_again() -> None:
    monitor = monitor_of({"C3": "shadow"})
    assert judge(made("NOW", "{}"), monitor=monitor) == GO_ON
    assert judge(made("elsewhere", "{}"), monitor=monitor) == GO_ON
    assert told(monitor) == [("C3", "shadow", "coerced"), ("C3", "shadow", "unknown_tool")]


def test_without_renaming_by_edits_only_case_is_forgiven() -> None:
    plan = plan_with({"C3": "act"}, {"C3": {"rename_edits": 0}})
    monitor = Monitor(plan, facts(tools=TOOLS))
    assert judge(made("noww", "{}"), monitor=monitor) == Regenerate(0, CallForm(None))


# Limits.


def test_a_discard_that_passes_the_limit_of_hidden_tokens_is_not_made() -> None:
    monitor = monitor_of(hidden_tokens=50)
    monitor.on_block(Block("call", "x", 51, 1000))
    assert judge(made("read_file", "{}"), monitor=monitor) == GO_ON
    assert told(monitor) == [("C3", "shadow", "missing:hidden")]


def test_discarded_tokens_are_hidden_ones_and_counted_once() -> None:
    monitor = monitor_of(hidden_tokens=100)
    for _ in range(2):
        monitor.on_block(Block("call", "x", 50, 1000))
        assert isinstance(judge(made("read_file", "{}"), monitor=monitor), Regenerate)
    assert monitor.horizon() == 64
    monitor = monitor_of(hidden_tokens=99)
    for wanted in (Regenerate(0, CallForm("read_file")), GO_ON):
        monitor.on_block(Block("call", "x", 50, 1000))
        assert judge(made("read_file", "{}"), monitor=monitor) == wanted


def test_one_round_of_regeneration_is_one_tasks() -> None:
    past = (PastCall("now", "{}", "12:00"),) * 3
    monitor = monitor_of(past=past)
    assert isinstance(judge(made("read_file", "{}"), monitor=monitor), Regenerate)
    assert judge(made("now", "{}"), monitor=monitor) == GO_ON
    assert told(monitor)[-1] == ("C4", "shadow", "same_call:regenerations")


def test_a_constrained_answer_is_left_alone() -> None:
    monitor = monitor_of(is_plain=False)
    assert judge(made("now", ""), monitor=monitor) == GO_ON
    assert ("C1", "shadow", "empty:constrained") in told(monitor)


# C4.


PAST = (PastCall("now", "{}", "12:00"),) * 3


def test_a_call_that_came_back_the_same_three_times_is_written_anew_once() -> None:
    monitor = monitor_of({"C4": "act"}, past=PAST, regenerations=5)
    verdict = judge(made("now", "{}"), monitor=monitor)
    assert isinstance(verdict, Regenerate)
    assert (verdict.index, verdict.spec) == (0, None)
    assert verdict.note
    assert judge(made("now", "{}"), monitor=monitor) == GO_ON


@pytest.mark.parametrize(
    "past",
    [
        PAST[:2],
        (*PAST[:2], PastCall("now", "{}", "12:01")),
        (PastCall("now", "{}"),) * 3,
        (*PAST[:2], PastCall("write_file", "{}", "12:00")),
        (*PAST, PastCall("write_file", "{}", "12:00")),
    ],
)
def test_other_pasts_are_no_circle(past: tuple[PastCall, ...]) -> None:
    assert judge(made("now", "{}"), monitor=monitor_of({"C4": "act"}, past=past)) == GO_ON


def test_a_circle_in_shadow_and_one_that_was_sent_are_told() -> None:
    monitor = monitor_of({"C4": "shadow"}, past=PAST)
    assert judge(made("now", "{}"), monitor=monitor) == GO_ON
    assert told(monitor) == [("C4", "shadow", "same_call")]
    monitor = monitor_of({"C4": "act"}, past=PAST)
    assert judge(made("now", "{}", is_sent=True), monitor=monitor) == GO_ON
    assert told(monitor) == [("C4", "shadow", "same_call:late")]


def test_with_no_number_of_calls_nothing_is_a_circle() -> None:
    plan = plan_with({"C4": "act"}, {"C4": {"same_calls": 0}})
    monitor = Monitor(plan, facts(tools=TOOLS, past=PAST))
    assert judge(made("now", "{}"), monitor=monitor) == GO_ON


def _write(lines: list[str], mode: str = "act", *, escaped: bool = True) -> list[Verdict]:
    monitor = monitor_of({"C4": mode})
    end = "\\n" if escaped else "\n"
    begun = '{"name": "write_file", "arguments": {"text": "' if escaped else "<parameter=text>\n"
    verdicts = [monitor.on_block(Block("call", begun, 1, 9000))]
    for line in lines:
        # Seven tokens a line; cut inside the line's end and inside words.
        text = line + end
        verdicts.append(monitor.on_block(Block("call", text[:-1], 4, 9000)))
        verdicts.append(monitor.on_block(Block("call", text[-1:], 3, 9000)))
    return [verdict for verdict in verdicts if verdict != GO_ON]


VARIED = [f"value_{i} = compute({i * i})" for i in range(300)]


@pytest.mark.parametrize("escaped", [True, False])
def test_a_line_again_and_again_ends_the_call(escaped: bool) -> None:
    line = "print(the_same_value)" if escaped else 'print("the same value")'
    lines = [*VARIED, *[line] * 40]
    assert _write(lines, escaped=escaped) == [Constrain(None, "call")]
    assert _write(lines, "shadow", escaped=escaped) == []


@pytest.mark.parametrize(
    "line",
    ["1,2,3,4,5", "| a | b |", "    ", "}", "-----------", "town   north   open", "a\tb c d"],
)
def test_tables_csv_and_short_lines_may_repeat(line: str) -> None:
    assert _write([*VARIED, *[line] * 60], escaped=False) == []


def test_tabs_are_tabs_however_they_are_written() -> None:
    assert _write([*VARIED, *["town\\tnorth\\topen"] * 60]) == []


def test_a_line_that_recurs_in_every_record_is_none_of_a_loop() -> None:
    record = ["    if value is None:", "        return {}", "    value += {}", ""]
    lines = [line.format(i) for i in range(200) for line in record]
    assert _write([*VARIED, *lines]) == []


def test_what_varies_and_what_is_short_is_left_alone() -> None:
    assert _write(VARIED * 2) == []
    assert _write(["print(the_same_value)"] * 200) == []


def test_a_long_unit_without_line_ends_counts_too() -> None:
    unit = " ".join(f"word{i}" for i in range(64)) + " "
    monitor = monitor_of({"C4": "act"})
    verdicts = [monitor.on_block(Block("call", unit, 64, 9000)) for _ in range(60)]
    assert Constrain(None, "call") in verdicts


def test_a_unit_of_few_signs_does_not() -> None:
    monitor = monitor_of({"C4": "act"})
    assert {monitor.on_block(Block("call", "# . # . " * 16, 64, 9000)) for _ in range(60)} == {
        GO_ON
    }


def test_only_so_many_lines_are_counted() -> None:
    lines = [f"value_{i} = compute({i})" for i in range(4096)]
    assert _write([*lines, *["print(the_same_value)"] * 40]) == []


def test_each_argument_counts_for_itself() -> None:
    """Ten times in each of two texts are not twenty."""
    monitor = monitor_of({"C4": "act"})
    for quoted in ('{"a": "', '", "b": "'):
        monitor.on_block(Block("call", quoted, 1, 9000))
        for _ in range(10):
            line = "print(the_same_value)\\n"
            assert monitor.on_block(Block("call", line, 200, 9000)) == GO_ON
    monitor = monitor_of({"C4": "act"})
    for tag in ("<parameter=", "a>", "</parameter><para", "meter=b>"):
        monitor.on_block(Block("call", tag, 1, 9000))
        for _ in range(10 * tag.endswith(">")):
            line = 'print("the_same_value")\n'
            assert monitor.on_block(Block("call", line, 200, 9000)) == GO_ON


# C5.


def test_of_several_changes_one_stays() -> None:
    monitor = monitor_of({"C5": "act"})
    calls = (made("send_mail", "{}"), made("createUser", "{}", 1))
    assert judge(*calls, monitor=monitor) == Stop("tool_calls", 1)
    assert told(monitor) == [("C5", "act", "mutations")]
    monitor = monitor_of({"C5": "shadow"})
    assert judge(*calls, monitor=monitor) == GO_ON
    assert told(monitor) == [("C5", "shadow", "mutations")]


def test_one_change_and_readings_stay() -> None:
    assert (
        judge(made("send_mail", "{}"), made("read", "{}", 1), monitor=monitor_of({"C5": "act"}))
        == GO_ON
    )


def test_a_profile_may_name_tools_that_change_something() -> None:
    plan = plan_with({"C5": "act"}, {"C5": {"tools": ["deploy", "pay"]}})
    monitor = Monitor(plan, facts(tools=TOOLS))
    assert judge(made("deploy", "{}"), made("pay", "{}", 1), monitor=monitor) == Stop(
        "tool_calls", 1
    )


def test_changes_that_were_sent_stay() -> None:
    monitor = monitor_of({"C5": "act"})
    sent = [made("send_mail", f'{{"to": {i}}}', i, is_sent=True) for i in range(2)]
    assert judge(*sent, monitor=monitor) == GO_ON
    assert told(monitor) == [("C5", "shadow", "mutations:late")]
    last = made("send_mail", "{}", 2)
    assert judge(*sent, last, monitor=monitor) == Stop("tool_calls", 2)


def test_a_repaired_call_stays_repaired_where_others_go() -> None:
    monitor = monitor_of({"C1": "act", "C5": "act"})
    calls = (made("send_mail", ""), made("delete_mail", "{}", 1))
    assert judge(*calls, monitor=monitor) == Continue(calls=(made("send_mail", "{}"),))


def test_the_shipped_modes_do_what_they_say() -> None:
    """Out of the box calls are repaired and coerced, and nothing else happens to them."""
    from conductor.monitor.tasks import monitor_plan

    given: PromptFacts = facts(tools=TOOLS, past=PAST)
    monitor = Monitor(monitor_plan({}), given)
    calls = (made("now", ""), made("send_it", "{}", 1), made("write_file", '{"text": 3}', 2))
    assert judge(made("NOW", ""), monitor=monitor) == Continue(calls=(made("now", "{}"),))
    assert judge(*calls, monitor=monitor) == Regenerate(1, CallForm(None))
