"""The way of a request from its body to the tokens that a model reads, and of tokens back.

The gateway's own reading, planning and notebook, the link's codec, the worker's own preparing; only
the model is missing: what it answers is given, and who is asked for a kind of task is a script.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conductor.client import detect
from conductor.ports import Question, Reply
from conductor.thinking import thinking_of
from conductor.types import Target, TurnPlan
from gateway.conducting.conducting import Conducting
from gateway.conducting.facts import asked_of
from gateway.conducting.rooms import Rooms
from gateway.ledger.entry import Entry
from gateway.settings.load import load
from gateway.surfaces.chat.parse import parse_chat
from gateway.surfaces.fields import clean
from proto import codec
from proto.chat import Message, reply_message
from proto.deltas import events_of
from proto.messages import Delta, Submit
from proto.plan import Plan, Segment
from tests.conductor.recorded.talk import Answer, Request
from tests.e2e.models import Model
from worker.mailbox import Inbox, Outbox
from worker.models.config import SamplingDefaults
from worker.prepare import Preparer
from worker.text.answer import AnswerText
from worker.text.prompt import Prompt
from worker.text.sent_back import SentBack
from worker.types import Arrival, Prepared

TURN_MS = 60_000  # between two requests; a helper call comes a second behind the one before
BESIDE_MS = 1_000
MAX_LEN = 100_000
CREDIT = 256
THOUGHT = "Let me see."  # of an answer for which none is given

PROFILE = """\
name: {name}
description: {name} with words of its own
{match}rules:
  - {{id: careful, when: {{classes: [edit, build, debug]}}, text: "{wish}"}}
  - {{id: parts, when: {{classes: [fact, chat]}}, text: "One sentence, no list."}}
  - {{id: counting, when: {{regex: "(?i)how (many|tall|much)|count"}}, text: "Numbers in digits."}}
  - {{id: files, when: {{tools: [bash, Read, exec_command, terminal]}}, text: "Read, then write."}}
packages: {{enabled: true}}
"""
PACKAGE = """\
---
id: config-files
title: Configuration files
match: {regex: ["config|readme|module|boat|bird"]}
---
A file is read before it is changed, and read again when it was changed.
"""
MATCHES = {
    "chat": "",
    "coding": "match: {clients: [opencode, claude-code, codex]}\n",
    "hermes": "match: {clients: [hermes]}\n",
    "chat-app": "match: {clients: [open-webui]}\n",
}


class Asking:
    """Who says what kind of task a text is: for each text always the same. Counts."""

    names = ("edit", "fact", "debug", "chat", "build")

    def __init__(self) -> None:
        self.questions: list[Question] = []
        self.words = ""  # of the request that may ask

    async def ask(self, question: Question) -> Reply:
        name = self.names[len(self.words) % len(self.names)]
        assert name in question.choices
        self.questions.append(question)
        return Reply(name, 0.9, 12)


@dataclass(frozen=True)
class Seen:
    """What became of one request. `asked`: how many questions it led to."""

    submit: Submit
    prepared: Prepared
    plan: TurnPlan
    asked: int

    @property
    def ids(self) -> tuple[int, ...]:
        return self.prepared.prompt

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.submit.plan.segments


@dataclass
class _Run:
    """What a run tells the gateway of its notes."""

    note_ids: dict[str, tuple[int, ...]]
    tokenizer_hash: str
    findings: tuple[()] = ()


class Road:
    """A gateway with its files below `folder`, and a worker's preparer."""

    def __init__(self, folder: Path, model: Model) -> None:
        self.model = model
        self.asking = Asking()
        self._folder = folder
        self._wish = "Small steps."
        self._now_ms = 1_800_000_000_000
        self._loop: Inbox[Any] = Inbox()
        self._inbox: Inbox[Any] = Inbox()
        self._preparer = Preparer(
            model.writer, SamplingDefaults(), model.compiler, SentBack(), max_len=MAX_LEN,
            vocab_size=len(model.tokenizer.token_bytes), inbox=self._inbox, loop=self._loop,
            outbox=Outbox(),
        )  # fmt: skip
        self._start()

    async def send(self, request: Request, scope: str) -> Seen:
        """One request, up to its prompt; what it leaves is stored."""
        if request.before == "restart":
            self.restart()
        elif request.before == "reload":
            self.reload()
        self._now_ms += TURN_MS if request.side is None else BESIDE_MS
        fields = clean(json.loads(json.dumps(request.body)))
        parsed = parse_chat(fields)
        asked = asked_of("chat", request.headers.items(), fields, parsed)
        raw = {name.encode(): value.encode() for name, value in request.headers.items()}
        entry = Entry(request_id=f"r{self._now_ms}", ts_ms=self._now_ms, arrived_s=0.0)
        entry.client_id, entry.client_kind = scope, detect(raw)
        before, self.asking.words = len(self.asking.questions), parsed.call.messages[-1].text
        turn = await self._conducting.plan(parsed.call, asked, self._target(), entry, self.asking)
        call, plan = turn.work("salt")
        turn.begin()
        params = turn.params(parsed.params, fields)
        submit, prepared = self.prepare(call, plan, params)
        run = _Run(prepared.notes.new_ids, self.model.tokenizer.hash)
        await turn.end([run], "stop")  # type: ignore[list-item]
        return Seen(submit, prepared, turn.plan, len(self.asking.questions) - before)

    def raw(self, request: Request) -> tuple[int, ...]:
        """The prompt of a gateway without a conductor."""
        parsed = parse_chat(clean(json.loads(json.dumps(request.body))))
        plan = Plan(thinking=thinking_of(parsed.thinking, parsed.params.max_tokens))
        return self.prepare(parsed.call, plan, parsed.params)[1].prompt

    def prepare(self, call: Any, plan: Plan, params: Any) -> tuple[Submit, Prepared]:
        """Through the link, and as the worker does it."""
        submit = Submit("run", 1, 1, 0, call, plan, params, 1, "salt", CREDIT)
        heard = codec.decode(codec.encode(submit))
        assert heard == submit
        self._inbox.put(Arrival(heard, 0.0))
        self._preparer.work()
        (prepared,) = self._loop.take_all()
        assert isinstance(prepared, Prepared), prepared
        return heard, prepared

    def again(self, seen: Seen, messages: tuple[Message, ...]) -> Prompt:
        """The prompt of an earlier request with its messages written like this; notes stand where
        they stood, but for those whose message is another one."""
        before = seen.submit.call.messages
        assert len(messages) == len(before)
        segments = [one for one in seen.segments if _is_alike(one, before, messages)]
        return self.model.writer.write(
            replace(seen.submit.call, messages=messages),
            is_thinking=seen.submit.plan.thinking.on,
            segments=segments,
        )

    def answer_ids(self, seen: Seen, answer: Answer, *, is_bare: bool = False) -> tuple[int, ...]:
        """What the model writes for an answer behind this prompt; it is read as the worker reads
        it, and must be that answer then. `is_bare`: of that the part behind its reasoning."""
        encode = self.model.tokenizer.encode
        bare = self.model.written(answer)
        thought = ""
        if seen.prepared.syntax.is_open:
            thought = f"{answer.thought or THOUGHT}\n</think>\n\n"
        ids = tuple(encode(thought + bare))
        heard = self._heard(seen, ids)
        assert heard.text == answer.text
        assert [(call.name, json.loads(call.arguments)) for call in heard.calls] == [*answer.calls]
        assert heard.reasoning == (answer.thought or THOUGHT if thought else None)
        return tuple(encode(bare)) if is_bare else ids

    def without_thought(self, seen: Seen, ids: tuple[int, ...]) -> tuple[int, ...]:
        """A prompt without the block of reasoning that it ends in."""
        block = "<think>\n" if seen.prepared.syntax.is_open else "<think>\n\n</think>\n\n"
        end = tuple(self.model.tokenizer.encode(block))
        assert ids[-len(end) :] == end
        return ids[: -len(end)]

    def _heard(self, seen: Seen, ids: tuple[int, ...]) -> Message:
        reading = AnswerText(self.model.tokenizer.token_bytes, seen.prepared.syntax)
        spoken = [reading.push(token, number) for number, token in enumerate(ids, 1)]
        spoken.append(reading.finish(len(ids), is_cut=False))
        deltas = (
            Delta("run", 1, (0,), (one.piece,), (one.kind,), (False,), calls=one.calls or None)
            for one in spoken
        )
        return reply_message(event for delta in deltas for event in events_of(delta))

    def restart(self) -> None:
        """Another process on the same files."""
        self.close()
        self._start()

    def reload(self) -> None:
        """The operator writes another rule, and the gateway reads its files again."""
        before = self._conducting.planning.config_rev
        self._wish = f"{self._wish} And smaller."
        self._conducting.planning = self._settings().planning
        assert self._conducting.planning.config_rev != before

    def close(self) -> None:
        """Everything is written down."""
        self._rooms.close()

    def _start(self) -> None:
        settings = self._settings()
        self._rooms = Rooms(settings, b"key", wall=self._wall)
        self._conducting = Conducting(settings.planning, self._rooms, wall=self._wall)

    def _settings(self) -> Any:
        profiles, packages = self._folder / "profiles", self._folder / "packages"
        for folder in (profiles, packages):
            folder.mkdir(exist_ok=True)
        for name, match in MATCHES.items():
            text = PROFILE.format(name=name, match=match, wish=self._wish)
            (profiles / f"{name}.yaml").write_text(text)
        (packages / "config-files.md").write_text(PACKAGE)
        main = self._folder / "tandem.yaml"
        main.write_text(f"server: {{state_dir: '{self._folder / 'state'}'}}\nworker: {{}}\n")
        return load(main, {})

    def _target(self) -> Target:
        return Target(
            "engine", context_tokens=MAX_LEN, tokenizer_hash=self.model.tokenizer.hash,
            can_reason=self.model.can_reason,
        )  # fmt: skip

    def _wall(self) -> float:
        return self._now_ms / 1000


def _is_alike(segment: Segment, before: tuple[Message, ...], after: tuple[Message, ...]) -> bool:
    return before[segment.message].text == after[segment.message].text
