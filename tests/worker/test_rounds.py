"""A round writes what plain decoding writes, whatever is guessed; rows are those of their path."""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from decoding import SALTS, begun, chosen_in, opened, read, rounds, write_on
from drafters import (
    ALL_FREE,
    Guess,
    Guessing,
    adversary,
    half_right,
    oracle,
    random_tree,
    random_trees,
    staircase,
)
from scripted import COMPILER, END, TOKENIZER, Bench, submit
from tiny_checkpoints import write_tiny
from tiny_drafter import write_drafter

from proto.chat import AnswerFormat, Call
from proto.messages import Delta
from proto.worker_settings import (
    BlockSettings,
    DraftSettings,
    Launch,
    LookupSettings,
    SpeculationSettings,
    StoreMode,
    WorkerSettings,
)
from worker.build import build_engine
from worker.draft.base import Drafter
from worker.draft.block import BlockDrafter
from worker.draft.form import FormDrafter
from worker.draft.lookup import CopyRates, LookupDrafter
from worker.draft.suffix_store import SuffixStores
from worker.engine import Engine
from worker.faults import LoadFault
from worker.grammar.forms import form_of
from worker.grammar.matcher import Matcher
from worker.kernels.attention import Prefill
from worker.loading.locate import open_checkpoint
from worker.metrics import Metrics
from worker.models.decoder import Taps
from worker.record import RunRecord
from worker.sampling.chooser import Chooser, Chosen
from worker.sampling.params import Sampling
from worker.settings import Machine
from worker.speculation.cut import Bounds
from worker.speculation.drafting import Drafting
from worker.speculation.prices import UNMEASURED, Prices, RoundPrices
from worker.speculation.speculation import Speculation
from worker.speculation.tree import DraftTree, only_root
from worker.speculation.walk import walk
from worker.state.facts import CacheFacts
from worker.state.slot import Slot

PROMPT = tuple(range(40, 49))
SHORT, LENGTH = 120, 500
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
SEEDED = Sampling(temperature=1.0, top_p=0.95, top_k=50, min_p=0.0, seed=11)
PENALIZED = replace(
    SEEDED, presence_penalty=0.3, frequency_penalty=0.2, repetition_penalty=1.2,
    logit_bias={7: 2.0, 9: -100.0},
)  # fmt: skip
WAYS = {
    "greedy": (GREEDY, False),
    "greedy, penalties": (replace(PENALIZED, temperature=0.0), False),
    "seeded": (SEEDED, False),
    "seeded, penalties": (PENALIZED, False),
    "seeded, grammar": (SEEDED, True),
    "penalties, grammar": (PENALIZED, True),
}
GUESSES = {
    "adversary": adversary,
    "half right": half_right,
    "oracle": oracle,
    "random trees": random_trees,
}
TOLERANCE = 1e-5
BYTES = TOKENIZER.token_bytes
MASKED = tuple(token for token in range(512) if token >= len(BYTES) or BYTES[token] is None)


def _engine(
    path: Path, *, stores: SuffixStores | None = None, slots: int = 1, **changes: object
) -> Engine:
    settings = replace(WorkerSettings(model=str(path), weights="fp32", threads=1), **changes)
    machine = Machine("cpu", threads=1, chunk=64, lanes=1, slots=slots)
    launch = Launch(settings, "tiny", str(path), "ipc:///x", "/x")
    return build_engine(
        launch, machine, open_checkpoint(path), masked_ids=MASKED, end_ids=(2,), stores=stores,
        clock=lambda: 0.0,  # whom a round asks shall not depend on how fast this machine is
    )  # fmt: skip


@pytest.fixture(scope="module")
def engine_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Engine]:
    made: dict[str, Engine] = {}

    def of(family: str) -> Engine:
        if family not in made:
            path = tmp_path_factory.mktemp(family)
            write_tiny(family, path)
            made[family] = _engine(path)
        return made[family]

    return of


@pytest.fixture(params=["llama", "qwen3_5"])
def engine(request: pytest.FixtureRequest, engine_of: Callable[[str], Engine]) -> Engine:
    """A dense one and a hybrid one."""
    return engine_of(request.param)


@pytest.fixture(params=["llama", "gemma3", "qwen3_5", "qwen3_next", "qwen3_5_moe"])
def any_engine(request: pytest.FixtureRequest, engine_of: Callable[[str], Engine]) -> Engine:
    return engine_of(request.param)


def _chooser(way: str) -> Chooser:
    sampling, has_grammar = WAYS[way]
    return Chooser(sampling, PROMPT, matcher=_letters_forever() if has_grammar else None)


def _letters_forever() -> Matcher:
    form = form_of(
        Call("m", (), answer_format=AnswerFormat("regex", "([a-m ]{3}[n-z])*")), "hermes"
    )
    assert form is not None
    return COMPILER.compile(form)


ALL_ROWS = Bounds(64)


def _speculate(
    engine: Engine, drafters: Sequence[Drafter], prices: Prices = ALL_FREE,
    bounds: Bounds = ALL_ROWS,
) -> None:  # fmt: skip
    """From here on the engine's slots are drafted by these."""
    engine._speculation = Speculation(prices, bounds, lambda: drafters)
    for slot in engine.kept._idle:
        slot.drafting = Drafting(drafters, engine.facts.end_ids, lambda: 0.0)


def _open(engine: Engine, way: str) -> Slot:
    return opened(engine, PROMPT, _chooser(way))


def _write(engine: Engine, way: str, count: int = LENGTH) -> list[int]:
    slot = _open(engine, way)
    try:
        return [read(engine, slot), *write_on(engine, slot, count - 1)]
    finally:
        engine.close(slot)


PLAIN: dict[tuple[int, str], list[int]] = {}


def _plain(engine: Engine, way: str) -> list[int]:
    """What plain decoding writes, found once for each engine."""
    key = id(engine), way
    if key not in PLAIN:
        _speculate(engine, ())
        PLAIN[key] = _write(engine, way)
    return PLAIN[key]


def _lookup() -> LookupDrafter:
    return LookupDrafter(CopyRates(), most_rows=64, least_match=3, least_expected=0.0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("guesses", [*GUESSES, "lookup"])
@pytest.mark.parametrize("length", [SHORT, pytest.param(LENGTH, marks=pytest.mark.long)])
def test_x2_x3_every_drafter_writes_the_plain_text(
    engine: Engine, way: str, guesses: str, length: int
):
    plain = _plain(engine, way)[:length]
    text = [*PROMPT, *plain]
    _speculate(engine, [_lookup() if guesses == "lookup" else Guessing(GUESSES[guesses](text))])
    assert _write(engine, way, length) == plain
    assert len(set(plain)) > 2


@pytest.mark.parametrize("step_ms", [0.0, 3.0, 30.0])
def test_what_a_table_lets_through_changes_no_token(engine: Engine, step_ms: float):
    text = [*PROMPT, *_plain(engine, "seeded")[:200]]
    for guess in (half_right(text), random_trees(text)):
        _speculate(engine, [_lookup(), Guessing(guess)], staircase(step_ms))
        assert _write(engine, "seeded", 200) == text[len(PROMPT) :]


def _accepted(engine: Engine, guess: Guess, count: int = 200) -> list[int]:
    """Tokens of each round."""
    _speculate(engine, [Guessing(guess)])
    slot = _open(engine, "greedy")
    read(engine, slot)
    made = [len(done.tokens) for done, _ in rounds(engine, slot, count)]
    engine.close(slot)
    return made


def test_an_oracle_is_always_right_and_an_adversary_never(engine: Engine):
    text = [*PROMPT, *_plain(engine, "greedy")]
    assert _accepted(engine, oracle(text), 200) == [8] * 25
    assert _accepted(engine, adversary(text), 200) == [1] * 200


# Rows.


def _prefix(engine: Engine, length: int) -> Slot:
    coin = random.Random(length)
    prompt = tuple(coin.randrange(500) for _ in range(length))
    slot = opened(engine, prompt, Chooser(GREEDY, prompt))
    read(engine, slot)
    return slot


def _rows(engine: Engine, slot: Slot, tree: DraftTree) -> torch.Tensor:
    hidden, _ = engine._verify(slot, tree)
    return engine._logits(hidden)


def _alone(engine: Engine, slot: Slot, tree: DraftTree, node: int) -> torch.Tensor:
    """The last row of a whole forward of the prefix and a node's path."""
    path = [tree.tokens[at] for at in _path(tree, node)]
    ids = torch.tensor([*slot.ctx[: slot.kv_len], *path])
    cache = engine._model.new_cache(64)
    cache.reserve(len(ids))
    with torch.inference_mode():
        hidden = engine._model.forward(ids, cache, Prefill(0, len(ids)))
        return engine._model.logits(hidden[-1:])[0]


def _path(tree: DraftTree, node: int) -> list[int]:
    """The nodes down to one, the root first."""
    parent = tree.parents[node]
    return [*(_path(tree, parent) if parent >= 0 else ()), node]


def _some_tree(slot: Slot, seed: int, nodes: int = 32) -> DraftTree:
    coin = random.Random(seed)
    text = [slot.ctx[-1], *(coin.randrange(500) for _ in range(40))]
    return random_tree(coin, text, nodes, 40)


@pytest.mark.parametrize("length", [1, 2, 5, 70])
@pytest.mark.parametrize("seed", range(4))
def test_x1_every_row_is_that_of_its_own_path(any_engine: Engine, length: int, seed: int):
    _speculate(any_engine, ())
    slot = _prefix(any_engine, length)
    tree = _some_tree(slot, seed, nodes=4 + 9 * seed)
    rows = _rows(any_engine, slot, tree)
    for node in range(len(tree)):
        assert (rows[node] - _alone(any_engine, slot, tree, node)).abs().max() <= TOLERANCE
    any_engine.close(slot)


@pytest.mark.parametrize("seed", range(6))
def test_b4_a_changed_node_moves_no_unrelated_row(any_engine: Engine, seed: int):
    _speculate(any_engine, ())
    slot = _prefix(any_engine, 30)
    tree = _some_tree(slot, seed)
    rows = _rows(any_engine, slot, tree)
    for node in range(1, len(tree), 5):
        tokens = list(tree.tokens)
        tokens[node] = 500 - tokens[node]
        moved = (_rows(any_engine, slot, replace(tree, tokens=tuple(tokens))) != rows).any(-1)
        assert moved.tolist() == [node in _path(tree, at) for at in range(len(tree))]
    any_engine.close(slot)


@pytest.mark.parametrize("seed", range(3))
def test_x1_the_state_behind_every_path_is_that_of_plain_steps(any_engine: Engine, seed: int):
    _speculate(any_engine, ())
    slot = _prefix(any_engine, 30)
    tree = _some_tree(slot, seed, nodes=16)
    before = slot.freeze()
    for node in range(len(tree)):
        path = _path(tree, node)
        tokens = [*(tree.tokens[at] for at in path[1:]), 77]
        slot.thaw(before)
        _rows(any_engine, slot, tree)
        any_engine._commit(slot, tree, path, tokens)
        committed = slot.freeze()
        slot.thaw(before)
        for token in tokens:
            any_engine._verify(slot, only_root(slot.ctx[-1]))
            any_engine._commit(slot, only_root(slot.ctx[-1]), (0,), (token,))
        stepped = slot.freeze()
        assert (committed.ctx, committed.kv_len) == (stepped.ctx, stepped.kv_len)
        for one, other in zip(committed.tensors, stepped.tensors, strict=True):
            assert (one - other).abs().max() <= TOLERANCE
    slot.thaw(before)
    any_engine.close(slot)


def test_a_verify_changes_nothing_of_the_state_it_started_from(engine: Engine):
    _speculate(engine, ())
    slot = _prefix(engine, 30)
    before = slot.freeze()
    _rows(engine, slot, _some_tree(slot, 1))
    assert slot.freeze() == before
    engine.close(slot)


def test_windows_and_trees_write_the_plain_text_too(any_engine: Engine):
    _speculate(any_engine, ())
    plain = _write(any_engine, "seeded, penalties", 120)
    _speculate(any_engine, [_lookup(), Guessing(random_trees([*PROMPT, *plain]))])
    assert _write(any_engine, "seeded, penalties", 120) == plain


def test_b3_no_node_stands_beyond_the_last_position(engine: Engine):
    _speculate(engine, ())
    most = engine.facts.max_len - len(PROMPT)
    text = [*PROMPT, *_write(engine, "greedy", most)]
    _speculate(engine, [Guessing(random_trees([*text, *range(60)]))])
    slot = _open(engine, "greedy")
    read(engine, slot)
    made = rounds(engine, slot, most - 1)
    assert slot.ctx == text
    assert len(slot.ctx) == engine.facts.max_len
    assert max(len(done.tree) for done, _ in made) > 16
    engine.close(slot)


def test_what_a_form_leaves_no_choice_about_is_written_in_one_round(engine: Engine):
    answer = AnswerFormat("regex", 'the only thing to say: (yes|no), and then "no more"')
    form = form_of(Call("m", (), answer_format=answer), "hermes")
    assert form is not None

    def written(drafters: Sequence[Drafter]) -> tuple[list[int], int]:
        _speculate(engine, drafters)
        slot = opened(engine, PROMPT, Chooser(SEEDED, PROMPT, matcher=COMPILER.compile(form)))
        made, count = [read(engine, slot)], 0
        while made[-1] != END:
            made += engine.round(slot, 40, lambda chosen: chosen.token != END).tokens
            count += 1
        engine.close(slot)
        return made, count

    plain, drafted = written(()), written([FormDrafter()])
    assert drafted[0] == plain[0]
    assert drafted[1] < plain[1] / 1.5
    whole = Chooser(SEEDED, PROMPT, matcher=COMPILER.compile(form))
    for room in (1, 4):
        tree = FormDrafter().propose(PROMPT, room, whole)
        assert tree is not None and tree.drafted == room
    assert FormDrafter().propose(PROMPT, 9, Chooser(SEEDED, PROMPT)) is None
    reasoning = Chooser(SEEDED, PROMPT, matcher=COMPILER.compile(form), is_free=True)
    assert FormDrafter().propose(PROMPT, 9, reasoning) is None


# What drafters hear.


def _taps_of(engine: Engine, slot: Slot, layers: tuple[int, ...]) -> torch.Tensor:
    """Of all forwarded tokens of the slot, in one forward."""
    ids = torch.tensor(slot.ctx[: slot.kv_len])
    cache, taps = engine._model.new_cache(64), Taps(layers)
    cache.reserve(len(ids))
    with torch.inference_mode():
        engine._model.forward(ids, cache, Prefill(0, len(ids)), taps)
    return taps.joined()


def test_b1_b2_a_drafter_hears_of_every_committed_token_and_of_no_other(engine: Engine):
    layers = (0, 2)
    text = [*PROMPT, *_plain(engine, "greedy")]

    def guess(ctx: Sequence[int], room: int) -> DraftTree | None:
        declines = len(ctx) % 3 == 0
        return None if declines else random_trees(text)(ctx, room)

    drafter = Guessing(guess, tapped=layers)
    _speculate(engine, [drafter])
    slot = _open(engine, "greedy")
    read(engine, slot)
    kinds: set[str] = set()
    for _ in range(40):
        kinds.add(rounds(engine, slot, 1)[0][0].kind)
        kinds |= {done.kind for done, _ in rounds(engine, slot, 5)}
        assert drafter.synced == slot.ctx
    engine.inject(slot, [7, 8, 9])
    write_on(engine, slot, 10)
    assert kinds == {"plain", "block"}
    assert drafter.synced == slot.ctx
    heard = torch.cat(drafter.taps)
    assert heard.shape == (slot.kv_len, 2 * 64)
    assert (heard - _taps_of(engine, slot, layers)).abs().max() <= TOLERANCE
    engine.close(slot)


def test_drafters_hear_of_the_first_token_before_the_first_round(engine: Engine):
    drafter = Guessing(lambda ctx, room: None)
    _speculate(engine, [drafter])
    reader = _open(engine, "greedy")
    read(engine, reader)
    assert drafter.synced == reader.ctx
    shared = engine.share(reader)
    engine.close(reader)
    taker = _open(engine, "greedy")
    engine.take_shared(taker, shared)
    assert drafter.synced == taker.ctx == [*PROMPT, taker.ctx[-1]]
    engine.close(taker)


def test_a_thawed_slot_tells_its_drafters_what_it_holds_now(engine: Engine):
    drafter = Guessing(lambda ctx, room: None)
    _speculate(engine, [drafter])
    slot = _open(engine, "greedy")
    read(engine, slot)
    frozen = slot.freeze()
    write_on(engine, slot, 5)
    slot.thaw(frozen)
    assert drafter.synced == list(frozen.ctx)
    engine.close(slot)


def test_b11_what_lies_behind_the_last_token_is_never_read(engine: Engine):
    text = [*PROMPT, *_plain(engine, "seeded")[:120]]
    _speculate(engine, [Guessing(random_trees(text))])
    slot = _open(engine, "seeded")
    read(engine, slot)
    while len(slot.ctx) < len(text):
        rounds(engine, slot, min(6, len(text) - len(slot.ctx)))
        with torch.inference_mode():
            for part in (slot.cache.kv._keys, slot.cache.kv._values):
                part[:, :, slot.kv_len :] = torch.nan
    assert slot.ctx == text
    engine.close(slot)


def test_b9_sequences_in_turn_and_drafts_of_any_length_write_what_each_writes_alone(engine: Engine):
    ways = ("seeded", "seeded, penalties", "greedy")
    texts = [[*PROMPT, *_plain(engine, way)[:90]] for way in ways]
    guesses = (oracle(texts[0], 3), half_right(texts[1], 7), random_trees(texts[2]))
    slots = []
    for way, guess in zip(ways, guesses, strict=True):
        drafting = Drafting([_lookup(), Guessing(guess)], engine.facts.end_ids, lambda: 0.0)
        slot = begun(engine._model.new_cache(64), drafting, PROMPT, _chooser(way))
        read(engine, slot)
        slots.append(slot)
    _speculate(engine, ())
    while any(len(s.ctx) < len(text) for s, text in zip(slots, texts, strict=True)):
        for slot, text in zip(slots, texts, strict=True):
            if (left := len(text) - len(slot.ctx)) > 0:
                rounds(engine, slot, min(left, 8))
    assert [slot.ctx for slot in slots] == texts


def test_x6_logprobs_of_drafted_tokens_are_those_of_plain_ones(engine: Engine):
    def chosen(drafters: Sequence[Drafter]) -> list[Chosen]:
        _speculate(engine, drafters)
        sampling = replace(PENALIZED, top_logprobs=5)
        slot = opened(engine, PROMPT, Chooser(sampling, PROMPT))
        read(engine, slot)
        made = chosen_in(engine, slot, 100)
        engine.close(slot)
        return made

    plain = chosen(())
    text = [*PROMPT, 0, *(one.token for one in plain)]
    drafted = chosen([Guessing(random_trees(text))])
    for one, other in zip(plain, drafted, strict=True):
        assert one.token == other.token
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]


def test_a_run_that_must_stop_ends_the_walk_there(engine: Engine):
    text = [*PROMPT, *_plain(engine, "greedy")]
    _speculate(engine, [Guessing(oracle(text, 20))])
    slot = _open(engine, "greedy")
    read(engine, slot)
    heard: list[int] = []

    def take(chosen: Chosen) -> bool:
        heard.append(chosen.token)
        return len(heard) < 3

    done = engine.round(slot, 99, take)
    assert (len(done.tokens), done.accepted, done.tree.drafted) == (3, 2, 20)
    assert heard == text[len(PROMPT) + 1 :][:3]
    assert slot.ctx == text[: len(PROMPT) + 4]
    assert write_on(engine, slot, 30) == text[len(PROMPT) + 4 :][:30]
    engine.close(slot)


def test_a_drafter_is_judged_by_every_round_whether_its_guess_was_verified_or_not(engine: Engine):
    text = [*PROMPT, *_plain(engine, "greedy")]
    guess = adversary(text)
    rows = {1: 10.0, 64: 73.0}  # a millisecond for each row more
    slope = Prices({256: 10.0}, {256: {"chain": rows, "tree": rows}}, {"chain": 0.0, "tree": 0.0})
    _speculate(engine, [Guessing(lambda ctx, room: guess(ctx, room))], slope)
    slot = _open(engine, "greedy")
    read(engine, slot)
    wrong = [done for done, _ in rounds(engine, slot, 40)]
    assert wrong[0].kind == "block" and {done.kind for done in wrong[-20:]} == {"plain"}
    guess = oracle(text)
    right = [done for done, _ in rounds(engine, slot, 80)]
    assert right[0].kind == "plain" and {done.kind for done in right[-5:-1]} == {"block"}
    engine.close(slot)


class Asked(Prices):
    """Prices that remember of which context and up to how many rows they were asked."""

    def at(self, length: int, most_rows: int) -> RoundPrices:
        asked.append((length, most_rows))
        return super().at(length, most_rows)


asked: list[tuple[int, int]] = []


def test_a_round_is_priced_by_the_context_that_it_reads(engine: Engine):
    text = [*PROMPT, *_plain(engine, "greedy")]
    guess = oracle(text, 5)
    rows = {1: 10.0, 64: 73.0}
    prices = Asked({256: 10.0}, {256: {"chain": rows, "tree": rows}}, {"chain": 2.0, "tree": 0.0})
    drafter = Guessing(lambda ctx, room: guess(ctx, room) if len(ctx) % 2 else None)
    _speculate(engine, [drafter], prices, Bounds(4))
    slot = _open(engine, "greedy")
    read(engine, slot)
    asked.clear()
    lengths, priced = [slot.kv_len], []
    for done, _ in rounds(engine, slot, 12):
        lengths.append(lengths[-1] + len(done.tokens))
        priced.append((len(done.tree), done.price_ms))
    assert asked == [(length, 4) for length in lengths[:-1]]
    assert {(1, 10.0), (4, 15.0)} <= set(priced)
    assert all(ms == (11.0 + rows if rows > 1 else 10.0) for rows, ms in priced)
    engine.close(slot)


def test_each_part_of_a_round_has_a_time_of_its_own(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    _speculate(engine, [Guessing(oracle([*PROMPT, *_plain(engine, "greedy")]))])
    slot = _open(engine, "greedy")
    read(engine, slot)
    monkeypatch.setattr(engine, "_clock", itertools.count().__next__)  # a second later each time
    ((done, _),) = rounds(engine, slot, 8)
    assert (done.draft_ms, done.verify_ms, done.walk_ms, done.commit_ms) == (1000.0,) * 4
    engine.close(slot)


def test_b47_a_round_without_a_proposal_counts_as_plain(engine: Engine):
    record, metrics = RunRecord("r", 0.0), Metrics()
    text = [*PROMPT, *_plain(engine, "greedy")]
    drafters = [Guessing(lambda ctx, room: oracle(text, 3)(ctx, room) if len(ctx) % 2 else None)]
    _speculate(engine, drafters)
    slot = _open(engine, "greedy")
    read(engine, slot)
    near_ties = 0
    for done, some in rounds(engine, slot, 41):
        record.saw_round(done)
        metrics.saw_round(done, 0.001)
        near_ties += sum(chosen.is_near_tie for chosen in some)
    engine.close(slot)
    said = record.speculation()
    assert said.plain and said.rounds > said.plain
    assert said.draft_tokens == 3 * (said.rounds - said.plain)
    assert said.draft_accepted == said.draft_tokens
    assert said.rounds + said.draft_accepted == 41
    counted = {(m.name, *m.labels.values()): m.value for m in metrics.samples({}, CacheFacts())}
    assert counted["tandem_worker_rounds_total", "plain", "chain"] == said.plain
    assert counted["tandem_worker_rounds_total", "block", "chain"] == said.rounds - said.plain
    assert counted["tandem_worker_draft_tokens_total", "block"] == said.draft_tokens
    assert counted["tandem_worker_draft_accepted_total", "block"] == said.draft_accepted
    assert counted["tandem_worker_near_tie_rows_total",] == near_ties > 0


# Sampling.


def test_x7_what_a_sampled_walk_writes_is_drawn_as_the_target_says():
    coin = np.random.default_rng(5)
    table = coin.normal(0.0, 1.2, (17, 16)).astype(
        np.float32
    )  # logits behind each token, and first
    first, second = np.zeros(16), np.zeros((16, 16))
    nothing = np.empty(0, dtype=np.int64)
    for seed in range(20_000):
        draws = random.Random(seed)
        tree = random_tree(draws, [16, *(draws.randrange(16) for _ in range(4))], 12, 3, vocab=16)
        chooser = Chooser(replace(SEEDED, temperature=1.0, top_p=1.0, top_k=0, seed=seed), ())

        def choose(node: int, tree: DraftTree = tree, chooser: Chooser = chooser) -> Chosen:
            return chooser.choose(table[tree.tokens[node]].copy(), nothing)

        _, made = walk(tree, choose, lambda _: True)
        tokens = tuple(chosen.token for chosen in made)
        if len(tokens) == 1:
            tokens = (*tokens, chooser.choose(table[tokens[0]].copy(), nothing).token)
        first[tokens[0]] += 1
        second[tokens[0], tokens[1]] += 1
    assert _deviation(first, _softmax(table[16]) * first.sum()) < 4.0
    expected = np.stack([_softmax(table[token]) * first[token] for token in range(16)])
    assert _deviation(second, expected, fixed=16) < 4.0


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64))
    return weights / weights.sum()


def _deviation(found: np.ndarray, expected: np.ndarray, fixed: int = 1) -> float:
    """Chi-square as standard deviations from its mean (Fisher's approximation)."""
    chi = ((found - expected) ** 2 / expected).sum()
    freedom = found.size - fixed
    return float(np.sqrt(2 * chi) - np.sqrt(2 * freedom - 1))


# What is kept of a sequence for others.


class Shelves:
    """Remembers what was added, by salt."""

    def __init__(self) -> None:
        self.added: list[tuple[str, list[int]]] = []

    def of(self, salt: str) -> "Shelves":
        self.salt = salt
        return self

    def add(self, ids: Sequence[int]) -> None:
        self.added.append((self.salt, list(ids)))


def test_a_thawed_slot_belongs_to_whom_it_was_frozen_for(engine: Engine):
    shelves, drafter = Shelves(), Guessing(lambda ctx, room: None)
    stores = cast("SuffixStores", shelves)
    engine._speculation = Speculation(ALL_FREE, Bounds(64), lambda: (), stores=stores)
    engine.kept._idle[0].drafting = Drafting([drafter], engine.facts.end_ids, lambda: 0.0)
    slot = opened(engine, PROMPT, _chooser("greedy"), salt="mine")
    read(engine, slot)
    frozen = slot.freeze()
    engine.close(slot)
    slot = opened(engine, (7,), _chooser("greedy"), salt="yours")
    read(engine, slot)
    assert slot.freeze() != frozen
    slot.thaw(frozen)
    assert slot.freeze() == frozen
    assert (drafter.salt, drafter.synced) == ("mine", list(frozen.ctx))
    write_on(engine, slot, 4)
    engine.close(slot)
    assert shelves.added[-1] == ("mine", slot.ctx[len(PROMPT) :])


@pytest.mark.parametrize("are_prompts_kept", [False, True])
def test_what_was_written_is_kept_for_its_salt_alone(engine: Engine, are_prompts_kept: bool):
    shelves = Shelves()
    engine._speculation = Speculation(
        ALL_FREE,
        Bounds(64),
        lambda: (),
        stores=cast("SuffixStores", shelves),
        are_prompts_kept=are_prompts_kept,
    )
    for salt, is_side in (("mine", False), (None, False), ("mine", True)):
        slot = opened(engine, PROMPT, _chooser("greedy"), salt=salt, is_side=is_side)
        read(engine, slot)
        write_on(engine, slot, 4)
        written = slot.ctx if are_prompts_kept else slot.ctx[len(PROMPT) :]
        engine.close(slot)
    assert shelves.added == [("mine", written)]


# The block drafter, as the settings name it.


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def drafted_engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Engine:
    path = tmp_path_factory.mktemp(request.param)
    write_tiny(request.param, path)
    write_drafter(path / "drafter")
    lookup = LookupSettings(enabled=False)
    draft = DraftSettings(lookup, BlockSettings(str(path / "drafter")))
    return _engine(path, draft=draft)


@pytest.mark.parametrize("way", ["greedy", "seeded, penalties", "seeded, grammar"])
@pytest.mark.parametrize("length", [SHORT, pytest.param(LENGTH, marks=pytest.mark.long)])
def test_x2_a_block_drafter_changes_no_token(drafted_engine: Engine, way: str, length: int):
    drafted_engine.use_prices(ALL_FREE)
    slot = _open(drafted_engine, way)
    written = [read(drafted_engine, slot)]
    made = rounds(drafted_engine, slot, length - 1)
    written += [token for done, _ in made for token in done.tokens]
    drafted_engine.close(slot)
    drafted_engine.use_prices(UNMEASURED)
    assert _write(drafted_engine, way, length) == written
    assert "block" in {done.kind for done, _ in made}
    # Of a random drafter's guesses a grammar leaves hardly any.
    assert (max(len(done.tree) for done, _ in made) == 64) == ("grammar" not in way)


def test_a_slot_with_a_block_drafter_is_thawed_to_the_same_guesses(drafted_engine: Engine):
    drafted_engine.use_prices(ALL_FREE)
    slot = _open(drafted_engine, "greedy")
    read(drafted_engine, slot)
    write_on(drafted_engine, slot, 20)
    frozen = slot.freeze()
    slot.drafting._odds.clear()  # what a slot has learned of its drafters is not kept
    first = [done.tree for done, _ in rounds(drafted_engine, slot, 20)]
    slot.thaw(frozen)
    assert slot.freeze() == frozen
    assert [done.tree.tokens for done, _ in rounds(drafted_engine, slot, 20)] == [
        tree.tokens for tree in first
    ]
    slot.thaw(frozen)
    block = slot.drafting._drafters[-1]
    block.rewind(len(PROMPT))
    assert slot.freeze() != frozen  # though nothing else of it has changed
    drafted_engine.close(slot)


def test_a_short_request_beside_the_others_is_not_drafted(drafted_engine: Engine):
    drafted_engine.use_prices(ALL_FREE)
    slot = opened(drafted_engine, PROMPT, _chooser("greedy"), is_side=True)
    read(drafted_engine, slot)
    assert {done.kind for done, _ in rounds(drafted_engine, slot, 12)} == {"plain"}
    drafted_engine.close(slot)


def test_what_is_timed_forwards_what_a_slot_forwards(drafted_engine: Engine):
    slot = drafted_engine.kept._idle[0]
    (timed, *_) = drafted_engine.trials(64).args
    assert timed.drafting.tapped == slot.drafting.tapped != ()


def test_what_a_block_drafter_holds_counts_in_what_slots_may_take(drafted_engine: Engine):
    plain = drafted_engine._model.cache_bytes(512 + 64)
    held = 2 * 2 * 2 * 24 * 4 * (512 + 64)  # layers, keys and values, heads, size, bytes
    assert drafted_engine.kv_bytes_free == plain + held


@pytest.mark.parametrize("store", ["readonly", "outputs", "all"])
def test_drafters_are_those_of_the_settings(tmp_path: Path, store: StoreMode):
    write_tiny("llama", tmp_path)
    write_drafter(tmp_path / "drafter")
    lookup = LookupSettings(min_match=4, min_expected=0.7, store=store)
    draft = DraftSettings(lookup, BlockSettings(str(tmp_path / "drafter")))
    stores = cast("SuffixStores", Shelves())
    engine = _engine(
        tmp_path, stores=stores, slots=2, draft=draft, speculation=SpeculationSettings(max_rows=5)
    )
    assert engine._speculation.stores is stores
    assert engine._speculation.are_prompts_kept == (store == "all")
    (form, copy, block), (_, other_copy, other_block) = (
        engine._speculation.new_drafters() for _ in range(2)
    )
    assert isinstance(form, FormDrafter)
    assert isinstance(copy, LookupDrafter) and isinstance(other_copy, LookupDrafter)
    assert isinstance(block, BlockDrafter) and isinstance(other_block, BlockDrafter)
    assert (copy._most_rows, copy._least_match, copy._least_expected) == (5, 4, 0.7)
    assert (copy._stores, block._budget) == (stores, 4)
    assert copy._rates is other_copy._rates and copy._index is not other_copy._index
    assert block._model is other_block._model and block._cache is not other_block._cache
    one, other = (set(map(id, slot.drafting._drafters)) for slot in engine.kept._idle)
    assert not one & other


def test_without_speculation_nothing_is_loaded_and_nobody_guesses(tmp_path: Path):
    write_tiny("llama", tmp_path)
    draft = DraftSettings(block=BlockSettings(str(tmp_path / "nowhere")))
    off = _engine(tmp_path, draft=draft, speculation=SpeculationSettings(enabled=False))
    assert not off.is_drafting
    no_copies = _engine(tmp_path, draft=DraftSettings(LookupSettings(enabled=False)))
    assert [type(drafter) for drafter in no_copies._speculation.new_drafters()] == [FormDrafter]


def test_a_drafter_of_another_model_is_refused_at_start(tmp_path: Path):
    write_tiny("llama", tmp_path)
    write_drafter(tmp_path / "drafter", num_target_layers=7)
    draft = DraftSettings(block=BlockSettings(str(tmp_path / "drafter")))
    with pytest.raises(LoadFault, match="7"):
        _engine(tmp_path, draft=draft)


# The whole way of a run.

QUESTION = "hello"


def _answer(
    engine: Engine, drafters: Sequence[Drafter], *, prompt: str = QUESTION, **params: object
) -> tuple[object, ...]:
    """What a client hears of a run: text, ids, how it ended, its usage."""
    _speculate(engine, drafters)
    bench = Bench(engine=engine, max_len=512)
    bench.hello()
    wanted = {"max_tokens": 400, "logit_bias": {str(END): -100.0}, **params}
    salt = next(SALTS)  # so that the prompt is read from its first token
    bench.say(submit(prompt=prompt, params=wanted, credit=10_000, cache_salt=salt))
    done = bench.turn_until_done("r1", limit=2000)
    deltas = bench.messages(Delta)
    assert bench.numbers("r1") == list(range(1, done.last_token + 1))
    ids = [token for delta in deltas for token in delta.ids]
    return bench.text("r1"), ids, done.finish, done.detail, done.usage


RUNS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0},
    "penalties": {"temperature": 1.0, "frequency_penalty": 0.3, "repetition_penalty": 1.1},
}


@pytest.mark.parametrize("run", RUNS)
def test_a_run_with_stop_strings_ends_at_the_same_token_whatever_is_guessed(
    engine: Engine, run: str
):
    text, ids, finish, detail, _ = plain = _answer(engine, (), **RUNS[run])
    assert (finish, detail) == ("length", "max_tokens")
    whole = [*TOKENIZER.encode(QUESTION), *ids]
    drafters = [_lookup(), Guessing(random_trees(whole))]
    assert _answer(engine, drafters, **RUNS[run]) == plain
    for first in (20, 90, 200):
        stops = ("never", str(text)[first : first + 5])
        stopped = _answer(engine, (), stop=stops, **RUNS[run])
        assert stopped[2:4] == ("stop", "stop_string")
        assert _answer(engine, drafters, stop=stops, **RUNS[run]) == stopped


def test_b3_a_run_ends_where_the_context_is_full_whatever_is_guessed(engine: Engine):
    prompt = "hello " * 75
    _, ids, finish, detail, _ = plain = _answer(engine, (), prompt=prompt, temperature=0.0)
    assert (finish, detail) == ("length", "context")
    whole = [*TOKENIZER.encode(prompt), *ids]
    assert len(whole) == 512
    drafters = [Guessing(random_trees([*whole, *range(64)]))]
    assert _answer(engine, drafters, prompt=prompt, temperature=0.0) == plain
