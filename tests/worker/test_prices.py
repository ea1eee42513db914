"""What rounds cost: between what was measured, outside of it, and as JSON."""

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.speculation.prices import CONTEXTS, ROWS, UNMEASURED, Prices, prices_from
from worker.speculation.table import table_lines

TABLE = Prices(
    {256: 10.0, 1024: 14.0},
    {
        256: {"chain": {1: 10.0, 4: 16.0, 8: 18.0}, "tree": {1: 10.0, 4: 20.0}},
        1024: {"chain": {1: 14.0, 4: 24.0, 8: 30.0}, "tree": {1: 14.0, 4: 26.0}},
    },
    {"chain": 0.5, "tree": 1.5},
)
TIMES = st.floats(0.01, 1000.0)
COLUMNS = st.dictionaries(st.sampled_from(ROWS), TIMES, min_size=1)
TABLES = st.dictionaries(
    st.sampled_from(CONTEXTS), st.tuples(TIMES, COLUMNS, COLUMNS), min_size=1
).map(
    lambda found: Prices(
        {at: plain for at, (plain, _, _) in found.items()},
        {at: {"chain": chain, "tree": tree} for at, (_, chain, tree) in found.items()},
        {"chain": 0.25, "tree": 0.75},
    )
)


def test_prices_are_linear_between_rows_and_flat_outside():
    prices = TABLE.at(256, 64)
    assert prices.plain == 10.0
    assert prices.chain[:4] == (10.5, 12.5, 14.5, 16.5)
    assert prices.chain[4:9] == (17.0, 17.5, 18.0, 18.5, 18.5)
    assert prices.verify_ms(64, is_chain=True) == 18.5
    assert prices.verify_ms(64, is_chain=False) == prices.tree[3] == 21.5


def test_prices_are_linear_in_the_logarithm_of_the_context_and_flat_outside():
    assert TABLE.at(512, 8).plain == 12.0  # half way from 256 to 1,024
    assert TABLE.at(512, 8).verify_ms(8, is_chain=True) == 24.5
    assert TABLE.at(512, 8).verify_ms(4, is_chain=False) == 24.5
    for near, far in ((256, 0), (256, 100), (1024, 5000), (1024, 100_000)):
        assert TABLE.at(near, 8) == TABLE.at(far, 8)


def test_contexts_of_one_step_share_their_prices_and_as_many_rows_are_priced_as_may_be():
    assert TABLE.at(512, 8) is TABLE.at(575, 8)
    assert TABLE.at(512, 8) != TABLE.at(576, 8)
    assert len(TABLE.at(512, 8).tree) == 8


def _straight(points: dict[float, float], place: float) -> float:
    """The same by looking at every pair of neighbours."""
    known = sorted(points.items())
    for (left, low), (right, high) in itertools.pairwise(known):
        if left <= place <= right:
            return low + (high - low) * (place - left) / (right - left)
    return known[0][1] if place < known[0][0] else known[-1][1]


@given(TABLES, st.integers(0, 700), st.integers(2, 64), st.integers(1, 64))
def test_each_price_is_what_looking_it_up_by_hand_gives(
    table: Prices, step: int, most: int, rows: int
):
    length, rows = 64 * step, min(rows, most)
    place = math.log2(max(length, 1))
    found = table.at(length, most)
    plain = {math.log2(at): ms for at, ms in table.plain.items()}
    assert found.plain == pytest.approx(_straight(plain, place))
    for shape in ("chain", "tree"):
        by_context = {
            math.log2(at): _straight(of_shape[shape], rows) for at, of_shape in table.verify.items()
        }
        expected = _straight(by_context, place) + table.commit[shape]
        assert found.verify_ms(rows, is_chain=shape == "chain") == pytest.approx(expected)


def test_before_anything_is_measured_no_rows_are_worth_their_price():
    prices = UNMEASURED.at(5000, 64)
    assert set(prices.chain) == set(prices.tree) == {math.inf}
    assert prices.plain < math.inf


@given(TABLES)
def test_a_table_that_went_through_json_is_the_same(table: Prices):
    again = prices_from(json.loads(json.dumps(table.to_fields())))
    assert (again.plain, again.verify, again.commit) == (table.plain, table.verify, table.commit)


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "1", None, [], 10**400])
@pytest.mark.parametrize("place", ["plain", "verify", "commit"])
def test_a_time_that_is_no_positive_number_is_refused(place: str, value: Any):
    fields = TABLE.to_fields()
    column = {"plain": fields["plain"], "verify": fields["verify"]["256"]["tree"]}
    column.get(place, fields["commit"])["4" if place == "verify" else "256"] = value
    if place == "commit":
        fields["commit"] = {"chain": value, "tree": 1.0}
    with pytest.raises(ValueError, match="time"):
        prices_from(fields)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda fields: fields.pop("commit"),
        lambda fields: fields.update(more=1),
        lambda fields: fields.update(plain={}),
        lambda fields: fields.update(plain=[1.0]),
        lambda fields: fields.update(plain={"0": 1.0}),
        lambda fields: fields.update(plain={"many": 1.0}),
        lambda fields: fields.update(plain={str(at): 1.0 for at in range(1, 100)}),
        lambda fields: fields["verify"].update({"512": {}}),
        lambda fields: fields["verify"]["256"].pop("tree"),
        lambda fields: fields["verify"]["256"].update(chain={}),
    ],
)
def test_a_table_of_another_form_is_refused(spoil: Any):
    fields = TABLE.to_fields()
    prices_from(fields)
    spoil(fields)
    with pytest.raises(ValueError):
        prices_from(fields)


@pytest.mark.parametrize("fields", [None, 1, [], "x"])
def test_what_is_no_table_at_all_is_refused(fields: Any):
    with pytest.raises(ValueError):
        prices_from(fields)


def test_the_table_is_shown_in_milliseconds_and_in_plain_steps():
    lines = [line.split() for line in table_lines(TABLE)]
    assert ["rows", "256", "1,024"] in lines
    assert ["plain", "10.00", "(1.00)", "14.00", "(1.00)"] in lines
    assert ["chain", "4", "16.50", "(1.65)", "24.50", "(1.75)"] in lines
    assert ["tree", "4", "21.50", "(2.15)", "27.50", "(1.96)"] in lines
    assert not [line for line in lines if line[:2] in (["chain", "1"], ["tree", "1"])]
    assert TABLE.staircase() == {4: 1.65, 8: 1.85}
