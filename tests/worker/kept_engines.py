"""Real tiny engines whose kept states can be made few and small, and what their slots hold."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from decoding import SALTS, chosen_in
from drafters import ALL_FREE
from tiny_checkpoints import write_tiny
from tiny_drafter import write_drafter
from torch import Tensor, uint8

from proto.worker_settings import BlockSettings, DraftSettings, Launch, WorkerSettings
from worker.build import build_engine
from worker.engine import Engine
from worker.loading.locate import open_checkpoint
from worker.sampling.chooser import Chooser, Chosen
from worker.sampling.params import Sampling
from worker.settings import Machine
from worker.speculation.prices import UNMEASURED
from worker.state.anchors import Anchor
from worker.state.ask import Ask
from worker.state.keeping import Keeping
from worker.state.slot import Slot

# Every logit that a token was chosen by is in what is compared.
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, top_logprobs=511)
CHUNK = 32


def tiny_engine(family: str, folder: Path) -> Engine:
    """A model with a block drafter, both random, and the lookup drafter; it guesses nothing yet."""
    write_tiny(family, folder)
    write_drafter(folder / "drafter")
    block = DraftSettings(block=BlockSettings(str(folder / "drafter")))
    settings = WorkerSettings(model=str(folder), weights="fp32", threads=1, draft=block)
    return build_engine(
        Launch(settings, "tiny", str(folder), "ipc:///x", "/x"),
        Machine("cpu", threads=1, chunk=CHUNK, lanes=1, slots=1),
        open_checkpoint(folder), masked_ids=(511,), end_ids=(2,), clock=lambda: 0.0,
    )  # fmt: skip


def anew(
    engine: Engine,
    keeping: Keeping = Keeping(),  # noqa: B008 - it is frozen
    *,
    slots: int = 2,
    chunk: int = CHUNK,
    is_guessing: bool = False,
    is_drafted: bool = False,
) -> Engine:
    """An engine of the same weights that holds nothing. `is_drafted`: with both drafters in every
    slot; `is_guessing`: and what they guess is verified."""
    is_drafted = is_drafted or is_guessing
    speculation = replace(engine._speculation, prices=ALL_FREE if is_guessing else UNMEASURED)
    if not is_drafted:
        speculation = replace(speculation, new_drafters=lambda: (), drafter_bytes=lambda _: 0)
    return Engine(
        engine._model,
        engine._masked.tolist(),
        Machine("cpu", threads=1, chunk=chunk, lanes=slots, slots=slots),
        replace(engine.facts, slots=slots, chunk=chunk),
        speculation,
        keeping,
        lambda: 0.0,
    )


def taken(engine: Engine, prompt: Sequence[int], salt: str | None = "mine", **more: Any) -> Slot:
    """A slot for a prompt of a tenant."""
    prompt = tuple(prompt)
    return engine.open(Ask(prompt, Chooser(GREEDY, prompt), salt=salt, **more))


def read_on(engine: Engine, slot: Slot, chunks: int | None = None) -> Chosen | None:
    """Reads some chunks of the prompt, or all there are; the first token, if it came to that."""
    length, chosen = len(slot.ctx), None
    while chosen is None and chunks != 0:
        chosen = engine.read_chunk(slot, slot.plan.chunk_end(slot.kv_len, length))
        chunks = None if chunks is None else chunks - 1
    return chosen


def answered(engine: Engine, slot: Slot, count: int = 8) -> list[Chosen]:
    """Reads the prompt, writes so many tokens in all."""
    first = read_on(engine, slot)
    assert first is not None
    return [first, *chosen_in(engine, slot, count - 1)]


def turn(
    engine: Engine, prompt: Sequence[int], salt: str | None = "mine", count: int = 8, **more: Any
) -> Slot:
    """A whole run; the slot is given back."""
    slot = taken(engine, prompt, salt, **more)
    answered(engine, slot, count)
    engine.close(slot)
    return slot


def tokens(chosen: Sequence[Chosen]) -> list[int]:
    """Their ids."""
    return [one.token for one in chosen]


@dataclass(frozen=True)
class Cold:
    """What a prompt gives that is read from its first token. `deltas`: by start, and at the end."""

    kv: tuple[Tensor, Tensor]
    deltas: dict[int, tuple[Tensor, ...]]
    chosen: list[Chosen]


def cold(engine: Engine, prompt: Sequence[int], cuts: tuple[int, ...] = (), count: int = 8) -> Cold:
    """`engine`: one that has not seen the tenant that this makes up."""
    slot = taken(engine, prompt, next(SALTS), cuts=cuts)
    assert slot.start.position == 0
    deltas, first = {0: delta_of(slot)}, None
    while first is None:
        first = read_on(engine, slot, 1)
        deltas[slot.kv_len] = delta_of(slot)
    kv = slot.cache.kv.freeze(slot.kv_len)
    chosen = [first, *chosen_in(engine, slot, count - 1)]
    engine.close(slot)
    return Cold(kv, deltas, chosen)


def delta_of(slot: Slot) -> tuple[Tensor, ...]:
    """A copy of the state of the delta layers; empty where there are none."""
    delta = slot.cache.delta
    return () if delta is None else (delta.recurrent.clone(), delta.conv.clone())


def is_same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether every byte is."""
    return len(one) == len(other) and all(
        a.shape == b.shape and a.contiguous().view(uint8).equal(b.contiguous().view(uint8))
        for a, b in zip(one, other, strict=True)
    )


def rows(kv: tuple[Tensor, Tensor], end: int) -> tuple[Tensor, Tensor]:
    """The first rows of keys and values."""
    return kv[0][:, :, :end], kv[1][:, :, :end]


def digest(engine: Engine, *besides: Slot, has_store: bool = True) -> str:
    """Of all that slots hold, but for `besides`; then of the store and all counters."""
    kept = engine.kept
    known = hashlib.sha256()

    def add(*parts: Tensor) -> None:
        for part in parts:
            known.update(part.contiguous().view(uint8).numpy().tobytes())

    for slot in (*kept._idle, *kept._running, kept._side):
        if slot in besides:
            continue
        known.update(repr((slot.ctx, slot.kv_len, slot.salt, slot.plan, slot.lineage)).encode())
        add(*slot.cache.freeze(slot.kv_len))
        for anchor in slot.anchors:
            known.update(repr(anchor.position).encode())
            add(*parts_of(anchor))
        for drafts in slot.drafting.freeze():
            add(*drafts)
    if not has_store:
        return known.hexdigest()
    for entry in kept._store:
        known.update(repr((entry.kind, entry.salt, entry.ids)).encode())
        add(*entry.tensors)
    facts = engine.cache_facts()
    counts = facts.hits, facts.misses, facts.evictions, facts.skipped, facts.collisions, kept._cuts
    known.update(repr(counts).encode())
    return known.hexdigest()


def parts_of(anchor: Anchor) -> tuple[Tensor, Tensor]:
    """Its two tensors."""
    return anchor.recurrent, anchor.conv


def hit_count(engine: Engine) -> int:
    """How many prompts were resumed."""
    return sum(engine.cache_facts().hits.values())
