"""Status lines: their words, and when one is written."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.profiles import StatusRules
from conductor.status import (
    MOST_SENT,
    AskedAgain,
    CallRepaired,
    Classed,
    LoopClosed,
    Queued,
    Reading,
    StatusLines,
    Step,
    hash_of,
    may_show,
    remembered,
    text_of,
    without_lines,
)
from proto.chat import ImagePart, Message, Part, Role, TextPart

RULES = StatusRules(enabled=True)
EAGER = replace(RULES, min_wait_s=0.0, min_interval_s=0.0, max_per_turn=100)
STEPS: list[Step] = [
    Queued(2, 40_000), Queued(1), Reading(20_745, 18_000), Reading(9), Classed("debug"),
    LoopClosed(), CallRepaired(), AskedAgain(),
]  # fmt: skip


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (Queued(2, 40_000), "› waiting, position 2, about 40 s"),
        (Queued(2, 1_234_000), "› waiting, position 2, about 1,234 s"),
        (Queued(3), "› waiting, position 3"),
        (Reading(20_745, 18_000), "› reading 20,745 tokens, about 18 s left"),
        (Reading(999), "› reading 999 tokens"),
        (Classed("debug"), "› taking this as debug"),
        (LoopClosed(), "› reasoning went in circles, closed it"),
        (CallRepaired(), "› repairing a tool call"),
        (AskedAgain(), "› answer was empty, asking again"),
    ],
)
def test_each_step_has_its_words(step: Step, text: str) -> None:
    assert text_of(step) == text
    assert StatusLines(EAGER, 0).line(step, 0) in (f"{text}\n", None)


def test_lines_are_for_streamed_turns_of_a_profile_that_wants_them() -> None:
    def shown(rules: StatusRules = RULES, *but: str) -> bool:
        return may_show(
            rules,
            is_streamed="whole" not in but,
            is_side="side" in but,
            has_form="form" in but,
        )

    assert shown()
    assert not shown(StatusRules())
    assert not any(shown(RULES, but) for but in ("whole", "side", "form"))


def test_a_short_wait_is_not_told() -> None:
    lines = StatusLines(RULES, started_ms=1_000)
    assert lines.line(Queued(1, 1_500), 1_200) is None
    assert lines.line(Reading(10, 900), 2_000) is None
    assert lines.line(Queued(1), 3_000) is None
    assert lines.line(Queued(1), 3_001) is not None


def test_a_wait_that_will_be_long_is_told_at_once() -> None:
    assert StatusLines(RULES, 0).line(Queued(4, 2_001), 0) is not None
    assert StatusLines(RULES, 0).line(Reading(4, 2_001), 0) is not None


def test_what_is_no_wait_needs_none() -> None:
    assert StatusLines(RULES, 0).line(LoopClosed(), 1) is not None


def test_lines_keep_their_distance() -> None:
    lines = StatusLines(RULES, 0)
    assert lines.line(Classed("chat"), 10) is not None
    assert lines.line(LoopClosed(), 3_009) is None
    assert lines.line(LoopClosed(), 3_010) is not None


def test_there_are_only_so_many() -> None:
    lines = StatusLines(RULES, 0)
    told = [lines.line(Classed("chat"), n * 60_000) for n in range(9)]
    assert [line is not None for line in told] == [True] * 6 + [False] * 3


def test_a_step_that_the_profile_leaves_out_is_not_told() -> None:
    lines = StatusLines(replace(RULES, steps=("queued",)), 0)
    assert lines.line(LoopClosed(), 0) is None
    assert lines.line(Queued(1, 60_000), 0) is not None


def test_no_line_once_the_answer_has_begun() -> None:
    lines = StatusLines(EAGER, 0)
    lines.showed_text()
    assert lines.line(LoopClosed(), 0) is None


def test_no_line_inside_a_call() -> None:
    lines = StatusLines(EAGER, 0)
    lines.call_began()
    assert lines.line(CallRepaired(), 0) is None
    lines.call_ended()
    assert lines.line(CallRepaired(), 0) is not None


def test_behind_reasoning_a_line_begins_with_a_break() -> None:
    lines = StatusLines(EAGER, 0)
    lines.showed_reasoning("round and round")
    lines.showed_reasoning("")
    assert lines.line(LoopClosed(), 0) == "\n› reasoning went in circles, closed it\n"
    assert lines.line(AskedAgain(), 0) == "› answer was empty, asking again\n"


def test_in_the_content_reasoning_is_not_looked_at() -> None:
    lines = StatusLines(replace(EAGER, channel="content"), 0)
    lines.showed_reasoning("round and round")
    assert lines.line(LoopClosed(), 0) == "› reasoning went in circles, closed it\n"


@pytest.mark.parametrize("reasoning", ["```\ncode", "so:\n```", "~~~\n"])
def test_no_line_into_a_code_block_of_the_reasoning(reasoning: str) -> None:
    lines = StatusLines(EAGER, 0)
    lines.showed_reasoning(reasoning)
    assert lines.line(LoopClosed(), 0) is None
    assert lines.sent == []


def test_a_session_remembers_the_newest_hashes_once_each() -> None:
    assert remembered(("a", "b"), ("b", "c")) == ("a", "b", "c")
    many = [str(n) for n in range(MOST_SENT + 5)]
    assert remembered(many, ()) == tuple(many[5:])


# -- out of a history ------------------------------------------------------------------------------

LOOP = text_of(LoopClosed())
READ = text_of(Reading(20_745, 18_000))
SENT = frozenset({hash_of(LOOP), hash_of(READ)})


def said(text: str, role: Role = "assistant", reasoning: str | None = None) -> Message:
    return Message(role, (TextPart(text),) if text else (), reasoning=reasoning)


def cleaned(message: Message, sent: frozenset[str] | None = SENT) -> Message:
    (found,) = without_lines([message], sent)
    return found


def test_an_unknown_session_is_judged_by_the_exact_template() -> None:
    for step in STEPS:
        assert cleaned(said(f"{text_of(step)}\nyes"), None) == said("yes")
    for line in ("› waiting", "› reading 12 books", "› taking this as a joke", "›  repairing"):
        assert cleaned(said(f"{line}\nyes"), None) == said(f"{line}\nyes")


def test_a_known_session_is_judged_by_what_was_sent() -> None:
    other = text_of(Classed("debug"))
    assert cleaned(said(f"{other}\nyes")) == said(f"{other}\nyes")
    assert cleaned(said(f"{LOOP}\nyes"), frozenset()) == said(f"{LOOP}\nyes")


def test_only_the_beginning_of_the_content_is_ours() -> None:
    text = f"yes\n{LOOP}\n"
    assert cleaned(said(f"{READ}\n{LOOP}\n{text}")) == said(text)


def test_a_message_of_nothing_else_has_no_content_left() -> None:
    assert cleaned(said(LOOP)) == Message("assistant")
    assert cleaned(said("", reasoning=f"{LOOP}\n")) == Message("assistant")


def test_a_line_goes_whole_whichever_parts_it_stands_in() -> None:
    image: Part = ImagePart("data:image/png;base64,AA==")
    parts = (TextPart(LOOP[:9]), image, TextPart(f"{LOOP[9:]}\nye"), TextPart("s"))
    (found,) = without_lines([Message("assistant", parts)], SENT)
    assert found.content == (image, TextPart("ye"), TextPart("s"))


def test_reasoning_in_tags_is_reasoning() -> None:
    text = f"<think>\n{READ}\none\n\n{LOOP}\ntwo\n</think>\n\n{READ}\nyes\n{LOOP}"
    assert cleaned(said(text)) == said(f"<think>\none\ntwo\n</think>\n\nyes\n{LOOP}")


def test_tags_that_were_not_closed_hold_all_of_it() -> None:
    assert cleaned(said(f"{READ}\n <think>one\n{LOOP}")) == said(" <think>one")


def test_in_a_code_block_of_the_reasoning_a_line_is_text() -> None:
    reasoning = f"```\n{LOOP}\n```\n\n{LOOP}\nso"
    assert cleaned(said("", reasoning=reasoning)).reasoning == f"```\n{LOOP}\n```\nso"


def test_the_break_that_was_written_before_a_line_goes_with_it() -> None:
    lines = StatusLines(EAGER, 0)
    lines.showed_reasoning("round")
    shown = f"round{lines.line(LoopClosed(), 0)}{lines.line(AskedAgain(), 0)}and on"
    message = cleaned(said("", reasoning=shown), frozenset(lines.sent))
    assert message.reasoning == "roundand on"
    assert cleaned(said("", reasoning=shown), None).reasoning == "roundand on"


LINES = st.sampled_from([f"{text_of(step)}\n" for step in STEPS])
FREE = st.text(st.sampled_from("a ›`~\n"), max_size=12)


@given(
    st.lists(st.one_of(st.sampled_from(STEPS), FREE), max_size=8),
    st.sampled_from(["reasoning", "content"]),
)
def test_what_was_written_goes_and_what_was_said_stays(
    course: list[Step | str], channel: str
) -> None:
    """The lines of one answer, between any pieces of reasoning, leave it as it would be without."""
    rules = replace(EAGER, channel="content" if channel == "content" else "reasoning")
    lines = StatusLines(rules, 0)
    shown: list[str] = []
    reasoning: list[str] = []
    for step in course:
        if isinstance(step, str):
            lines.showed_reasoning(step)
            reasoning.append(step)
            shown += [step] if rules.channel == "reasoning" else []
        else:
            shown.append(lines.line(step, 0) or "")
    thought, text = "".join(reasoning), "the answer"
    sent = frozenset(lines.sent)
    if rules.channel == "content":
        message = said("".join(shown) + text, reasoning=thought or None)
    else:
        message = said(text, reasoning="".join(shown) or None)
    assert cleaned(message, sent) == said(text, reasoning=thought or None)


@given(st.lists(st.one_of(LINES, FREE), max_size=6), st.sampled_from(["system", "user", "tool"]))
def test_nobody_elses_message_is_touched(texts: list[str], role: Role) -> None:
    message = said("".join(texts), role, reasoning=None)
    every = frozenset(hash_of(text_of(step)) for step in STEPS)
    assert cleaned(message, every) == message == cleaned(message, None)


@given(st.lists(st.one_of(LINES, FREE), max_size=6), st.lists(st.integers(1, 200), max_size=4))
def test_parts_cut_anywhere_lose_the_same(texts: list[str], cuts: list[int]) -> None:
    text = "".join(texts)
    ends = sorted({min(cut, len(text)) for cut in cuts} - {0} | {len(text)})
    parts = tuple(TextPart(text[a:b]) for a, b in zip([0, *ends], ends, strict=False))
    (found,) = without_lines([Message("assistant", parts)], None)
    assert found.text == cleaned(said(text), None).text
