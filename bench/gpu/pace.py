"""G5: rounds whose guesses come true as often as they are told to. Knows no right or wrong."""

from statistics import mean, median

import torch

from bench.gpu.engines import GREEDY, Following, engine_of, read
from bench.gpu.guesses import Guess, Scripted, Steady
from bench.gpu.models import random_ids
from bench.gpu.notes import Notes, Stage
from bench.gpu.speed import nine_b_model
from bench.gpu.timing import settled_clock
from worker.speculation.round import MS, Round

TOKENS_A_ROUND = 4.58
TURNS, TINY_TURNS = 5, 2  # of each way, one after the other
ROUNDS, TINY_ROUNDS = 25, 10  # of each turn
DROPPED = 1  # turns, in which libraries choose their kernels
PROMPT, TINY_PROMPT = 1024, 32
CHUNK = 1024
PLAIN = "plain"


def run(stage: Stage, notes: Notes) -> None:
    """Tokens a round and milliseconds a round apart, and what they make of a plain step."""
    model, _ = nine_b_model(stage, notes)
    turns, rounds = (TINY_TURNS, TINY_ROUNDS) if stage.is_tiny else (TURNS, ROUNDS)
    length = TINY_PROMPT if stage.is_tiny else PROMPT
    # Whatever the model would choose, the same text is written; the choice is made all the same.
    room = 4 * (DROPPED + turns) * rounds * int(TOKENS_A_ROUND + 1)
    ids = random_ids(length + room, model.config.vocab_size - 3, torch.device("cpu")).tolist()
    ways: dict[str, Guess | None] = {
        PLAIN: None,
        "chain of 8 rows": Steady(ids, TOKENS_A_ROUND, rows=8),
        "chain of 16 rows": Steady(ids, TOKENS_A_ROUND, rows=16),
        "tree of 16 rows": Steady(ids, TOKENS_A_ROUND, rows=16, is_forked=True),
    }
    drafter, clock = Scripted(), settled_clock(stage)
    engine = engine_of(model, [drafter], stage, chunk=CHUNK)
    slot = read(engine, ids[:length], Following(GREEDY, ids[:length], ids[length:]))
    times_ms: dict[str, list[float]] = {way: [] for way in ways}
    made: dict[str, list[Round]] = {way: [] for way in ways}
    for turn in range(DROPPED + turns):
        for way, guess in ways.items():
            drafter.guess = guess
            for _ in range(rounds):
                began_s = clock()
                done = engine.round(slot, room, lambda _: True)
                ms = (clock() - began_s) * MS
                if turn >= DROPPED:
                    times_ms[way].append(ms)
                    made[way].append(done)
    notes.number("contexts", [length, slot.kv_len])
    _tell(times_ms, made, notes)


def _tell(times_ms: dict[str, list[float]], made: dict[str, list[Round]], notes: Notes) -> None:
    plain_ms = median(times_ms[PLAIN])
    notes.remark(f"a plain step {plain_ms:.2f} ms")
    for way, rounds in made.items():
        tokens, ms = mean(len(one.tokens) for one in rounds), median(times_ms[way])
        numbers = {
            "rows": max(len(one.tree) for one in rounds),
            "tokens_a_round": tokens,
            "ms_a_round": ms,
            "plain_steps_a_round": ms / plain_ms,
            "times_plain": tokens * plain_ms / ms,
            "draft_ms": median(one.draft_ms for one in rounds),
            "verify_ms": median(one.verify_ms for one in rounds),
            "walk_ms": median(one.walk_ms for one in rounds),
            "commit_ms": median(one.commit_ms for one in rounds),
        }
        notes.number(way, numbers)
        if way != PLAIN:
            notes.remark(
                f"{way}: {tokens:.2f} tokens a round, {ms:.2f} ms a round, which is "
                f"{ms / plain_ms:.2f} plain steps: {numbers['times_plain']:.2f} times plain"
            )
