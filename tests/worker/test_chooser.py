"""What changes a row of logits before a token is drawn, and what of it a run keeps."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import COMPILER, END, TOKENIZER

from proto.chat import AnswerFormat, Call, Message, TextPart
from worker.grammar.forms import form_of
from worker.sampling.chooser import ChoiceTexts, Chooser
from worker.sampling.params import Sampling

NONE = np.array([], np.int64)


def _sampling(**changes) -> Sampling:
    plain = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": 1}
    return Sampling(**{**plain, **changes})


def _choose(chooser: Chooser, logits, masked=NONE):
    return chooser.choose(np.array(logits, np.float32), masked)


def _matcher(answer: AnswerFormat):
    call = Call("m", (Message("user", (TextPart("x"),)),), answer_format=answer)
    form = form_of(call, "hermes")
    return COMPILER.compile(form)


def test_a_bias_moves_a_token_up_and_down():
    row = [1.0, 2.0, 3.0]
    assert _choose(Chooser(_sampling(), ()), row).token == 2
    assert _choose(Chooser(_sampling(logit_bias={0: 2.5}), ()), row).token == 0
    assert _choose(Chooser(_sampling(logit_bias={2: -1.5}), ()), row).token == 1
    # No bias gives a token that is none.
    masked = np.array([2], np.int64)
    assert _choose(Chooser(_sampling(logit_bias={2: 100.0}), ()), row, masked).token == 1


def test_presence_counts_once_frequency_every_time_and_neither_the_prompt():
    row = [1.0, 1.9, 1.3]
    presence = Chooser(_sampling(presence_penalty=0.5), prompt=(1,))
    assert [_choose(presence, row).token for _ in range(4)] == [1, 1, 1, 1]  # 1.4 still leads
    frequency = Chooser(_sampling(frequency_penalty=0.5), prompt=(1,))
    # 1.9, 1.4, 0.9 for token 1; then 1.3, 0.8 for token 2; 1.0 for token 0
    assert [_choose(frequency, row).token for _ in range(5)] == [1, 1, 2, 0, 1]


def test_repetition_divides_what_is_likely_multiplies_what_is_not_and_knows_the_prompt():
    chooser = Chooser(_sampling(repetition_penalty=2.0), prompt=(1,))
    assert _choose(chooser, [0.9, 1.0, -1.0]).token == 0
    chooser = Chooser(_sampling(repetition_penalty=2.0), prompt=(0, 1))
    assert _choose(chooser, [-0.6, -0.7, -1.1]).token == 2


@given(
    st.lists(st.integers(0, 7), max_size=12), st.lists(st.integers(0, 7), max_size=12),
    st.floats(-2, 2), st.floats(-2, 2), st.floats(0.1, 2),
    st.lists(st.floats(-20, 20, width=32), min_size=8, max_size=8),
)  # fmt: skip
def test_penalties_are_those_of_the_definition(prompt, written, presence, frequency, factor, row):
    sampling = _sampling(
        presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=factor
    )
    chooser = Chooser(sampling, prompt)
    for token in written:
        chooser._counts.add(token)
    logits = np.array(row, np.float32)
    chooser._counts.apply(logits, sampling)
    for index, value in enumerate(row):
        count = written.count(index)
        expected = value - (presence if count else 0.0) - frequency * count
        if count or index in prompt:
            expected = expected / factor if expected > 0 else expected * factor
        assert logits[index] == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_logprobs_are_those_of_the_plain_logits():
    row = [1.0, 2.0, 3.0, 3.0]
    sampling = _sampling(top_logprobs=2, logit_bias={0: 50.0}, temperature=0.5)
    chosen = _choose(Chooser(sampling, ()), row)
    total = math.log(sum(map(math.exp, row)))
    assert chosen.token == 0
    assert chosen.logprob == pytest.approx(1.0 - total)
    assert [token for token, _ in chosen.top] == [2, 3]
    assert [value for _, value in chosen.top] == pytest.approx([3.0 - total] * 2)
    assert _choose(Chooser(_sampling(), ()), row).logprob is None
    few = _choose(Chooser(sampling, ()), row, np.array([1, 2, 3], np.int64))
    assert (few.token, few.top) == (0, ((0, 0.0),))
    alone = _choose(Chooser(_sampling(top_logprobs=0), ()), row)
    assert (alone.top, alone.logprob) == ((), pytest.approx(3.0 - total))


def test_a_near_tie_is_told_of_greedy_choices_after_all_that_changes_them():
    close, apart = [1.0, 20.0, 19.8], [1.0, 20.0, 19.0]
    for more in ({}, {"top_logprobs": 1}):
        assert _choose(Chooser(_sampling(**more), ()), close).is_near_tie
        assert not _choose(Chooser(_sampling(**more), ()), apart).is_near_tie
    assert not _choose(Chooser(_sampling(temperature=1.0), ()), close).is_near_tie
    assert _choose(Chooser(_sampling(logit_bias={2: 0.9}), ()), apart).is_near_tie


def test_a_grammar_allows_only_what_continues_it_and_the_end_where_it_may_end():
    chooser = Chooser(_sampling(), (), matcher=_matcher(AnswerFormat("choice", ["ab", "abc"])))
    row = np.zeros(512, np.float32)
    row[END] = 9.0  # the model would rather end at once
    written = [_choose(chooser, row).token for _ in range(3)]
    text = b"".join(TOKENIZER.token_bytes[token] or b"" for token in written)
    assert text == b"ab" and written[-1] == END


def test_a_grammar_waits_while_the_reasoning_is_open():
    matcher = _matcher(AnswerFormat("choice", ["ab"]))
    chooser = Chooser(_sampling(), (), matcher=matcher, is_free=True)
    row = np.zeros(512, np.float32)
    row[7] = 1.0
    assert _choose(chooser, row).token == 7
    assert matcher.consumed == ()
    chooser.is_free = False
    assert TOKENIZER.token_bytes[_choose(chooser, row).token][:1] == b"a"


def test_the_margin_of_a_choice_is_between_its_two_best():
    texts = ["chat", "edit", "other"]
    chooser = Chooser(
        _sampling(),
        (),
        matcher=_matcher(AnswerFormat("choice", texts)),
        choices=ChoiceTexts(texts, TOKENIZER.token_bytes),
    )
    row = np.full(512, -50.0, np.float32)
    (c,), (e,), (o,) = (TOKENIZER.encode_literal(letter) for letter in "ceo")
    row[c], row[e], row[o] = math.log(0.5), math.log(0.3), math.log(0.2)
    row[END] = 10.0  # forbidden: it must not take a share
    _choose(chooser, row)
    assert chooser.margin == pytest.approx(0.2, abs=1e-5)
    _choose(chooser, np.zeros(512, np.float32))
    assert chooser.margin == pytest.approx(0.2, abs=1e-5)  # of the first token only


def test_a_copy_goes_its_own_way_and_states_tell_them_apart():
    matcher = _matcher(AnswerFormat("regex", "[ab]{8}"))
    sampling = _sampling(temperature=1.0, frequency_penalty=0.3)
    chooser = Chooser(sampling, (5, 6), matcher=matcher)
    row = np.random.default_rng(0).normal(size=512).astype(np.float32)
    first = [_choose(chooser, row).token for _ in range(2)]
    twin, before = chooser.copy(), chooser.state()
    assert twin.state() == before
    ahead = [_choose(twin, row).token for _ in range(3)]
    assert chooser.state() == before != twin.state()
    assert [_choose(chooser, row).token for _ in range(3)] == ahead
    assert twin.state() == chooser.state()
    again = Chooser(sampling, (5, 6), matcher=_matcher(AnswerFormat("regex", "[ab]{8}")))
    assert [_choose(again, row).token for _ in range(5)] == first + ahead


@pytest.mark.parametrize("change", ["number", "is_free", "counts", "sampling"])
def test_a_state_holds_everything_that_decides(change: str):
    chooser, other = (Chooser(_sampling(frequency_penalty=0.5), (1,)) for _ in range(2))
    match change:
        case "number":
            other.skip(1)
        case "is_free":
            other.is_free = True
        case "counts":
            other._counts.add(3)
        case "sampling":
            other.sampling = _sampling(seed=2)
    assert chooser.state() != other.state()
