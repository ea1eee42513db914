"""A round writes what plain decoding writes, whatever is guessed; rows are those of their path."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from decoding import read, rounds, write_on
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
from scripted import COMPILER
from tiny_checkpoints import write_tiny

from proto.chat import AnswerFormat, Call
from proto.worker_settings import Launch, WorkerSettings
from worker.draft.base import Drafter
from worker.draft.lookup import CopyRates, LookupDrafter
from worker.engine import Engine, Speculation, build_engine
from worker.grammar.forms import form_of
from worker.grammar.matcher import Matcher
from worker.kernels.attention import Prefill
from worker.loading.locate import open_checkpoint
from worker.sampling.chooser import Chooser
from worker.sampling.params import Sampling
from worker.settings import Machine
from worker.speculation.cut import Bounds
from worker.speculation.drafting import Drafting
from worker.speculation.prices import Prices
from worker.speculation.tree import DraftTree, only_root
from worker.state.slot import Slot

PROMPT = tuple(range(40, 49))
LENGTH = 500
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


def _engine(path: Path, **changes: object) -> Engine:
    settings = replace(WorkerSettings(model=str(path), weights="fp32", threads=1), **changes)
    machine = Machine("cpu", threads=1, chunk=64, lanes=1, slots=1)
    launch = Launch(settings, "tiny", str(path), "ipc:///x", "/x")
    return build_engine(launch, machine, open_checkpoint(path), masked_ids=(511,), end_ids=(2,))


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


def _speculate(engine: Engine, drafters: Sequence[Drafter], prices: Prices = ALL_FREE) -> None:
    """From here on the engine's slots are drafted by these."""
    engine._speculation = Speculation(prices, Bounds(64), lambda: drafters)
    for slot in engine._free:
        slot.drafting = Drafting(drafters, engine.facts.end_ids, lambda: 0.0)


def _open(engine: Engine, way: str) -> Slot:
    return engine.open(PROMPT, _chooser(way))


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
def test_x2_x3_every_drafter_writes_the_plain_text(engine: Engine, way: str, guesses: str):
    plain = _plain(engine, way)
    text = [*PROMPT, *plain]
    _speculate(engine, [_lookup() if guesses == "lookup" else Guessing(GUESSES[guesses](text))])
    assert _write(engine, way) == plain
    assert len(set(plain)) > 2


@pytest.mark.parametrize("step_ms", [0.0, 3.0, 30.0])
def test_what_a_table_lets_through_changes_no_token(engine: Engine, step_ms: float):
    text = [*PROMPT, *_plain(engine, "seeded")]
    for guess in (half_right(text), random_trees(text)):
        _speculate(engine, [_lookup(), Guessing(guess)], staircase(step_ms))
        assert _write(engine, "seeded") == text[len(PROMPT) :]


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
    slot = engine.open(prompt, Chooser(GREEDY, prompt))
    read(engine, slot)
    return slot


def _rows(engine: Engine, slot: Slot, tree: DraftTree) -> torch.Tensor:
    hidden, _ = engine._verify(slot, tree)
    return engine._logits(hidden)


def _alone(engine: Engine, slot: Slot, tree: DraftTree, node: int) -> torch.Tensor:
    """The last row of a whole forward of the prefix and a node's path."""
    path = [tree.tokens[at] for at in range(len(tree)) if tree.reach()[node, at]]
    ids = torch.tensor([*slot.ctx[: slot.kv_len], *path])
    cache = engine._model.new_cache(64)
    cache.reserve(len(ids))
    with torch.inference_mode():
        hidden = engine._model.forward(ids, cache, Prefill(0, len(ids)))
        return engine._model.logits(hidden[-1:])[0]


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
    rows, reach = _rows(any_engine, slot, tree), tree.reach()
    for node in range(1, len(tree), 5):
        tokens = list(tree.tokens)
        tokens[node] = 500 - tokens[node]
        moved = (_rows(any_engine, slot, replace(tree, tokens=tuple(tokens))) != rows).any(-1)
        assert moved.tolist() == reach[:, node].tolist()
    any_engine.close(slot)


@pytest.mark.parametrize("seed", range(3))
def test_x1_the_state_behind_every_path_is_that_of_plain_steps(any_engine: Engine, seed: int):
    _speculate(any_engine, ())
    slot = _prefix(any_engine, 30)
    tree = _some_tree(slot, seed, nodes=16)
    before = slot.freeze()
    for node in range(len(tree)):
        path = [at for at in range(len(tree)) if tree.reach()[node, at]]
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
    text = [*PROMPT, *_plain(any_engine, "seeded, penalties")[:200]]
    _speculate(any_engine, [_lookup(), Guessing(random_trees(text))])
    assert _write(any_engine, "seeded, penalties", 200) == text[len(PROMPT) :]


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
