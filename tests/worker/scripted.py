"""A worker without device, socket, threads or time: scripted tokens and a clock that is set."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from weakref import WeakSet

from tiny_text import tiny_tokenizer

from proto.chat import Call, Message, Params, TextPart
from proto.messages import (
    Caps,
    Delta,
    Done,
    FromWorker,
    Hello,
    LinkMessage,
    Metric,
    Ready,
    Submit,
)  # fmt: skip
from proto.plan import Plan
from proto.worker_settings import QueueSettings, SideSettings, WarmSettings
from worker import prefill
from worker.admission import Queue
from worker.cache_answers import CacheFacts
from worker.dispatch import Dispatch
from worker.embedding.lane import EmbedLane, TextEmbedder
from worker.grammar.compiler import GrammarCompiler
from worker.loop import Loop
from worker.mailbox import Board, Inbox, Outbox
from worker.memory_gate import Verdict
from worker.models.config import SamplingDefaults
from worker.prepare import Preparer
from worker.pricing import Pricing
from worker.run import RunLimits
from worker.sampling.chooser import Chooser, Chosen
from worker.side import SideLane
from worker.speculation.calibration import Scope
from worker.speculation.drafting import Drafting
from worker.speculation.prices import Prices
from worker.speculation.round import Round
from worker.speculation.tree import DraftTree, Source
from worker.speculation.walk import Take
from worker.state.anchors import Anchors
from worker.state.ask import Ask
from worker.state.cache import SequenceCache
from worker.state.slot import Slot
from worker.text.prompt import PromptWriter
from worker.text.sent_back import SentBack
from worker.text.template import ChatTemplate
from worker.turns import Turns
from worker.warm import WarmPass

TOKENIZER = tiny_tokenizer()
END = TOKENIZER.control_tokens["<|im_end|>"]
WRITER = PromptWriter(TOKENIZER, ChatTemplate("{{ messages[0].content }}", {}, datetime.now))
READY = Ready(
    "w", "inc", 1, "tiny", "wh", TOKENIZER.hash, "th", 64, 0, 2, 1, 200, 1, ("llama",),
    "fp32", "cpu", True, 2, 5000, Caps(),
)  # fmt: skip
COMPILER = GrammarCompiler(TOKENIZER.serialized, width=512, end_ids=(END,))
SCOPE = Scope((256, 1024), (1, 2, 4), samples=1, limit_s=100.0, vocab_size=512)
GATEWAY, OTHER = b"gw:1", b"gw:2"

Script = Callable[[tuple[int, ...], int], int]


def letters(prompt: tuple[int, ...], number: int) -> int:
    """Writes a, b, c, … for ever; the n-th token is the n-th letter."""
    return TOKENIZER.encode_literal(chr(97 + (number - 1) % 26))[0]


def ending_after(count: int) -> Script:
    """Writes `count` letters, then ends."""
    return lambda prompt, number: END if number > count else letters(prompt, number)


def saying(text: str) -> Script:
    """Writes a text token by token, then ends. Tokens that were put in are not written again."""
    ids = TOKENIZER.encode(text)

    def script(ctx: tuple[int, ...], number: int) -> int:
        return ids[number - 1] if number <= len(ids) else END

    return script


def writer_of(source: str) -> PromptWriter:
    """A writer with this template."""
    return PromptWriter(TOKENIZER, ChatTemplate(source, {}, datetime.now))


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class ScriptedEngine:
    """Writes what the script says; a chunk and a round take the time they are told to."""

    guessed = 0  # tokens of each round beyond the first, all of them right

    def __init__(self, script: Script, clock: Clock, *, slots: int = 2, chunk: int = 16) -> None:
        self.script = script
        self.chunk_s = self.round_s = 0.0
        self.fault: Exception | None = None
        self.kept_fault: Exception | None = None  # of what is kept, beside that of steps
        self.is_consuming = False  # what is written goes through the run's grammar as well
        self._clock = clock
        self._chunk = chunk
        self.logprob: float | None = None  # of each token
        self.steps: list[Slot] = []  # whose turn it was, in order
        self.rooms: list[int] = []  # of each round, in order
        self.salts: list[str | None] = []  # of each prompt, in order
        self.living_prompts: WeakSet[ScriptedPrompt] = WeakSet()
        self.price_ms = 1.0  # of a verify, which takes 1 ms
        self.trial_s = 0.0
        self.trial_rows: list[int] = []  # of each trial, in order
        self.living_trials: WeakSet[ScriptedTrial] = WeakSet()
        self.prices: Prices | None = None
        self.side = _slot(clock)
        self._free = [_slot(clock) for _ in range(slots)]
        self.kv_bytes_free = 7
        self.to_file = 0  # pieces of kept states that are worth a file
        self.has_room_aside = True
        self.verdict = "fits"  # on the memory of each prompt, but of those in `verdicts`
        self.verdicts: dict[tuple[int, ...], str] = {}
        self.starved: list[Slot] = []  # those for which there is no memory to grow
        self.dropped_aside: list[Slot] = []
        self.kept_bytes = {"slot": 100, "prefix": 4096}  # by kind, one entry each
        self.cleared: list[frozenset[str]] = []  # what was asked for, in order

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def open(self, ask: Ask) -> Slot:
        slot = self.side if ask.is_side else self._free.pop()
        plan = prefill.plan(len(ask.prompt), "llama", self._chunk, ask.cuts)
        slot.begin(ask.prompt, ask.chooser, plan, ask.salt)
        self.salts.append(ask.salt)
        return slot

    def close(self, slot: Slot, *, is_sound: bool = True) -> None:
        assert slot not in self._free
        if slot is not self.side:
            self._free.append(slot)

    def room_for(self, ask: Ask) -> Verdict:
        kind = self.verdicts.get(ask.prompt, self.verdict)
        return Verdict(kind, 11, 5, 10, 9)

    def grow(self, slot: Slot) -> bool:
        return slot not in self.starved

    def memory_samples(self) -> tuple[Metric, ...]:
        return ()

    def set_aside(self, slot: Slot) -> Any:
        if self.has_room_aside:
            self._free.append(_slot(self._clock))
        return slot if self.has_room_aside else None

    def take_back(self, frozen: Any, chooser: Chooser) -> Slot:
        self._free.pop()
        return frozen

    def drop_aside(self, frozen: Any) -> None:
        self.dropped_aside.append(frozen)

    def open_ahead(self, prompt: tuple[int, ...], cuts: tuple[int, ...], salt: str) -> Slot | None:
        return None

    def read_ahead(self, slot: Slot) -> bool:
        raise AssertionError("nothing was opened to be read ahead")

    def read_chunk(self, slot: Slot, end: int) -> Chosen | None:
        self._pass(self.chunk_s)
        self.steps.append(slot)
        length = len(slot.ctx)
        slot.commit_chunk(end)
        return self._write(slot) if end == length else None

    def share(self, slot: Slot) -> "ScriptedPrompt":
        shared = ScriptedPrompt(slot.kv_len)
        self.living_prompts.add(shared)
        return shared

    def take_shared(self, slot: Slot, shared: "ScriptedPrompt") -> Chosen:
        slot.commit_shared(slot.plan, slot.lineage)
        return self._write(slot)

    def round(self, slot: Slot, room: int, take: Take) -> Round:
        self._pass(self.round_s)
        self.steps.append(slot)
        self.rooms.append(room)
        tokens: list[int] = []
        for _ in range(min(room, 1 + self.guessed)):
            slot.commit_forward(1)
            chosen = self._write(slot)
            tokens.append(chosen.token)
            if not take(chosen):
                break
        chain = (0, *tokens[:-1])
        sources = (Source(0), *[Source.LOOKUP] * (len(chain) - 1))
        tree = DraftTree(chain, tuple(range(-1, len(chain) - 1)), (1.0,) * len(chain), sources)
        times = 0.0, 1.0, 0.0, 0.0, self.price_ms
        return Round(tree, tuple(range(len(tokens))), tuple(tokens), *times)

    def cache_facts(self) -> CacheFacts:
        if self.kept_fault is not None:
            raise self.kept_fault
        entries = dict.fromkeys(self.kept_bytes, 1)
        return CacheFacts(
            entries, dict(self.kept_bytes), {"slot": 5}, {"prefix": 2}, {"too_large": 3}, 4, 1
        )

    def clear_kept(self, kinds: frozenset[str]) -> int:
        self.cleared.append(kinds)
        return sum(self.kept_bytes.pop(kind, 0) for kind in kinds)

    def cache_bytes(self, length: int) -> int:
        return length

    def trials(self, length: int) -> "ScriptedTrial":
        trial = ScriptedTrial(self, length)
        self.living_trials.add(trial)
        return trial

    def use_prices(self, prices: Prices) -> None:
        self.prices = prices

    def inject(self, slot: Slot, ids: Sequence[int]) -> None:
        slot.ctx += ids
        slot.chooser.skip(len(ids))
        slot.commit_forward(len(slot.ctx) - 1 - slot.kv_len)

    def rewind(self, slot: Slot, length: int, ids: Sequence[int]) -> None:
        slot.rewind(length)
        if ids:
            self.inject(slot, ids)

    def file_away(self) -> bool:
        self.to_file -= self.to_file > 0
        return self.to_file > 0

    def _write(self, slot: Slot) -> Chosen:
        token = self.script(tuple(slot.ctx), slot.chooser.number)
        if self.is_consuming and slot.chooser.matcher is not None:
            slot.chooser.matcher.consume(token)
        slot.chooser._counts.add(token)
        slot.chooser.skip(1)
        slot.commit_choice(token)
        return Chosen(token, self.logprob)

    def _pass(self, seconds: float) -> None:
        self._clock.now += seconds
        if self.fault is not None:
            raise self.fault


class ScriptedPrompt:
    """The state of a prompt that was read."""

    def __init__(self, length: int) -> None:
        self.length = length


class ScriptedTrial:
    """A verify of n rows takes n ms, its commit half a ms."""

    def __init__(self, engine: ScriptedEngine, length: int) -> None:
        self.engine = engine
        self.length = length

    def __call__(self, start: int, tree: DraftTree, path: Sequence[int]) -> tuple[float, float]:
        assert start + len(tree) <= self.length
        self.engine.trial_rows.append(len(tree))
        self.engine._pass(self.engine.trial_s)
        return float(len(tree)), 0.5


class NoFile:
    """A price table that is kept nowhere. `written`: what should have been."""

    path = Path("/nowhere")

    def __init__(self) -> None:
        self.written: list[Prices] = []

    def read(self) -> Prices | None:
        return None

    def write(self, prices: Prices) -> bool:
        self.written.append(prices)
        return True


def _slot(clock: Clock) -> Slot:
    return Slot(SequenceCache(None, None), Drafting((), (), clock), Anchors(most=1, tail=1))


class ScriptedEmbedder:
    """A vector of a text is its length and its first id; a chunk takes the time it is told to."""

    def __init__(self, clock: Clock, chunk: int = 2) -> None:
        self.chunk_s = 0.0
        self.fault: Exception | None = None
        self.reads = self.stops = 0
        self._clock = clock
        self._chunk = chunk

    def start(self, ids: tuple[int, ...]) -> None:
        self._ids, self._done = ids, 0

    def read_chunk(self) -> tuple[float, ...] | None:
        self.reads += 1
        self._clock.now += self.chunk_s
        if self.fault is not None:
            raise self.fault
        self._done += self._chunk
        is_whole = self._done >= len(self._ids)
        return (float(len(self._ids)), float(self._ids[0])) if is_whole else None

    def stop(self) -> None:
        self.stops += 1


class Bench:
    """Loop, dispatch and preparer, driven by hand. `sent`: messages by connection, in order."""

    def __init__(
        self, script: Script = letters, *, embeds: bool = False, engine: Any = None,
        embedder: TextEmbedder | None = None, **changes: Any,
    ) -> None:  # fmt: skip
        self.clock = Clock()
        tokenizer = changes.pop("tokenizer", TOKENIZER)
        scripted = ScriptedEngine(
            script, self.clock, slots=changes.pop("slots", 2), chunk=changes.pop("chunk", 16)
        )
        self.engine = engine or scripted
        self.embedder = ScriptedEmbedder(self.clock)
        side = SideLane(changes.pop("side", SideSettings(enabled=False)))
        queue = QueueSettings(changes.pop("queue_size", 8), changes.pop("queue_timeout_s", 240.0))
        self.to_preparer: Inbox = Inbox(changes.pop("preparing", 16))
        self.to_loop: Inbox = Inbox()
        self.outbox = Outbox()
        self.board = Board(self.clock.now)
        self.price_file, self.free_bytes = NoFile(), 1 << 40
        self.pricing = Pricing(
            self.engine, SCOPE, self.price_file, has_room=lambda need: need <= self.free_bytes,
            clock=self.clock,
        )  # fmt: skip
        self.others: list[str] = []  # runs that stand beside the one a test looks at
        self.sent: dict[bytes, list[FromWorker]] = defaultdict(list)
        max_len = changes.pop("max_len", 200)
        self.loop = Loop(
            self.engine,
            self.pricing,
            end_ids=changes.pop("end_ids", frozenset((END,))),
            token_bytes=tokenizer.token_bytes,
            tokenizer_hash=tokenizer.hash,
            limits=RunLimits(max_len, 50, changes.pop("wall_clock_s", 100.0)),
            side=side,
            embeds=EmbedLane(embedder or self.embedder, queue, side, self.outbox, self.clock),
            queue=Queue(queue.size, queue.timeout_s),
            warm=WarmPass(self.engine, changes.pop("warm", WarmSettings()), self.clock),
            turns=Turns(changes.pop("share", 0.5)),
            lanes=changes.pop("lanes", 1),
            drain_s=changes.pop("drain_s", 30.0),
            inbox=self.to_loop,
            preparer=self.to_preparer,
            outbox=self.outbox,
            board=self.board,
            hosting=changes.pop("hosting", None),
            clock=self.clock,
        )
        self.preparer = Preparer(
            changes.pop("writer", WRITER),
            SamplingDefaults(),
            changes.pop("compiler", COMPILER),
            changes.pop("sent_back", None) or SentBack(),
            max_len=max_len,
            vocab_size=changes.pop("vocab_size", 512),
            inbox=self.to_preparer,
            loop=self.to_loop,
            outbox=self.outbox,
        )
        ready = replace(READY, caps=Caps(embed=embeds))
        self.dispatch = Dispatch(ready, self._send, preparer=self.to_preparer, loop=self.to_loop)
        assert not changes, changes

    def _send(self, receiver: bytes, message: FromWorker) -> bool:
        self.sent[receiver].append(message)
        return True

    def hello(self, sender: bytes = GATEWAY, gateway_id: str | None = None) -> None:
        """Makes a connection known."""
        self.say(Hello(gateway_id or sender.decode(), "i", 1, 1), sender)

    def say(self, message: LinkMessage, sender: bytes = GATEWAY) -> None:
        """Delivers one message of a gateway."""
        self.dispatch.receive(sender, message, self.clock.now)

    def turn(self, count: int = 1) -> None:
        """Lets everybody work once, or several times."""
        for _ in range(count):
            self.preparer.work()
            self.loop.turn()
            self.deliver()

    def deliver(self) -> None:
        """Hands the loop's messages to dispatch."""
        for outgoing in self.outbox.take_all():
            self.dispatch.forward(outgoing, self.clock.now)

    def turn_until_done(self, run_id: str, limit: int = 500) -> Done:
        """Turns until the run's end is said."""
        for _ in range(limit):
            done = [m for m in self.messages(Done) if m.run_id == run_id]
            if done:
                return done[0]
            self.turn()
        raise AssertionError(f"{run_id} did not end in {limit} turns")

    def messages(self, kind: type, receiver: bytes = GATEWAY) -> list[Any]:
        """What a connection heard of one kind."""
        return [m for m in self.sent[receiver] if isinstance(m, kind)]

    def text(self, run_id: str, receiver: bytes = GATEWAY) -> str:
        """The run's text as a connection heard it."""
        deltas = [m for m in self.messages(Delta, receiver) if m.run_id == run_id]
        return "".join(piece for delta in deltas for piece in delta.pieces)

    def numbers(self, run_id: str, receiver: bytes = GATEWAY) -> list[int]:
        """The token numbers a connection heard, in order."""
        deltas = [m for m in self.messages(Delta, receiver) if m.run_id == run_id]
        return [delta.first + i for delta in deltas for i in range(len(delta.ids))]


def submit(run_id: str = "r1", prompt: str = "hello", **changes: Any) -> Submit:
    """A Submit with plain values, some of them changed; `params` as keywords of its own."""
    params = changes.pop("params", {"temperature": 0.0})
    plan = changes.pop("plan", Plan())
    call = changes.pop("call", None) or Call("m", (Message("user", (TextPart(prompt),)),))
    fields: dict[str, Any] = {
        "epoch": 1, "start_token": 1, "choice": 0, "seed": 1, "cache_salt": "", "credit": 256,
        **changes,
    }  # fmt: skip
    return Submit(run_id=run_id, call=call, plan=plan, params=Params(**params), **fields)
