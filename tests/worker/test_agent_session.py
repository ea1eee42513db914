"""A recorded agent session of 30 turns with tool calls, over real engines: what is read again."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from agent import RECORDED, TEMPLATE, TURNS, Client, Turn
from scripted import END, TOKENIZER, Bench, submit
from tiny_checkpoints import write_tiny

from proto.chat import AnswerFormat, Call, Message, TextPart
from proto.worker_settings import Launch, SideSettings, WarmSettings, WorkerSettings
from worker.build import build_engine
from worker.engine import Engine
from worker.grammar.compiler import GrammarCompiler
from worker.loading.locate import open_checkpoint
from worker.settings import Machine
from worker.state.slot import Slot
from worker.state.start import common_prefix
from worker.text.prompt import PromptWriter
from worker.text.sources import masked_ids, tokenizer_of
from worker.text.template import ChatTemplate

CHUNK, MAX_LEN = 128, 8_192
FEW = 6  # turns of the gate; `make test-long` has all
BOTH = pytest.mark.parametrize("keeps_reasoning", [True, False], ids=["keeps", "drops"])
LENGTHS = pytest.mark.parametrize("turns", [FEW, pytest.param(TURNS, marks=pytest.mark.long)])
COLD = WarmSettings(enabled=False)


def _engine(path: Path, *, masked: tuple[int, ...], ends: tuple[int, ...], threads: int) -> Engine:
    settings = WorkerSettings(model=str(path), weights="fp32", threads=threads, max_len=MAX_LEN)
    machine = Machine("cpu", threads=threads, chunk=CHUNK, lanes=1, slots=2)
    launch = Launch(settings, "m", str(path), "ipc:///x", "/x")
    return build_engine(launch, machine, open_checkpoint(path), masked_ids=masked, end_ids=ends)


def _bench(engine: Engine, **changes: Any) -> Bench:
    template = ChatTemplate(TEMPLATE, {}, datetime.now)
    tokenizer = changes.get("tokenizer", TOKENIZER)
    bench = Bench(
        engine=engine, max_len=MAX_LEN, writer=PromptWriter(tokenizer, template), **changes
    )
    bench.hello()
    return bench


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    path = tmp_path_factory.mktemp(request.param)
    write_tiny(request.param, path, max_position_embeddings=MAX_LEN)
    return _engine(path, masked=masked_ids(TOKENIZER, 512), ends=(END,), threads=1)


@pytest.fixture
def new_bench(tiny: Engine) -> Iterator[Any]:
    def made(**changes: Any) -> Bench:
        return _bench(tiny, **changes)

    tiny.clear_kept(frozenset(("slot", "prefix", "session")))
    yield made


def _session(bench: Bench, name: str, turns: int = TURNS, **how: Any) -> list[Turn]:
    client = Client(bench, name, **how)
    return [client.turn() for _ in range(turns)]


def _assert_said_alike(turn: Turn, other: Turn) -> None:
    """A random model may say the same whatever it was told; how sure it is of that shows more."""
    assert turn.ids == other.ids
    assert turn.logprobs == pytest.approx(other.logprobs, abs=1e-3)


def _held(engine: Engine, salt: str) -> Slot:
    return next(slot for slot in engine.kept._idle if slot.salt == salt)


def _new_tokens(turn: Turn, held: tuple[int, ...]) -> int:
    """Tokens of a prompt behind what it has in common with what was held."""
    return len(turn.prompt) - common_prefix(turn.prompt, held)


@LENGTHS
@BOTH
def test_a_session_has_the_same_tokens_with_caches_and_reads_only_what_is_new(
    new_bench: Any, keeps_reasoning: bool, turns: int
):
    how = {"turns": turns, "keeps_reasoning": keeps_reasoning}
    cold = _session(new_bench(), "c/cold", caches=False, **how)
    assert all(turn.done.usage.cached_tokens == 0 for turn in cold)
    assert len({round(turn.logprobs[0], 4) for turn in cold}) > turns // 2
    bench = new_bench(warm=COLD)
    client = Client(bench, "c/plain", keeps_reasoning=keeps_reasoning)
    held: tuple[int, ...] = ()
    for turn in cold:
        made = client.turn()
        _assert_said_alike(made, turn)
        assert made.forwarded <= _new_tokens(made, held) + CHUNK
        assert made.forwarded == len(made.prompt) - made.done.usage.cached_tokens
        held = _held(bench.engine, "c").held
    assert sum(turn.done.cache_source != "none" for turn in client.turns) == turns - 1


@LENGTHS
@BOTH
def test_behind_a_warm_pass_a_turn_reads_only_its_own_message(
    new_bench: Any, keeps_reasoning: bool, turns: int
):
    how = {"turns": turns, "keeps_reasoning": keeps_reasoning}
    cold = _session(new_bench(), "c/cold", caches=False, **how)
    bench = new_bench()
    client = Client(bench, "c/warm", keeps_reasoning=keeps_reasoning)
    writer, ahead = bench.preparer._writer, 0
    for number, turn in enumerate(cold):
        made = client.turn()
        _assert_said_alike(made, turn)
        # What a client does with reasoning is known once it has sent a reply back.
        if number > 1 or (number == 1 and not keeps_reasoning):
            assert made.forwarded == len(made.prompt) - ahead
        reply = client.sent_back(made.reply)
        next_prompt = writer.write_next(made.call, reply, is_thinking=True)
        assert next_prompt is not None
        ahead = len(next_prompt.ids)
    events = bench.loop._warm.counts
    assert events["hit"] >= turns - 2
    assert events["miss"] == keeps_reasoning


def _others(bench: Bench) -> Any:
    """Titles, labels and guests that come while an answer is written, or between two."""

    def come(number: int) -> None:
        title = Message("user", (TextPart(f"A title of three words for talk {number}, please."),))
        label = Call(
            "m", (Message("user", (TextPart(f"Is {number} odd?"),)),),
            answer_format=AnswerFormat("choice", ["yes", "no"]),
        )  # fmt: skip
        guest = Message("user", (TextPart(f"Hi {number}"),))
        asked = {
            "title": submit(call=Call("m", (title,)), cache_salt="c", params=_short(6)),
            "label": submit(call=label, cache_salt="c", params=_short(8)),
            "guest": submit(call=Call("m", (guest,)), cache_salt="c", params=_short(70)),
            "stranger": submit(call=Call("m", (guest,)), cache_salt="d", params=_short(70)),
        }
        bench.others = [f"{name}-{number}" for name in asked]
        for name, one in asked.items():
            bench.say(replace(one, run_id=f"{name}-{number}"))

    return come


def _short(count: int) -> dict[str, Any]:
    return {"temperature": 0.0, "max_tokens": count}


@pytest.mark.parametrize("when", ["during", "between"])
def test_what_others_ask_changes_nothing_of_a_session(new_bench: Any, when: str):
    alone = new_bench()
    expected = _session(alone, "c/alone", turns=FEW)
    kept = _held(alone.engine, "c")
    held = kept.held
    frozen = [part.clone() for part in kept.cache.freeze(kept.kv_len)]
    anchors = [anchor.position for anchor in kept.anchors]
    alone.engine.clear_kept(frozenset(("slot", "prefix", "session")))
    bench = new_bench(side=SideSettings(), queue_size=8)
    come = _others(bench)
    client = Client(bench, "c/among", meanwhile=come if when == "during" else lambda number: None)
    for number, turn in enumerate(expected):
        made = client.turn()
        if when == "between":
            come(number)
        for run_id in bench.others:
            assert bench.turn_until_done(run_id).finish in ("stop", "length")
        bench.turn(40)
        _assert_said_alike(made, turn)
        assert made.done.usage.cached_tokens == turn.done.usage.cached_tokens
        assert made.done.cache_source == turn.done.cache_source
    slot = next(
        slot for slot in bench.engine.kept._idle if common_prefix(slot.ctx, made.prompt) > CHUNK
    )
    assert slot.held == held
    assert [anchor.position for anchor in slot.anchors] == anchors
    assert all(map(torch.equal, slot.cache.freeze(slot.kv_len), frozen))


# The embedded model.


@pytest.fixture(scope="module")
def embedded(embedded_model: Path) -> tuple[Engine, dict[str, Any]]:
    checkpoint = open_checkpoint(embedded_model)
    tokenizer, width = tokenizer_of(checkpoint.text), checkpoint.config.vocab_size
    masked, ends = masked_ids(tokenizer, width), tuple(checkpoint.end_ids)
    engine = _engine(embedded_model, masked=masked, ends=ends, threads=2)
    return engine, {
        "tokenizer": tokenizer,
        "compiler": GrammarCompiler(tokenizer.serialized, width=width, end_ids=ends),
        "end_ids": frozenset(ends),
        "vocab_size": width,
    }


def _on_the_embedded(
    embedded: tuple[Engine, dict[str, Any]], turns: int, *, keeps_reasoning: bool
) -> None:
    engine, changes = embedded
    how = {"turns": turns, "keeps_reasoning": keeps_reasoning}
    cold = _session(_bench(engine, **changes), "e/cold", caches=False, **how)
    salt = f"e{turns}{keeps_reasoning}"
    warm = _session(_bench(engine, **changes), f"{salt}/warm", **how)
    for one, other in zip(warm, cold, strict=True):
        _assert_said_alike(one, other)
    own = [turn.forwarded for turn in warm[2:]]
    longest = max(len(turn["text"]) for turn in RECORDED["turns"])
    assert max(own) < longest  # a message and what stands around it, never a turn before it


def test_the_embedded_model_reads_a_turn_once(embedded: Any):
    _on_the_embedded(embedded, 5, keeps_reasoning=False)


@pytest.mark.long
@BOTH
def test_the_embedded_model_reads_each_of_thirty_turns_once(embedded: Any, keeps_reasoning: bool):
    _on_the_embedded(embedded, TURNS, keeps_reasoning=keeps_reasoning)
