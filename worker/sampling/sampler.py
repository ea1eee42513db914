"""One row of logits to one token id. Knows no run, no cache and no model.

The noise of a draw is a function of seed, choice, retry, token number and id alone, so that a draw
depends on nothing that was computed beside it, and a run can go on elsewhere.
"""

import math

import numpy as np
from numpy.typing import NDArray

from worker.sampling.params import Sampling

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

GOLDEN = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1
NEAR_TIE_ULPS = 2  # steps of bf16 within which two logits count as equal
# By how many powers of e ids are less likely than the best: mostly a few hundred are within the
# first of these, and settle the draw.
REACHES = (6.0, 16.0, np.inf)


def draw(logits: NDArray[np.float32], sampling: Sampling, number: int) -> int:
    """The token with this number of the run. logits: (vocab,) float32, -inf for what may not be.

    Order: temperature, top_k, top_p, min_p, draw; ties go to the lower id.
    """
    best = int(logits.argmax())
    if not np.isfinite(logits[best]):
        raise FloatingPointError("the model gave no usable number for any token")
    if sampling.temperature == 0.0:
        return best
    if not sampling.has_cuts:
        return _drawn_of_all(logits, best, sampling, number)
    ids, scores = kept(logits, best, sampling)
    return int(ids[(scores + gumbel_noise(sampling, number, ids)).argmax()])


def is_near_tie(logits: NDArray[np.float32], best: int) -> bool:
    """Whether another id is as good as the best to within what rounding to bf16 may do, so that
    rows computed together may choose otherwise than rows computed alone."""
    top = float(logits[best])
    step = math.ldexp(1.0, math.frexp(top)[1] - 8)  # of bf16, which has 8 bits
    return int((logits >= top - NEAR_TIE_ULPS * step).sum()) > 1


def kept(logits: NDArray[np.float32], best: int, sampling: Sampling) -> tuple[Ids, Floats]:
    """The ids that top_k, top_p and min_p leave, in order, and their scores: logits over
    temperature from the best one down. What is left is always some number of the likeliest."""
    for reach in REACHES:
        ids, scores = _within(reach, logits, best, sampling.temperature)
        order = np.argsort(-scores, kind="stable")  # ties by lower id
        count = _count_left(scores[order], reach, logits, best, sampling)
        if count is not None:
            left = np.sort(order[:count])
            return ids[left], scores[left]
    raise AssertionError("nothing is beyond the reach of all")


def _within(
    reach: float, logits: NDArray[np.float32], best: int, temperature: float
) -> tuple[Ids, Floats]:
    """Ids in order, with their scores, that are no further below the best."""
    least = float(logits[best]) - reach * temperature
    ids = np.flatnonzero(logits >= least if np.isfinite(least) else logits > -np.inf)
    # From the best one down: a tiny temperature makes the others impossible, never the best.
    with np.errstate(over="ignore"):
        scores = (logits[ids].astype(np.float64) - float(logits[best])) / temperature
    return ids, scores


def _count_left(
    scores: Floats, reach: float, logits: NDArray[np.float32], best: int, sampling: Sampling
) -> int | None:
    """How many of the likeliest ids are left; None when that depends on those beyond reach.

    scores: of the ids within reach, likeliest first.
    """
    count, is_all = len(scores), reach == np.inf
    if sampling.top_k:
        if count < sampling.top_k and not is_all:
            return None
        count = min(count, sampling.top_k)
    if sampling.top_p < 1.0:
        weights = np.exp(scores[:count])
        total = weights.sum() if sampling.top_k else _total_weight(logits, best, sampling)
        reached = np.cumsum(weights) / total
        if reached[-1] < sampling.top_p and not is_all:
            return None
        count = min(count, int(np.searchsorted(reached, sampling.top_p)) + 1)
    if sampling.min_p > 0.0:
        least = np.log(sampling.min_p)
        if least < -reach:
            return None
        count = min(count, int((scores[:count] >= least).sum()))
    return count


def _total_weight(logits: NDArray[np.float32], best: int, sampling: Sampling) -> float:
    with np.errstate(over="ignore"):
        scores = (logits - logits[best]) / np.float32(sampling.temperature)
    # Below that nothing counts, and a processor takes its time with what has hardly any digits.
    weights = np.exp(np.maximum(scores, np.float32(-80.0)))
    return float(weights.sum(dtype=np.float64))


def _drawn_of_all(logits: NDArray[np.float32], best: int, sampling: Sampling, number: int) -> int:
    """A draw without cuts. Of the ids beyond reach only those are scored whose noise could lift
    them above the best of the others."""
    ids, scores = _within(REACHES[0], logits, best, sampling.temperature)
    leader = (scores + gumbel_noise(sampling, number, ids)).max()
    # Noise above -log(-log u) is u above exp(-exp(-noise)); a little less, since that is rounded.
    least = math.exp(-math.exp(-(leader + REACHES[0]))) - 1e-9
    lifted = _uniform(sampling, number, np.arange(len(logits))) > least
    lifted[ids] = True
    ids = np.flatnonzero(lifted)
    scores = (logits[ids].astype(np.float64) - float(logits[best])) / sampling.temperature
    return int(ids[(scores + gumbel_noise(sampling, number, ids)).argmax()])


def gumbel_noise(sampling: Sampling, number: int, ids: Ids) -> Floats:
    """Gumbel noise of each id, G = -log(-log u), keyed by seed, choice, retry and number.

    Source: splitmix64 (Steele, Lea, Flood 2014) as the mixing function.
    """
    noise: Floats = -np.log(-np.log(_uniform(sampling, number, ids)))
    return noise


def _uniform(sampling: Sampling, number: int, ids: Ids) -> Floats:
    """Numbers between 0 and 1, neither included, with the same key."""
    lane = sampling.retry << 48 | sampling.choice << 40
    key = _mix((_mix(_mix(sampling.seed & WORD) ^ lane) + number * GOLDEN) & WORD)
    words = np.uint64(key) + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
    uniform: Floats = ((_mix_all(words) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return uniform


def _mix(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & WORD
    return word ^ (word >> 31)


def _mix_all(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
