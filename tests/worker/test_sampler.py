"""The order of filters, and noise that depends on nothing but its key."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.chat import Params
from proto.faults import Refusal
from worker.models.config import SamplingDefaults
from worker.sampling.chooser import Chooser
from worker.sampling.params import Sampling, resolve
from worker.sampling.sampler import draw, gumbel_noise, is_near_tie, kept

WORD = (1 << 64) - 1
GOLDEN_NOISE = [2.7120814039126344, 0.18778751339885488, 0.5450603574261688]
GOLDEN_OTHER = [1.0609654947772071]


def _sampling(**changes: float) -> Sampling:
    plain = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": 1}
    return Sampling(**{**plain, **changes})


def _choose(logits, sampling: Sampling, number: int = 1, masked: tuple[int, ...] = ()) -> int:
    chooser = Chooser(sampling, (), number=number)
    return chooser.choose(np.array(logits, np.float32), np.array(masked, np.int64)).token


def _reference_noise(seed: int, choice: int, retry: int, number: int, index: int) -> float:
    """The definition, in plain integers."""

    def mix(word: int) -> int:
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & WORD
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB & WORD
        return word ^ (word >> 31)

    lane = retry << 48 | choice << 40
    key = mix((mix(mix(seed & WORD) ^ lane) + number * 0x9E3779B97F4A7C15) & WORD)
    word = mix((key + (index + 1) * 0x9E3779B97F4A7C15) & WORD)
    return -math.log(-math.log(((word >> 11) + 0.5) * 2.0**-53))


@given(
    st.integers(-(2**63), 2**64 - 1), st.integers(0, 15), st.integers(0, 3),
    st.integers(1, 2**20), st.lists(st.integers(0, 2**18), min_size=1, max_size=20),
)  # fmt: skip
def test_noise_is_that_of_the_definition(seed, choice, retry, number, ids):
    sampling = _sampling(seed=seed, choice=choice, retry=retry)
    noise = gumbel_noise(sampling, number, np.array(ids))
    expected = [_reference_noise(seed, choice, retry, number, i) for i in ids]
    assert noise.tolist() == pytest.approx(expected, rel=1e-12)


def test_b59_a_call_that_is_written_again_is_drawn_otherwise():
    ids = np.arange(50)
    first, again = (gumbel_noise(_sampling(retry=n), 3, ids).argmax() for n in (0, 1))
    assert first != again


def test_noise_has_golden_values():
    noise = gumbel_noise(_sampling(seed=42), 7, np.array([0, 1, 49_151]))
    assert noise.tolist() == pytest.approx(GOLDEN_NOISE, rel=1e-12)
    other = gumbel_noise(_sampling(seed=-1, choice=3, retry=1), 1, np.array([5]))
    assert other.tolist() == pytest.approx(GOLDEN_OTHER, rel=1e-12)


def test_draws_follow_the_distribution():
    logits = np.log(np.arange(1, 17, dtype=np.float32))
    draws = [_choose(logits, _sampling(seed=5), number) for number in range(1, 20_001)]
    expected = np.arange(1, 17) / 136 * 20_000
    observed = np.bincount(draws, minlength=16)
    chi_square = ((observed - expected) ** 2 / expected).sum()
    assert chi_square < 37.7  # 0.1 % of chi-square with 15 degrees of freedom


def test_a_draw_depends_on_seed_number_choice_and_retry_only():
    logits = np.zeros(1000, np.float32)
    first = _choose(logits, _sampling(seed=9), 4)
    assert _choose(logits, _sampling(seed=9), 4) == first
    others = [
        _choose(logits, _sampling(seed=10), 4),
        _choose(logits, _sampling(seed=9), 5),
        _choose(logits, _sampling(seed=9, choice=1), 4),
        _choose(logits, _sampling(seed=9, retry=1), 4),
    ]
    assert first not in others


def test_ids_that_a_filter_drops_do_not_move_the_draw_of_the_others():
    logits = np.linspace(0, 1, 100)
    full = [_choose(logits, _sampling(seed=2), n) for n in range(1, 200)]
    cut = [_choose(logits, _sampling(seed=2, top_k=50), n) for n in range(1, 200)]
    same = [(a, b) for a, b in zip(full, cut, strict=True) if a >= 50]
    assert same and all(a == b for a, b in same)


def test_b10_temperature_zero_is_greedy_whatever_else_is_said():
    sampling = _sampling(temperature=0.0, top_p=0.1, top_k=3)
    assert all(_choose([0.0, 2.0, 2.0, 1.0], sampling, n) == 1 for n in range(1, 50))


def test_ids_without_a_token_are_never_chosen():
    assert _choose([1.0, 5.0, 3.0], _sampling(temperature=0.0), masked=(1,)) == 2
    draws = {_choose([1.0, 5.0, 1.0], _sampling(), n, masked=(1,)) for n in range(1, 99)}
    assert draws == {0, 2}


def _kept(logits: list[float], **changes: float) -> list[int]:
    row = np.array(logits, np.float32)
    return kept(row, int(row.argmax()), _sampling(**changes))[0].tolist()


def test_top_k_keeps_the_likeliest_and_ties_go_to_the_lower_id():
    assert _kept([1.0, 3.0, 2.0, 2.0, 2.0], top_k=3) == [1, 2, 3]
    assert _kept([1.0, 2.0], top_k=9) == [0, 1]


def test_top_p_keeps_the_id_that_crosses_the_bound():
    logits = [math.log(p) for p in (0.1, 0.5, 0.15, 0.25)]
    assert _kept(logits, top_p=0.5) == [1]
    assert _kept(logits, top_p=0.6) == [1, 3]
    assert _kept(logits, top_p=0.8) == [1, 2, 3]
    assert _kept(logits, top_p=1e-9) == [1]


def test_top_p_is_taken_of_what_top_k_left():
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert _kept(logits, top_k=2, top_p=0.55) == [0]
    assert _kept(logits, top_p=0.55) == [0, 1]


def test_min_p_is_relative_to_the_likeliest():
    logits = [math.log(p) for p in (0.5, 0.3, 0.15, 0.05)]
    assert _kept(logits, min_p=0.299) == [0, 1, 2]
    assert _kept(logits, min_p=1.0) == [0]


def _by_sorting_everything(logits: np.ndarray, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """The ids that are left, in order, and all scores, as the definition says; no shorter way."""
    best = float(logits.max())
    scores = (logits.astype(np.float64) - best) / sampling.temperature
    ids = np.argsort(-scores, kind="stable")
    ids = ids[scores[ids] > -np.inf]
    if sampling.top_k:
        ids = ids[: sampling.top_k]
    if sampling.top_p < 1.0:
        weights = np.exp(scores[ids])
        reached = np.cumsum(weights) / weights.sum()
        ids = ids[: int(np.searchsorted(reached, sampling.top_p)) + 1]
    if sampling.min_p > 0.0:
        ids = ids[scores[ids] >= np.log(sampling.min_p)]
    return np.sort(ids), scores


@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0, 9.0])
@pytest.mark.parametrize(
    "cuts",
    [{}, {"top_p": 0.05}, {"top_p": 0.9}, {"top_p": 0.9999}, {"top_k": 1}, {"top_k": 40},
     {"top_k": 4000}, {"min_p": 0.1}, {"min_p": 3e-4}, {"min_p": 1e-9},
     {"top_k": 300, "top_p": 0.97}, {"top_k": 50, "top_p": 0.9, "min_p": 0.02}],
    ids=str,
)  # fmt: skip
def test_a_draw_that_looks_at_few_ids_is_the_one_that_looks_at_all(spread: float, cuts: dict):
    coin = np.random.default_rng(int(spread * 10))
    for number in range(1, 41):
        logits = coin.normal(0, spread, 6000).astype(np.float32).round(1)  # with many ties
        logits[coin.integers(6000, size=500)] = -np.inf
        sampling = _sampling(temperature=float(coin.choice([0.2, 1.0, 2.0])), seed=number, **cuts)
        ids, scores = _by_sorting_everything(logits, sampling)
        likeliest = (scores[ids] + gumbel_noise(sampling, number, ids)).argmax()
        assert draw(logits, sampling, number) == ids[likeliest]
        if cuts.keys() & {"top_k", "min_p"}:  # without, the last few of a sum may differ, or all
            left, _ = kept(logits, int(logits.argmax()), sampling)
            assert left.tolist() == ids.tolist()


def test_the_client_wins_over_the_models_defaults():
    defaults = SamplingDefaults(temperature=0.2, top_p=0.9, top_k=20)
    plain = resolve(Params(), defaults, seed=3, choice=1, vocab_size=100)
    assert plain == Sampling(0.2, 0.9, 20, 0.0, 3, 1)
    asked = Params(temperature=0.0, top_p=0.5, top_k=0, min_p=0.1)
    resolved = resolve(asked, defaults, seed=3, choice=0, vocab_size=100)
    assert resolved == Sampling(0.0, 0.5, 0, 0.1, 3, 0)


@pytest.mark.parametrize(
    ("params", "param"),
    [
        (Params(temperature=2.1), "temperature"),
        (Params(temperature=math.nan), "temperature"),
        (Params(top_p=0.0), "top_p"),
        (Params(top_k=-1), "top_k"),
        (Params(min_p=1.5), "min_p"),
        (Params(logit_bias={"100": 2.0}), "logit_bias"),
        (Params(logit_bias={"-1": 2.0}), "logit_bias"),
        (Params(logit_bias={"one": 2.0}), "logit_bias"),
        (Params(logit_bias={"1": 100.5}), "logit_bias"),
        (Params(logit_bias={"1": math.nan}), "logit_bias"),
        (Params(logit_bias={str(i): 1.0 for i in range(4097)}), "logit_bias"),
        (Params(presence_penalty=2.5), "presence_penalty"),
        (Params(frequency_penalty=-2.5), "frequency_penalty"),
        (Params(repetition_penalty=0.0), "repetition_penalty"),
        (Params(repetition_penalty=2.5), "repetition_penalty"),
        (Params(top_logprobs=21), "top_logprobs"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(params: Params, param: str):
    with pytest.raises(Refusal) as caught:
        resolve(params, SamplingDefaults(), seed=0, choice=0, vocab_size=100)
    assert (caught.value.code, caught.value.param) == ("bad_request", param)


@pytest.mark.parametrize("temperature", [1e-30, 1e-307, 1e-310, 5e-324])
def test_the_smallest_temperatures_choose_the_best(temperature: float):
    logits = np.array([3.0, 20.0, 19.0], dtype=np.float32)
    sampling = Sampling(temperature=temperature, top_p=1.0, top_k=0, min_p=0.0, seed=1)
    assert draw(logits, sampling, 1) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_logits_that_are_no_numbers_are_a_fault_not_a_token(temperature: float, value: float):
    logits = np.full(4, value, dtype=np.float32)
    sampling = Sampling(temperature=temperature, top_p=1.0, top_k=0, min_p=0.0, seed=1)
    with pytest.raises(FloatingPointError):
        draw(logits, sampling, 1)


@pytest.mark.parametrize(
    ("best", "gap", "expected"),
    [(20.0, 0.25, True), (20.0, 0.26, False), (-3.0, 0.03, True), (-3.0, 0.032, False),
     (16.0, 0.25, True), (15.9, 0.25, False), (1.0, 0.0, True)],
)  # fmt: skip
def test_two_tokens_within_two_steps_of_bf16_are_a_near_tie(best, gap, expected):
    logits = np.array([best - 9.0, best, best - gap, best - 5.0], np.float32)
    assert is_near_tie(logits, 1) is expected
    assert not is_near_tie(logits[[0, 1, 3]], 1)
