"""Side requests: every known shape, the shape with one part missing, and the words without it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.client import ClientKind
from conductor.profiles import SideRule, SideRules
from conductor.side import RULES, lane_of, side_line, side_of
from conductor.thinking import ThinkingWish
from conductor.types import SideKind, SidePlan
from proto.chat import AnswerFormat, Call, ImagePart, Json, Message
from tests.conductor.client_requests import (
    MODEL,
    SMALL,
    asked_of,
    call_of,
    called,
    facts_of,
    result,
    said,
)

TEXT: Json = {"type": "string"}
NUMBER: Json = {"type": "integer"}
ASKS = said("user", "why does the build fail?")
ANSWERS = said("assistant", "Because of the lock file.")


@dataclass(frozen=True)
class Sent:
    """A request as it comes: who, what, and what is known beside it."""

    call: Call
    client: ClientKind = "other"
    asked: Mapping[str, Any] = field(default_factory=dict)
    session_model: str | None = None
    is_nearby: bool = False

    def but(self, *messages: Message, **changes: Any) -> "Sent":
        """The same with other messages, or with other words beside them."""
        call = replace(self.call, messages=messages) if messages else self.call
        fields = {name: changes.pop(name) for name in tuple(changes) if hasattr(self, name)}
        kept = {"call": call, "asked": {**self.asked, **changes}, **fields}
        return replace(self, **kept)

    @property
    def facts(self) -> Any:
        asked = asked_of(self.call, **self.asked)
        return facts_of(asked, self.client, has_turn_nearby=self.is_nearby)

    def plan(self, rules: SideRules = RULES) -> SidePlan | None:
        return side_of(self.facts, self.call, self.client, self.session_model, rules)

    def kind(self) -> SideKind | None:
        plan = self.plan()
        return plan and plan.kind


def codex_headers(kind: str) -> dict[str, dict[str, str]]:
    return {"headers": {"x-codex-turn-metadata": json.dumps({"request_kind": kind})}}


OPENCODE_TITLE = Sent(
    call_of(
        said("system", "You are a title generator. One line only."),
        said("user", "Generate a title for this conversation:\n"),
        said("user", "mend the parser"),
        model=SMALL,
    ),
    "opencode",
    {"max_tokens": 32_000},
)
CLAUDE_TITLE = Sent(
    call_of(
        said("system", "Write a title."),
        said("user", "<session>\nmend the parser\n</session>\n\nWrite it in their language."),
        fields={"title": TEXT},
    ),
    "claude-code",
    {"tools": "empty", "max_tokens": 32_000, "wish": ThinkingWish(effort="high")},
)
HERMES_TITLE = Sent(
    call_of(said("user", "Name this session: mend the parser"), fields={"title": TEXT}),
    "openai-sdk",
    {"schema_name": "session_title", "max_tokens": 512},
)
CODEX_SUMMARY = Sent(
    call_of(ASKS, called(), result(), said("user", "Write a summary for the next model.")),
    "codex",
    {"tools": "empty", "request_kind": "compaction", **codex_headers("compaction")},
)
OPENCODE_SUMMARY = Sent(
    call_of(
        said("system", "You sum up."), ASKS, called(), result(), ANSWERS,
        said("user", "Provide a detailed prompt for continuing our conversation above."),
    ),
    "opencode",
)  # fmt: skip
OPENCODE_QUOTED = Sent(
    call_of(
        said("system", "You sum up."),
        said("user", "Here is the conversation so far:\n\n<conversation>\n…\n</conversation>"),
    ),
    "opencode",
)
# What both ask for, in the order of their history: made up messages first (Qwen Code).
SNAPSHOT = Sent(
    call_of(
        said("system", "You shorten histories."), said("user", "The date and the folder."),
        said("assistant", "Thanks."), ASKS, called(), result(), ANSWERS,
        said("user", "First, reason in your scratchpad. Then, generate the <state_snapshot>."),
    ),
    "qwen-code",
    {"is_stream": False},
)  # fmt: skip
GEMINI_SNAPSHOT = SNAPSHOT.but(client="gemini-cli", surface="gemini")
HERMES_SUMMARY = Sent(
    call_of(ASKS, called(), result(), said("user", "[CONTEXT COMPACTION] Sum up the above.")),
    "openai-sdk",
)
GEMINI_ROUTER = Sent(
    call_of(
        said("system", "Rate the task."), ASKS, model="flash-lite",
        fields={"complexity_reasoning": {"type": "STRING"}, "complexity_score": NUMBER},
    ),
    "gemini-cli",
    {"surface": "gemini", "is_stream": False,
     "headers": {"user-agent": "GeminiCLI-tui/0.50.0/pro (linux; x64)"}},
)  # fmt: skip
AIDER_COMMIT = Sent(
    call_of(said("system", "Write a commit message."), said("user", "# Diffs:\n+1"), model=SMALL),
    "aider",
    {"is_stream": False, "temperature": 0.0},
)
PROBE = Sent(call_of(said("user", "ping")), "curl", {"max_tokens": 1})


def webui(text: str, **asked: Any) -> Sent:
    return Sent(call_of(said("user", text)), "open-webui", {"is_stream": False, **asked})


WEBUI_TITLE = webui(
    '### Task:\nName the chat.\nAnswer: { "title": "…" }\n<chat_history>\n"tags"\n</chat_history>',
    max_tokens=1000,
)
WEBUI_EMOJI = webui(
    "Your task is to reflect the speaker's likely facial expression. Message: hi", max_tokens=4
)
WEBUI_MERGE = webui("You have been provided with a set of responses from various models: …")


@pytest.mark.parametrize(
    ("sent", "plan"),
    [
        (OPENCODE_TITLE, SidePlan("title", 64, ends_at_line=True)),
        (OPENCODE_TITLE.but(call=replace(OPENCODE_TITLE.call, model=MODEL)),
         SidePlan("title", 64, ends_at_line=True)),
        (CLAUDE_TITLE, SidePlan("title", 64)),
        (HERMES_TITLE, SidePlan("title", 64)),
        (WEBUI_TITLE, SidePlan("title", 64)),
        (webui('### Task:\nSort. { "tags": [] }'), SidePlan("tags", 96)),
        (webui('### Task:\nGo on. { "follow_ups": [] }'), SidePlan("follow_ups", 384)),
        (webui('### Task:\nSearch? { "queries": [] }'), SidePlan("queries", 256)),
        (webui('### Task:\nComplete. { "text": "…" }'), SidePlan("autocomplete", 64)),
        (webui('### Task:\nDraw. { "prompt": "…" }'), SidePlan("image_prompt", 256)),
        (webui("### Task:\nName a title for it."), SidePlan("title", 64)),
        (webui("### Task:\nFind tags.\nNo title."), SidePlan("tags", 96)),
        (webui("### Task:\nWhat will they send next?"), SidePlan("follow_ups", 384)),
        (webui("### Task:\nWhich queries?"), SidePlan("queries", 256)),
        (webui("### Task:\nYou are an autocompletion."), SidePlan("autocomplete", 64)),
        (webui("### Task:\nFor image generation."), SidePlan("image_prompt", 256)),
        (WEBUI_EMOJI, SidePlan("emoji", 4)),
        (WEBUI_MERGE, SidePlan("merge", is_thinking=True, replays_notes=True)),
        (GEMINI_ROUTER, SidePlan("router", 256)),
        (AIDER_COMMIT, SidePlan("commit", 128)),
        (PROBE, SidePlan("probe", 1)),
        (PROBE.but(said("user", "a")), SidePlan("probe", 1)),
        (Sent(call_of(ASKS), asked={"surface": "count_tokens"}), SidePlan("count", 0)),
        (Sent(call_of(ASKS, tools=("a",)), asked={"surface": "count"}), SidePlan("count", 0)),
    ],
)  # fmt: skip
def test_a_known_shape_is_served_as_its_row_says(sent: Sent, plan: SidePlan) -> None:
    assert sent.plan() == plan


@pytest.mark.parametrize(
    "sent",
    [CODEX_SUMMARY, OPENCODE_SUMMARY, OPENCODE_QUOTED, HERMES_SUMMARY, SNAPSHOT, GEMINI_SNAPSHOT,
     SNAPSHOT.but(is_nearby=True), GEMINI_SNAPSHOT.but(is_stream=True)],
)  # fmt: skip
def test_a_summary_keeps_its_length_and_the_old_notes_and_thinks_little(sent: Sent) -> None:
    assert sent.plan() == SidePlan(
        "compaction", None, is_thinking=True, thinking_tokens=512, replays_notes=True
    )


BROKEN = {
    "opencode title: tools in the body": OPENCODE_TITLE.but(tools="empty"),
    "opencode title: not streamed": OPENCODE_TITLE.but(is_stream=False),
    "opencode title: another client": OPENCODE_TITLE.but(client="openai-sdk"),
    "opencode title: one message": OPENCODE_TITLE.but(*OPENCODE_TITLE.call.messages[:2]),
    "opencode title: another system text": OPENCODE_TITLE.but(
        said("system", "You help."), *OPENCODE_TITLE.call.messages[1:]
    ),
    "opencode title: another first text": OPENCODE_TITLE.but(
        OPENCODE_TITLE.call.messages[0], ASKS, ASKS
    ),
    "claude title: no tools member": CLAUDE_TITLE.but(tools="absent"),
    "claude title: tools": CLAUDE_TITLE.but(tools="some"),
    "claude title: another client": CLAUDE_TITLE.but(client="anthropic-sdk"),
    "claude title: no schema": CLAUDE_TITLE.but(
        call=replace(CLAUDE_TITLE.call, answer_format=AnswerFormat())
    ),
    "claude title: not wrapped": CLAUDE_TITLE.but(ASKS),
    "claude title: words before": CLAUDE_TITLE.but(said("user", "Is <session>a</session> it?")),
    "claude title: wrapper not closed": CLAUDE_TITLE.but(said("user", "<session>\nhi")),
    "claude title: a conversation": CLAUDE_TITLE.but(ASKS, ANSWERS, CLAUDE_TITLE.call.messages[-1]),
    "claude title: thinking": CLAUDE_TITLE.but(wish=ThinkingWish(is_on=True)),
    "claude title: a budget": CLAUDE_TITLE.but(wish=ThinkingWish(tokens=1024)),
    "claude title: another model": CLAUDE_TITLE.but(session_model="another"),
    "hermes title: another schema": HERMES_TITLE.but(schema_name="title"),
    "hermes title: two fields": HERMES_TITLE.but(
        call=call_of(ASKS, fields={"title": TEXT, "why": TEXT})
    ),
    "codex: an ordinary turn": CODEX_SUMMARY.but(**codex_headers("turn")),
    "codex: the body says nothing": CODEX_SUMMARY.but(request_kind=None),
    "codex: the header says nothing": CODEX_SUMMARY.but(headers={}),
    "codex: the header is no object": CODEX_SUMMARY.but(
        headers={"x-codex-turn-metadata": '["compaction"]'}
    ),
    "codex: the header is no text": CODEX_SUMMARY.but(
        headers={"x-codex-turn-metadata": '{"request_kind": 7}'}
    ),
    "codex: tools": CODEX_SUMMARY.but(tools="some"),
    "codex: no tools member": CODEX_SUMMARY.but(tools="absent"),
    "codex: an item with an id": CODEX_SUMMARY.but(last_item_id="msg_1"),
    "codex: a result at the end": CODEX_SUMMARY.but(ASKS, called(), result()),
    "codex: another client": CODEX_SUMMARY.but(client="openai-sdk"),
    "opencode summary: another client": OPENCODE_SUMMARY.but(client="openai-sdk"),
    "opencode summary: tools": OPENCODE_SUMMARY.but(tools="some"),
    "opencode summary: no history": OPENCODE_SUMMARY.but(OPENCODE_SUMMARY.call.messages[-1]),
    "opencode summary: other words": OPENCODE_SUMMARY.but(ASKS, ANSWERS, ASKS),
    "opencode summary: the last word is the model's": OPENCODE_SUMMARY.but(ASKS, ANSWERS),
    "opencode quoted: another client": OPENCODE_QUOTED.but(client="curl"),
    "opencode quoted: two messages": OPENCODE_QUOTED.but(ASKS, OPENCODE_QUOTED.call.messages[-1]),
    "snapshot: another client": SNAPSHOT.but(client="opencode"),
    "snapshot: tools": SNAPSHOT.but(tools="some"),
    "snapshot: no history": SNAPSHOT.but(SNAPSHOT.call.messages[-1]),
    "snapshot: other words": SNAPSHOT.but(ASKS, ANSWERS, ASKS),
    "snapshot: the last word is the model's": SNAPSHOT.but(ASKS, ANSWERS),
    "hermes summary: no history": HERMES_SUMMARY.but(HERMES_SUMMARY.call.messages[-1]),
    "hermes summary: tools": HERMES_SUMMARY.but(tools="some"),
    "hermes summary: other words": HERMES_SUMMARY.but(ASKS, ANSWERS, ASKS),
    "router: streamed": GEMINI_ROUTER.but(is_stream=True),
    "router: another surface": GEMINI_ROUTER.but(surface="chat"),
    "router: another client": GEMINI_ROUTER.but(client="genai-sdk"),
    "router: tools": GEMINI_ROUTER.but(tools="some"),
    "router: another schema": GEMINI_ROUTER.but(
        call=call_of(ASKS, fields={"complexity_score": NUMBER})
    ),
    "router: the model of its User-Agent": GEMINI_ROUTER.but(
        headers={"user-agent": "GeminiCLI-tui/0.50.0/flash-lite (linux)"}
    ),
    "router: the session's model": GEMINI_ROUTER.but(session_model="flash-lite"),
    "commit: streamed": AIDER_COMMIT.but(is_stream=True),
    "commit: warm": AIDER_COMMIT.but(temperature=0.7),
    "commit: tools": AIDER_COMMIT.but(tools="some"),
    "commit: a model that is not small": AIDER_COMMIT.but(
        call=replace(AIDER_COMMIT.call, model=MODEL)
    ),
    "commit: the session's model": AIDER_COMMIT.but(session_model=SMALL),
    "commit: no system text": AIDER_COMMIT.but(AIDER_COMMIT.call.messages[1]),
    "commit: other words": AIDER_COMMIT.but(AIDER_COMMIT.call.messages[0], ASKS),
    "probe: two tokens": PROBE.but(max_tokens=2),
    "probe: tools": PROBE.but(tools="some"),
    "probe: a long message": PROBE.but(said("user", "ping " * 20)),
    "probe: two messages": PROBE.but(ASKS, ASKS),
    "probe: nothing said": PROBE.but(said("user", "")),
    "webui: streamed": WEBUI_TITLE.but(is_stream=True),
    "webui: tools": WEBUI_TITLE.but(tools="some"),
    "webui: another client": WEBUI_TITLE.but(client="other"),
    "webui: two messages": WEBUI_TITLE.but(ASKS, WEBUI_TITLE.call.messages[0]),
    "webui: a message behind": WEBUI_TITLE.but(WEBUI_TITLE.call.messages[0], ASKS),
    "webui: not a task": webui('Answer with { "title": "…" }'),
    "webui: the model's message": WEBUI_TITLE.but(said("assistant", "### Task: title")),
    "webui: a question about documents": webui(
        '### Task:\nAnswer by <context>…</context> { "title": "…" }'
    ),
    "webui: a question about sources": webui(
        '### Task:\nName the title in <source id="1">…</source>'
    ),
    "webui: a task that nobody knows": webui("### Task:\nSing."),
    "webui: the words within the history": webui(
        '### Task:\nSing.\n<chat_history>\n{ "title": 1 }\n</chat_history>'
    ),
    "webui: an emoji without its limit": WEBUI_EMOJI.but(max_tokens=5),
    "webui: another text with that limit": WEBUI_EMOJI.but(ASKS),
}


@pytest.mark.parametrize("sent", BROKEN.values(), ids=BROKEN.keys())
def test_a_shape_without_one_of_its_parts_is_a_turn(sent: Sent) -> None:
    assert sent.kind() is None


@pytest.mark.parametrize(
    "sent",
    [OPENCODE_TITLE, CLAUDE_TITLE, HERMES_TITLE, CODEX_SUMMARY, OPENCODE_SUMMARY, OPENCODE_QUOTED,
     SNAPSHOT, HERMES_SUMMARY, GEMINI_ROUTER, AIDER_COMMIT, WEBUI_TITLE, WEBUI_MERGE, WEBUI_EMOJI],
)  # fmt: skip
@pytest.mark.parametrize(
    "client",
    ["codex", "opencode", "claude-code", "gemini-cli", "qwen-code", "open-webui", "hermes", "aider",
     "other"],
)  # fmt: skip
def test_the_same_words_in_a_users_turn_are_a_turn(sent: Sent, client: ClientKind) -> None:
    pasted = "\n".join(message.text for message in sent.call.messages)
    call = call_of(said("system", "You help."), said("user", pasted), tools=("read", "write"))
    assert Sent(call, client, is_nearby=True).kind() is None
    chat = call_of(said("user", pasted))
    assert Sent(chat, client, is_nearby=True).kind() is None


SMALL_FORM = Sent(call_of(ASKS, fields={"name": TEXT, "score": NUMBER}), is_nearby=True)
PLAIN = Sent(call_of(ASKS), is_nearby=True)
GENERAL = SidePlan("general", is_thinking=True, replays_notes=True)


@pytest.mark.parametrize(
    "sent",
    [
        SMALL_FORM,
        PLAIN.but(call=call_of(ASKS, fields={"name": {"type": ["string", "null"]}})),
        PLAIN.but(call=call_of(ASKS, fields={"name": {"type": "NUMBER"}})),
        PLAIN.but(is_stream=False),
        PLAIN.but(is_stream=False, tools="empty", max_tokens=9),
        PLAIN.but(call=call_of(ASKS, model=SMALL)),
        PLAIN.but(call=call_of(ASKS, model=SMALL), session_model=MODEL),
        PLAIN.but(**codex_headers("memory")),
    ],
)
def test_what_looks_small_beside_a_turn_is_a_side_request_with_its_own_limits(sent: Sent) -> None:
    assert sent.plan() == GENERAL
    assert sent.but(is_nearby=False).plan() is None
    assert sent.but(tools="some").plan() is None


@pytest.mark.parametrize(
    "sent",
    [
        PLAIN,
        PLAIN.but(**codex_headers("turn")),
        PLAIN.but(call=call_of(ASKS, model=SMALL), session_model=SMALL),
        PLAIN.but(call=call_of(ASKS, fields={"a": TEXT, "b": TEXT, "c": TEXT})),
        PLAIN.but(call=call_of(ASKS, fields={})),
        PLAIN.but(call=call_of(ASKS, fields={"a": {"type": "array"}})),
        PLAIN.but(call=call_of(ASKS, fields={"a": {"type": ["string", "object"]}})),
        PLAIN.but(call=call_of(ASKS, fields={"a": {"type": "null"}})),
        PLAIN.but(call=call_of(ASKS, fields={"a": True})),
        PLAIN.but(call=replace(PLAIN.call, answer_format=AnswerFormat("json_schema", True))),
        PLAIN.but(
            call=replace(
                PLAIN.call, answer_format=AnswerFormat("json_object", {"properties": {"a": TEXT}})
            )
        ),
        PLAIN.but(
            call=replace(
                PLAIN.call, answer_format=AnswerFormat("json_schema", {"properties": [TEXT]})
            )
        ),
    ],
)
def test_what_does_not_look_small_is_a_turn(sent: Sent) -> None:
    assert sent.plan() is None


def test_a_known_shape_comes_before_the_general_rule() -> None:
    assert HERMES_TITLE.but(is_nearby=True, is_stream=False).kind() == "title"
    assert AIDER_COMMIT.but(is_nearby=True).kind() == "commit"


def test_a_commit_is_known_by_a_model_that_is_not_the_sessions() -> None:
    other = AIDER_COMMIT.but(call=replace(AIDER_COMMIT.call, model="weak"))
    assert other.kind() is None
    assert other.but(session_model=MODEL).kind() == "commit"


@given(st.integers(1, 100_000))
def test_a_clients_smaller_limit_stays(most: int) -> None:
    plan = OPENCODE_TITLE.but(max_tokens=most).plan()
    assert plan is not None
    assert plan.most_tokens == min(64, most)


@given(st.none() | st.integers(2, 100_000), st.none() | st.integers(1, 100))
def test_the_general_rule_never_lowers_a_limit(most: int | None, ruled: int | None) -> None:
    rules = SideRules(kinds={"general": SideRule(max_output=ruled)})
    assert SMALL_FORM.but(max_tokens=most).plan(rules) == GENERAL


def test_a_profile_has_the_last_word_on_kinds() -> None:
    assert OPENCODE_TITLE.plan(SideRules(enabled=False)) is None
    off = SideRules(kinds={"title": SideRule(enabled=False)})
    assert OPENCODE_TITLE.but(is_nearby=True, is_stream=True).plan(off) is None
    assert PROBE.plan(off) is not None
    longer = SideRules(kinds={"title": SideRule(max_output=100)})
    plan = OPENCODE_TITLE.plan(longer)
    assert plan is not None
    assert plan.most_tokens == 100
    plan = OPENCODE_TITLE.but(max_tokens=80).plan(longer)
    assert plan is not None
    assert plan.most_tokens == 80


def test_the_side_lane_is_for_what_is_surely_short() -> None:
    short = OPENCODE_TITLE.call
    assert lane_of(SidePlan("title", 64), short) == "side"
    assert lane_of(SidePlan("title", 65), short) == "main"
    assert lane_of(SidePlan("title", None), short) == "main"
    assert lane_of(SidePlan("title", 64, is_thinking=True), short) == "main"
    assert lane_of(SidePlan("title", 64), call_of(said("user", "a b " * 1_024))) == "side"
    assert lane_of(SidePlan("title", 64), call_of(said("user", "a b " * 1_025))) == "main"
    assert lane_of(SidePlan("title", 64), call_of(said("user", "x" * 17_000))) == "main"
    seen = Message("user", (ImagePart("https://x.invalid/1.png"),))
    assert lane_of(SidePlan("title", 64), call_of(seen)) == "main"


def test_the_journal_learns_the_kind() -> None:
    line = side_line(OPENCODE_TITLE.plan(), OPENCODE_TITLE.facts, OPENCODE_TITLE.call)
    assert line is not None
    assert (line.event, line.reason, line.numbers) == ("side", "title", {"most_tokens": 64})


def test_what_matches_nothing_inside_an_agents_session_is_told() -> None:
    sent = PLAIN.but(max_tokens=77)
    line = side_line(None, sent.facts, sent.call)
    assert line is not None
    assert (line.event, line.reason) == ("side", "unmatched")
    assert line.numbers == {"messages": 1, "fields": 0, "max_tokens": 77, "is_stream": True}
    history = Sent(call_of(ASKS, called(), result(), ASKS))
    assert side_line(None, history.facts, history.call) is not None


def test_turns_and_chats_are_not_told() -> None:
    turn = Sent(call_of(ASKS, tools=("a",)), is_nearby=True)
    assert side_line(None, turn.facts, turn.call) is None
    chat = Sent(call_of(ASKS, ANSWERS, ASKS))
    assert side_line(None, chat.facts, chat.call) is None


METADATA = st.recursive(
    st.none() | st.booleans() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner),
    max_leaves=5,
).map(json.dumps)


@given(METADATA | st.text(max_size=30) | st.just("[" * 60_000))
def test_a_header_of_any_content_is_borne(metadata: str) -> None:
    sent = CODEX_SUMMARY.but(headers={"x-codex-turn-metadata": metadata})
    assert sent.kind() in (None, "compaction")


@given(st.text(max_size=60), st.sampled_from(["user", "assistant", "system", "tool"]))
def test_a_request_with_tools_is_never_a_side_request(text: str, role: Any) -> None:
    call = call_of(said("user", "hi"), said(role, text), tools=("read",))
    assert Sent(call, "opencode", {"is_stream": False}, "other", is_nearby=True).kind() is None


def test_no_message_at_all_is_borne() -> None:
    empty = Sent(Call(MODEL, (), prompt="once"), "opencode", {"max_tokens": 1}, is_nearby=True)
    assert empty.kind() is None
