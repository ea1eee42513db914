"""What kept states bring in an agent's session: time to the first token of a turn, cold and not.

Knows an engine and a template; no other contender, and no process.

Each turn's prompt is the last one, its answer, and a tool's result. The model that is asked gets a
tool's result as a user message: its template knows no tools, and reads as many tokens either way.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from bench.engine.contenders import CHUNK, GREEDY
from bench.engine.rounds import Ratio
from bench.engine.workloads import MODEL, TEXTS
from proto.chat import Call, Message, TextPart
from proto.worker_settings import Launch, WeightLayout, WorkerSettings
from worker.build import build_engine
from worker.engine import Engine
from worker.loading.locate import open_checkpoint
from worker.sampling.chooser import Chooser
from worker.settings import Machine
from worker.state.ask import Ask
from worker.state.slot import Slot
from worker.text.prompt import Prompt, PromptWriter
from worker.text.sources import template_of, tokenizer_of

TURNS = 30
SHOWN = (2, 10, 20, 30)  # turns whose cold time is measured as well
LEAST_RATIO = 20.0  # of cold over resumed, in the last turn
MAX_LEN = 8192
ANSWER = 32  # tokens at most
RESULT_CHARS = 270  # of a tool's result, about 90 tokens


@dataclass
class Times:
    """Milliseconds to the first token, by turn; one a round."""

    cold: dict[int, list[float]] = field(default_factory=dict)
    resumed: dict[int, list[float]] = field(default_factory=dict)
    warmed: dict[int, list[float]] = field(default_factory=dict)
    prompt_tokens: dict[int, int] = field(default_factory=dict)
    forwarded: dict[int, int] = field(default_factory=dict)
    warm_forwarded: dict[int, int] = field(default_factory=dict)

    def ratio(self, turn: int, series: dict[int, list[float]]) -> Ratio:
        """Cold over a series, formed within each round."""
        found = [cold / own for cold, own in zip(self.cold[turn], series[turn], strict=True)]
        return Ratio(statistics.median(found), min(found), max(found))


class Sessions:
    """One session a round and a way, in turn."""

    def __init__(self, model: Path, layout: WeightLayout, watch: Callable[[], None]) -> None:
        settings = WorkerSettings(model=str(model), weights=layout, max_len=MAX_LEN)
        launch = Launch(settings, "bench", str(model), "", "")
        machine = Machine("cpu", threads=0, chunk=CHUNK, lanes=1, slots=2)
        checkpoint = open_checkpoint(model)
        self._engine: Engine = build_engine(
            launch, machine, checkpoint, masked_ids=(), end_ids=checkpoint.end_ids
        )
        self._tokenizer = tokenizer_of(checkpoint.text)
        self._writer = PromptWriter(self._tokenizer, template_of(checkpoint.text, MODEL))
        self._ends = frozenset(checkpoint.end_ids)
        self._salts = map("session-{}".format, count())
        self._watch = watch
        self._layout = layout
        self.times = Times()

    def measure(self, rounds: int) -> None:
        """The session, resumed and warmed in every round, cold where it is shown."""
        for _ in range(rounds):
            for is_warm in (False, True):
                self._session(is_warm=is_warm)
            self._watch()

    def _session(self, *, is_warm: bool) -> None:
        salt, call = next(self._salts), Call("bench", (_system(), _result(0)))
        series = self.times.warmed if is_warm else self.times.resumed
        forwarded = self.times.warm_forwarded if is_warm else self.times.forwarded
        for turn in range(1, TURNS + 1):
            prompt = self._writer.write(call, is_thinking=False)
            if turn in SHOWN and not is_warm:
                self._cold(turn, prompt)
            first_ms, slot = self._first(prompt, salt)
            series.setdefault(turn, []).append(first_ms)
            forwarded[turn] = len(prompt.ids) - slot.start.position
            self.times.prompt_tokens[turn] = len(prompt.ids)
            reply = self._reply(slot, len(prompt.ids))
            if is_warm:
                self._warm(call, reply, salt)
            call = Call("bench", (*call.messages, reply, _result(turn)))

    def _cold(self, turn: int, prompt: Prompt) -> None:
        first_ms, slot = self._first(prompt, None)
        self._engine.close(slot)
        self.times.cold.setdefault(turn, []).append(first_ms)

    def _first(self, prompt: Prompt, salt: str | None) -> tuple[float, Slot]:
        began_s, chosen = time.perf_counter(), None
        slot = self._engine.open(Ask(prompt.ids, Chooser(GREEDY, prompt.ids), prompt.cuts, salt))
        while chosen is None:
            end = slot.plan.chunk_end(slot.kv_len, len(prompt.ids))
            chosen = self._engine.read_chunk(slot, end)
        return (time.perf_counter() - began_s) * 1000, slot

    def _reply(self, slot: Slot, prompt_tokens: int) -> Message:
        while slot.ctx[-1] not in self._ends and len(slot.ctx) < prompt_tokens + ANSWER:
            self._engine.round(slot, 1, lambda _: True)
        self._engine.close(slot)
        ids = [token for token in slot.ctx[prompt_tokens:] if token not in self._ends]
        spelled = b"".join(self._tokenizer.token_bytes[token] or b"" for token in ids)
        return Message("assistant", (TextPart(spelled.decode(errors="replace")),))

    def _warm(self, call: Call, reply: Message, salt: str) -> None:
        ahead = self._writer.write_next(call, reply, is_thinking=False)
        slot = None if ahead is None else self._engine.open_ahead(ahead.ids, ahead.cuts, salt)
        if slot is not None:
            while not self._engine.read_ahead(slot):
                continue
            self._engine.close(slot)

    def lines(self) -> list[str]:
        """A table: milliseconds to the first token, and ratios to cold."""
        times = self.times
        head = f"embedded {self._layout}, {TURNS} turns"
        made = [
            "",
            f"| {head}: turn | prompt | cold, ms | resumed, ms | forwarded | cold / resumed "
            "| after a warm pass, ms | forwarded | cold / warmed |",
            "|---" * 9 + "|",
        ]
        for turn in SHOWN:
            cold, resumed, warmed = (
                statistics.median(series[turn])
                for series in (times.cold, times.resumed, times.warmed)
            )
            made.append(
                f"| {turn} | {times.prompt_tokens[turn]} | {cold:.0f} | {resumed:.0f} "
                f"| {times.forwarded[turn]} | {times.ratio(turn, times.resumed)} "
                f"| {warmed:.0f} | {times.warm_forwarded[turn]} "
                f"| {times.ratio(turn, times.warmed)} |"
            )
        return made

    def ratios(self) -> list[tuple[str, Ratio]]:
        """What the last turn is held to: cold over each way."""
        times, where = self.times, f"session {self._layout}, turn {TURNS}: first token"
        return [
            (f"{where}, cold / resumed", times.ratio(TURNS, times.resumed)),
            (f"{where}, cold / after a warm pass", times.ratio(TURNS, times.warmed)),
        ]


def _system() -> Message:
    """Rules as agents have them: some four thousand tokens, half of what the model can read."""
    names = ("passage.txt", "source.txt", "chat.txt", "fresh.txt") * 2
    texts = "\n\n".join((TEXTS / name).read_text("utf-8") for name in names)
    return Message("system", (TextPart(f"You help with the work below.\n\n{texts}"),))


def _result(turn: int) -> Message:
    text = (TEXTS / "source.txt").read_text("utf-8")
    at = turn * RESULT_CHARS % len(text)
    part = (text + text)[at : at + RESULT_CHARS]
    return Message("user", (TextPart(f"Result of step {turn}:\n\n{part}\n\nWhat is next?"),))
