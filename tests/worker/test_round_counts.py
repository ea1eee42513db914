"""What is counted of decode rounds, in the record of a run and in the numbers of the worker."""

from typing import Any

import pytest

from worker.metrics import Metrics
from worker.record import RunRecord
from worker.speculation.round import Round
from worker.speculation.tree import DraftTree, Source, only_root
from worker.state.facts import CacheFacts

NOBODY, COPY, GUESS = Source(0), Source.LOOKUP, Source.BLOCK
#      1
#     / \
#    2   4      2 and 3 were copied, 4 was guessed, 5 is of both
#    |   |
#    3   5
FORK = DraftTree((1, 2, 3, 4, 5), (-1, 0, 1, 0, 3), (1.0,) * 5,
                 (NOBODY, COPY, COPY, GUESS, COPY | GUESS))  # fmt: skip
CHAIN = DraftTree((1, 2, 3), (-1, 0, 1), (1.0,) * 3, (NOBODY, COPY, COPY))
ROUNDS = (
    # draft 0.5, verify 20, walk 3, commit 6 ms, and a price of 20
    Round(FORK, (0, 3, 4), (4, 5, 9), 0.5, 20.0, 3.0, 6.0, 20.0),  # whole path: nothing missed
    Round(FORK, (0, 3), (4, 9), 0.5, 20.0, 3.0, 6.0, 20.0),  # missed behind 1
    Round(CHAIN, (0, 1), (2, 9), 0.5, 20.0, 3.0, 6.0, 20.0),  # missed behind 1
    Round(CHAIN, (0,), (9,), 0.5, 20.0, 3.0, 6.0, 20.0),  # missed at once
    Round(only_root(1), (0,), (9,), 0.5, 20.0, 3.0, 6.0, 20.0),
)


@pytest.fixture
def counted() -> dict[tuple[str, ...], Any]:
    """Values by name and labels, without what begins every name."""
    metrics = Metrics()
    for made in ROUNDS:
        metrics.saw_round(made, 0.03)
    samples = metrics.samples({}, CacheFacts())
    return {(m.name.removeprefix("tandem_worker_"), *m.labels.values()): m.value for m in samples}


def test_a_run_knows_its_rounds_and_where_guesses_went_wrong():
    record = RunRecord("r", 0.0)
    for made in ROUNDS:
        record.saw_round(made)
    told = record.speculation()
    assert (told.rounds, told.plain) == (5, 1)
    assert (told.draft_tokens, told.draft_accepted) == (4 + 4 + 2 + 2, 2 + 1 + 1 + 0)
    assert told.first_miss == (1, 2)


def test_rounds_are_told_apart_by_who_guessed_and_by_shape(counted: dict[tuple[str, ...], Any]):
    rounds = {(kind, shape): value for (_, kind, shape), value in _named(counted, "rounds_total")}
    assert rounds == {("merged", "tree"): 2, ("lookup", "chain"): 2, ("plain", "chain"): 1}


def test_a_token_that_several_guessed_counts_for_each(counted: dict[tuple[str, ...], Any]):
    drafted = {source: value for (_, source), value in _named(counted, "draft_tokens_total")}
    accepted = {source: value for (_, source), value in _named(counted, "draft_accepted_total")}
    assert drafted == {"lookup": 3 + 3 + 2 + 2, "block": 2 + 2}
    assert accepted == {"lookup": 1 + 0 + 1 + 0, "block": 2 + 1}


@pytest.mark.parametrize(
    ("name", "count", "total"),
    [
        ("round_ms", 5, 150.0),
        ("draft_ms", 5, 2.5),
        ("verify_ms", 5, 100.0),
        ("walk_ms", 5, 15.0),
        ("commit_ms", 5, 30.0),
        ("rows_chosen", 5, 5 + 5 + 3 + 3 + 1),
        ("accepted_per_round", 4, 4),  # plain steps have nothing to accept
        ("price_ratio", 4, 4 * 1.3),
    ],
)
def test_times_and_rows_are_spread_over_buckets(
    counted: dict[tuple[str, ...], Any], name: str, count: int, total: float
):
    value = counted[name,]
    assert (value["count"], value["sum"]) == (count, pytest.approx(total))


def _named(counted: dict[tuple[str, ...], Any], name: str) -> list[tuple[tuple[str, ...], Any]]:
    return [(key, value) for key, value in counted.items() if key[0] == name]


def test_what_is_kept_shows_by_kind():
    kept = CacheFacts(
        {"slot": 2}, {"slot": 640}, {"session": 3}, {"prefix": 4}, {"too_large": 5}, 6, 7
    )
    samples = {
        (m.name.removeprefix("tandem_worker_cache_"), *m.labels.items()): m.value
        for m in Metrics().samples({}, kept)
        if "_cache_" in m.name
    }
    assert samples == {
        ("hits_total", ("source", "session")): 3,
        ("evictions_total", ("kind", "prefix")): 4,
        ("skipped_total", ("reason", "too_large")): 5,
        ("bytes", ("kind", "slot")): 640,
        ("entries", ("kind", "slot")): 2,
        ("misses_total",): 6,
        ("collisions_total",): 7,
    }
