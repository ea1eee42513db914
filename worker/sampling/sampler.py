"""One row of logits to one token id. Knows no run, no cache and no model.

The noise of a draw is a function of seed, choice, retry, token number and id alone, so that a draw
depends on nothing that was computed beside it, and a run can go on elsewhere.
"""

import numpy as np
from numpy.typing import NDArray

from worker.sampling.params import Sampling

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

GOLDEN = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1
NUCLEUS_GUESS = 512  # likeliest ids looked at before the whole vocabulary is sorted


def draw(logits: NDArray[np.float32], sampling: Sampling, number: int) -> int:
    """The token with this number of the run. logits: (vocab,) float32, -inf for what may not be.

    Order: temperature, top_k, top_p, min_p, draw; ties go to the lower id.
    """
    best = int(logits.argmax())
    if not np.isfinite(logits[best]):
        raise FloatingPointError("the model gave no usable number for any token")
    if sampling.temperature == 0.0:
        return best
    # From the best one down: a tiny temperature makes the others impossible, never the best.
    with np.errstate(over="ignore"):
        scores = (logits.astype(np.float64) - float(logits[best])) / sampling.temperature
    ids = np.sort(kept_ids(scores, sampling))
    noisy = scores[ids] + gumbel_noise(sampling, number, ids)
    return int(ids[noisy.argmax()])


def kept_ids(scores: Floats, sampling: Sampling) -> Ids:
    """The ids that top_k, then top_p, then min_p leave. scores: (vocab,), logits over temperature.

    The first id of each cut is its likeliest; top_p keeps the id that crosses the bound.
    """
    ids = np.arange(len(scores))
    if sampling.top_k:
        ids = _likeliest(scores, sampling.top_k)
    if sampling.top_p < 1.0:
        ids = _nucleus(scores, ids, sampling.top_p)
    if sampling.min_p > 0.0:
        best = scores[ids].max()
        ids = ids[scores[ids] >= best + np.log(sampling.min_p)]
    return ids[scores[ids] > -np.inf]


def _likeliest(scores: Floats, count: int) -> Ids:
    """The `count` best ids, best first, ties by lower id."""
    if count >= len(scores):
        return np.argsort(-scores, kind="stable")
    bound = np.partition(scores, len(scores) - count)[len(scores) - count]
    candidates = np.flatnonzero(scores >= bound)  # more than `count` at ties
    return candidates[np.argsort(-scores[candidates], kind="stable")][:count]


def _nucleus(scores: Floats, ids: Ids, top_p: float) -> Ids:
    weights = np.exp(scores[ids] - scores[ids].max())
    total = weights.sum()
    # Mostly a few hundred ids carry the nucleus, and sorting them is much the cheaper.
    for count in (NUCLEUS_GUESS, len(ids)):
        best = ids[_likeliest(scores[ids], count)]
        reached = np.cumsum(np.exp(scores[best] - scores[best[0]])) / total
        if reached[-1] >= top_p or count == len(ids):
            break
    return best[: int(np.searchsorted(reached, top_p)) + 1]


def gumbel_noise(sampling: Sampling, number: int, ids: Ids) -> Floats:
    """Gumbel noise of each id, G = -log(-log u), keyed by seed, choice, retry and number.

    Source: splitmix64 (Steele, Lea, Flood 2014) as the mixing function.
    """
    lane = sampling.retry << 48 | sampling.choice << 40
    key = _mix((_mix(_mix(sampling.seed & WORD) ^ lane) + number * GOLDEN) & WORD)
    words = np.uint64(key) + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
    uniform = ((_mix_all(words) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    noise: Floats = -np.log(-np.log(uniform))
    return noise


def _mix(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & WORD
    return word ^ (word >> 31)


def _mix_all(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
