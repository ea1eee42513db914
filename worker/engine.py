"""The model, its slots and the choice of the next tokens: one round of one sequence.

Knows no client, no queue and no text; the loop says which sequence goes on.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from proto.messages import Metric
from worker import prefill
from worker.draft.base import Drafter
from worker.embedding.embedder import Embedder
from worker.faults import StartFault
from worker.kernels.attention import Prefill, Rows, Step
from worker.kernels.tree import tree_rows
from worker.loading.pooling import Pooling
from worker.memory_gate import MemoryGate, Reclaimer, Verdict
from worker.models.config import SamplingDefaults
from worker.models.decoder import Decoder, Taps
from worker.sampling.chooser import Chooser, Chosen
from worker.sampling.params import Sampling
from worker.settings import Machine
from worker.speculation.calibration import Trial
from worker.speculation.cut import cut
from worker.speculation.drafting import Drafting
from worker.speculation.prices import Prices, RoundPrices
from worker.speculation.round import Round, Stopwatch
from worker.speculation.speculation import Speculation
from worker.speculation.tree import DraftTree, only_root
from worker.speculation.walk import Take, walk
from worker.state.anchors import Anchors
from worker.state.ask import Ask
from worker.state.facts import CacheFacts
from worker.state.keeping import Keeping
from worker.state.kept import Kept
from worker.state.room import Sizes
from worker.state.shared_prompt import SharedPrompt
from worker.state.slot import FrozenSlot, Slot
from worker.workspace import Workspace, check

MakeGate = Callable[[Sequence[Reclaimer]], MemoryGate]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What others may know of the model. `attention`: its kernel. `max_len`, `chunk`: in tokens."""

    family: str
    layout: str
    device: str
    attention: str
    max_len: int
    chunk: int
    slots: int
    lanes: int
    end_ids: frozenset[int]
    defaults: SamplingDefaults


class Engine:
    """Owns every tensor. All its methods are called by one thread."""

    def __init__(
        self,
        model: Decoder,
        masked_ids: Sequence[int],
        machine: Machine,
        facts: EngineFacts,
        speculation: Speculation,
        keeping: Keeping,
        clock: Callable[[], float],
    ) -> None:
        self.facts = facts
        self._model = model
        self._masked = np.asarray(masked_ids, dtype=np.int64)
        self._chunk = machine.chunk
        self._speculation = speculation
        self._clock = clock
        # The rows of a verify lie behind the sequence until a path of them is committed.
        most = facts.max_len + speculation.bounds.most_rows
        self._slot_bytes = self.cache_bytes(most)
        self._anchor_share = keeping.anchor_bytes // (machine.slots + 1), keeping.anchor_tail
        self._gate: MemoryGate | None = None
        self._idle_work_bytes = 0
        self.kept = Kept(
            lambda is_drafted: self._new_slot(
                self._speculation.new_drafters() if is_drafted else ()
            ),
            slots=machine.slots,
            keeping=keeping,
            sizes=Sizes(
                self.cache_bytes,
                state=model.state_bytes,
                rows=speculation.bounds.most_rows,
                chunk=self._chunk,
            ),
        )

    @property
    def free_slots(self) -> int:
        """Slots that no run holds."""
        return self.kept.free_slots

    @property
    def kv_bytes_free(self) -> int:
        """Cache that free slots may still take, in bytes."""
        return self.free_slots * self._slot_bytes

    def check(self) -> None:
        """Writes one greedy token, so that a model that cannot run is found at start.

        Raises: StartFault.
        """
        greedy = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
        slot = self.open(Ask((0, 1), Chooser(greedy, (0, 1))))
        try:
            self.read_chunk(slot, 1)
            self.read_chunk(slot, 2)
            self.round(slot, 1, lambda _: True)
        except (RuntimeError, ValueError, IndexError) as fault:
            raise StartFault(f"The model cannot write a token: {fault}.") from fault
        self.close(slot)

    def embedder(self, pooling: Pooling) -> Embedder:
        """What reads texts into vectors, beside the slots and never in one of them."""
        return Embedder(self._model, pooling, self._chunk)

    @property
    def is_drafting(self) -> bool:
        """Whether anybody guesses, so that prices matter."""
        return any(self._speculation.new_drafters())

    def use_prices(self, prices: Prices) -> None:
        """Plans rounds by these from now on."""
        self._speculation = replace(self._speculation, prices=prices)

    def cache_bytes(self, length: int) -> int:
        """Bytes that a slot of `length` tokens takes."""
        return self._model.cache_bytes(length) + self._speculation.drafter_bytes(length)

    def trials(self, length: int) -> Trial:
        """What times verify and commit in a slot that no run ever holds.

        The slot has room for `length` tokens and takes `cache_bytes(length)` until the result is
        let go. How long its sequence is gets declared; what it holds costs nothing.
        """
        return partial(self._try, self._new_slot(self._speculation.new_drafters(), step=length))

    def open(self, ask: Ask) -> Slot:
        """Takes a slot for a prompt; what of it is kept somewhere need not be forwarded."""
        return self.kept.open(ask, self._plan(ask.prompt, ask.cuts))

    def use_gate(
        self, make: MakeGate, has_host_room: Callable[[int], bool] | None = None, *,
        side_tokens: int = 0,
    ) -> None:  # fmt: skip
        """From now on memory is asked for before it is taken. `side_tokens`: for which the lane of
        short requests has room for ever, since it asks nobody.

        `make`: a gate to which these can give back; made when all is held that is held for ever.
        `has_host_room`: for copies of states, where they are not in the device's memory.
        """
        self.kept.reserve_side(min(side_tokens, self.facts.max_len))
        workspace = check(
            Workspace(
                self._model.config,
                self._model.dtype,
                self._chunk,
                self._speculation.bounds.most_rows,
                tapped=sum(len(drafter.tapped) for drafter in self._speculation.new_drafters()),
            ),
            self._model,
        )

        def work_bytes(length: int) -> int:
            return workspace.chunk_bytes(length) + workspace.verify_bytes(length)

        self._gate = gate = make(self.kept.shelves(is_host=has_host_room is None))
        self._idle_work_bytes = work_bytes(self.facts.max_len)
        self.kept.room.use_gate(gate, work_bytes, has_host_room)

    def has_room(self, size_bytes: int) -> bool:
        """Whether work that nobody waits for may take so much; nothing is given back for it."""
        return self._gate is None or self._gate.has_room(size_bytes + self._idle_work_bytes)

    def memory_samples(self) -> Iterable[Metric]:
        """What the memory gate has counted."""
        return () if self._gate is None else self._gate.samples()

    def room_for(self, ask: Ask) -> Verdict:
        """Whether there is memory for a prompt. To be asked before `open`."""
        return self.kept.room_for(ask, self._plan(ask.prompt, ask.cuts))

    def grow(self, slot: Slot) -> bool:
        """Makes sure that a round has room for its rows; false where memory is short."""
        return self.kept.room.grow(slot, slot.kv_len + self._speculation.bounds.most_rows)

    def close(self, slot: Slot, *, is_sound: bool = True) -> None:
        """Gives the slot back; what was written may be used by later sequences of its salt.

        `is_sound`: false where a step has failed, so that its state may be any.
        """
        if is_sound and slot.has_run and slot.drafting.is_any:
            self._speculation.keep(slot)
        self.kept.close(slot, is_sound=is_sound)

    def set_aside(self, slot: Slot) -> FrozenSlot | None:
        """Frees the slot of a run that waits for its client; None where there is no room."""
        return self.kept.set_aside(slot)

    def take_back(self, frozen: FrozenSlot, chooser: Chooser) -> Slot | None:
        """A free slot takes up what was set aside; None while memory is short."""
        return self.kept.take_back(frozen, chooser)

    def drop_aside(self, frozen: FrozenSlot) -> None:
        """Forgets what was set aside: its run is over."""
        self.kept.drop_aside(frozen)

    def open_ahead(self, prompt: tuple[int, ...], cuts: tuple[int, ...], salt: str) -> Slot | None:
        """The slot in which a conversation's next prompt is to be read ahead, if there is one."""
        return self.kept.open_ahead(prompt, self._plan(prompt, cuts), salt)

    def file_away(self) -> bool:
        """Writes a little of what is kept to disk, where that is wanted; whether there was any."""
        return self.kept.file_away()

    def cache_facts(self) -> CacheFacts:
        """What is kept of earlier sequences, in numbers."""
        return self.kept.facts()

    def clear_kept(self, kinds: frozenset[str]) -> int:
        """See `Kept.clear`."""
        return self.kept.clear(kinds)

    def stop(self) -> None:
        """Writes what is kept on disk and is not there yet."""
        self.kept.stop()
        if self._speculation.stores is not None:
            self._speculation.stores.close()

    def read_chunk(self, slot: Slot, end: int) -> Chosen | None:
        """Forwards the prompt up to `end`; at the prompt's end chooses the first token."""
        hidden, taps = self._read(slot, end)
        chosen = None
        if end == len(slot.ctx):
            slot.prompt_row = hidden[-1:].clone()
            chosen = self._choose(slot, hidden)
        slot.drafting.sync(slot.ctx, taps)
        self.kept.saw_chunk(slot)
        return chosen

    def read_ahead(self, slot: Slot) -> bool:
        """Forwards one chunk of a prompt that nobody waits for; whether it was the last."""
        _, taps = self._read(slot, slot.plan.chunk_end(slot.kv_len, len(slot.ctx)))
        slot.drafting.sync(slot.ctx, taps)
        return slot.kv_len == len(slot.ctx)

    def _read(self, slot: Slot, end: int) -> tuple[Tensor, Tensor | None]:
        start = slot.kv_len
        made = self._forward(slot, slot.ctx[start:end], Prefill(start, end - start))
        slot.commit_chunk(end)
        return made

    def _plan(self, prompt: tuple[int, ...], cuts: tuple[int, ...]) -> prefill.Plan:
        return prefill.plan(len(prompt), self.facts.family, self._chunk, cuts)

    def share(self, slot: Slot) -> SharedPrompt:
        """What others need to start behind the same prompt; right after its first token."""
        assert slot.prompt_row is not None, "the prompt must have been read"
        kept = slot.cache.freeze(slot.kv_len), slot.drafting.freeze()
        return SharedPrompt(slot.plan, slot.lineage, *kept, slot.prompt_row)

    def take_shared(self, slot: Slot, shared: SharedPrompt) -> Chosen:
        """Starts behind a prompt that another slot has read: chooses the first token."""
        slot.cache.thaw(shared.tensors)
        slot.commit_shared(shared.plan, shared.lineage)
        chosen = self._choose(slot, shared.row)
        slot.drafting.thaw(slot.ctx, shared.drafts)
        return chosen

    def round(self, slot: Slot, room: int, take: Take) -> Round:
        """Draft, merge, cut, verify, walk, commit: at least one token and at most `room`.

        `take` hears of each token as it is chosen and says whether the run may go on behind it.
        """
        watch = Stopwatch(self._clock)
        prices, bounds = self._prices(slot), self._speculation.bounds
        drafts = slot.drafting.propose(slot.ctx, room - 1, slot.chooser, prices, bounds)
        best = cut(slot.drafting.candidates(drafts), prices, bounds)
        tree = only_root(slot.ctx[-1]) if best is None else best.tree
        draft_ms = watch.lap_ms()
        hidden, taps = self._verify(slot, tree)
        logits = self._logits(hidden)
        verify_ms = watch.lap_ms()
        path, made = walk(tree, lambda node: self._choose_row(slot, logits[node]), take)
        tokens = tuple(chosen.token for chosen in made)
        walk_ms = watch.lap_ms()
        self._commit(slot, tree, path, tokens)
        slot.drafting.learn(drafts, tokens)
        slot.drafting.sync(slot.ctx, None if taps is None else taps[list(path)])
        price_ms = prices.plain if best is None else best.price_ms
        near_ties = sum(chosen.is_near_tie for chosen in made)
        times = draft_ms, verify_ms, walk_ms, watch.lap_ms(), price_ms
        return Round(tree, path, tokens, *times, near_ties)

    def inject(self, slot: Slot, ids: Sequence[int]) -> None:
        """Puts tokens behind the last one that nobody chose; the last of them is the new root."""
        slot.ctx += ids
        slot.chooser.skip(len(ids))
        self._catch_up(slot)

    def rewind(self, slot: Slot, length: int, ids: Sequence[int]) -> None:
        """Forgets all but the first `length` tokens, and puts others behind them.

        At the prompt's end, with none put in, its last tokens are to be read again.
        """
        slot.rewind(length)
        if ids:
            self.inject(slot, ids)
        elif length > slot.prompt_length:
            self._catch_up(slot)

    def _catch_up(self, slot: Slot) -> None:
        """Forwards all but the last token."""
        while (count := min(len(slot.ctx) - 1 - slot.kv_len, self._chunk)) > 0:
            ids = slot.ctx[slot.kv_len : slot.kv_len + count]
            _, taps = self._forward(slot, ids, Prefill(slot.kv_len, count))
            slot.commit_forward(count)
            slot.drafting.sync(slot.ctx[: slot.kv_len + 1], taps)

    def _try(
        self, slot: Slot, start: int, tree: DraftTree, path: Sequence[int]
    ) -> tuple[float, float]:
        slot.cache.clear()
        slot.ctx, slot.kv_len = [0] * (start + 1), start
        watch = Stopwatch(self._clock)
        hidden, _ = self._verify(slot, tree)
        self._logits(hidden)
        verify_ms = watch.lap_ms()
        self._commit(slot, tree, path, [0] * len(path))
        return verify_ms, watch.lap_ms()

    # The steps of a round.

    def _prices(self, slot: Slot) -> RoundPrices:
        speculation = self._speculation
        return speculation.prices.at(slot.kv_len, speculation.bounds.most_rows)

    def _verify(self, slot: Slot, tree: DraftTree) -> tuple[Tensor, Tensor | None]:
        """The rows of all nodes, each as if its own path had been written."""
        if not tree.drafted:
            return self._forward(slot, tree.tokens, Step(slot.kv_len))
        start, conv_width = slot.kv_len, self._model.conv_width
        rows = tree_rows(tree.parents, start=start, conv_width=conv_width).to(self._model.device)
        return self._forward(slot, tree.tokens, rows)

    def _commit(
        self, slot: Slot, tree: DraftTree, path: Sequence[int], tokens: Sequence[int]
    ) -> None:
        """Keeps the rows of the path; reads no weights. A plain step has nothing to choose."""
        if tree.drafted:
            slot.cache.commit(slot.kv_len, path)
        slot.commit_round(len(path), tokens)

    @torch.inference_mode()
    def _forward(self, slot: Slot, ids: Sequence[int], rows: Rows) -> tuple[Tensor, Tensor | None]:
        """The rows' outputs (rows, hidden), and what drafters read of them."""
        slot.cache.reserve(rows.start + rows.count)
        tapped = slot.drafting.tapped
        taps = Taps(tapped) if tapped else None
        device_ids = torch.tensor(ids, device=self._model.device)
        hidden = self._model.forward(device_ids, slot.cache, rows, taps)
        return hidden, None if taps is None else taps.joined()

    def _choose(self, slot: Slot, hidden: Tensor) -> Chosen:
        chosen = self._choose_row(slot, self._logits(hidden[-1:])[0])
        slot.commit_choice(chosen.token)
        return chosen

    @torch.inference_mode()
    def _logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)  # (rows, vocab)

    def _choose_row(self, slot: Slot, logits: Tensor) -> Chosen:
        return slot.chooser.choose(logits.cpu().numpy(), self._masked)

    def _new_slot(self, drafters: Sequence[Drafter], step: int = 0) -> Slot:
        drafting = Drafting(drafters, self.facts.end_ids, self._clock)
        cache, (share_bytes, tail) = self._model.new_cache(step or self._chunk), self._anchor_share
        anchor_bytes = 1 if cache.delta is None else cache.delta.size_bytes
        return Slot(cache, drafting, Anchors(most=share_bytes // anchor_bytes, tail=tail))

    def is_row_invariant(self) -> bool:
        """Whether a row's result is bit-equal whatever rows stand beside it (linears only)."""
        return self._model.is_row_invariant()
