"""What a row costs: exactly, by the entry that is meant, frozen."""

from dataclasses import asdict, replace
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ledger.prices import (
    DAY_MS,
    FOUND_MOST,
    Price,
    PriceFault,
    PriceList,
    energy_cost,
    table_cost,
)
from gateway.ledger.row import Columns, Row, fitted
from gateway.settings.types import EnergyPrice, PriceSettings, TokenPrices
from tests.gateway.ledger.made import NOON_MS, UNHURRIED

D = Decimal
LARGE = PriceSettings(
    model="kestrel-large",
    backend="skyline",
    currency="EUR",
    per_mtok=TokenPrices(input=D(5), cached_input=D("0.5"), cache_write=D("6.25"), output=D(20)),
)
COUNTS = st.integers(0, 3_000_000)
AMOUNTS = st.decimals(0, 1000, places=6)
TOKEN_PRICES = st.builds(
    TokenPrices,
    input=AMOUNTS,
    cached_input=st.none() | AMOUNTS,
    cache_write=st.none() | AMOUNTS,
    output=AMOUNTS,
    reasoning=st.none() | AMOUNTS,
)


def row(**columns: object) -> Columns:
    given_ = {
        "ts_ms": NOON_MS, "request_id": "a", "backend": "skyline", "outcome": "succeeded",
        "upstream_model": "kestrel-large", "upstream_input_tokens": 0, "upstream_output_tokens": 0,
    } | columns  # fmt: skip
    return fitted(given_)


def priced(entry: PriceSettings, **columns: object) -> Row:
    return priced_by(PriceList([entry]), row(**columns))


def priced_by(prices: PriceList, columns: Columns) -> Row:
    prices.price(columns)
    return Row(**columns)


@st.composite
def usages(draw: st.DrawFn) -> dict[str, int]:
    """Token columns whose parts fit their wholes."""
    cached, written, uncached = draw(COUNTS), draw(COUNTS), draw(COUNTS)
    plain, reasoning = draw(COUNTS), draw(COUNTS)
    return {
        "upstream_input_tokens": cached + written + uncached,
        "upstream_cached_tokens": cached,
        "upstream_cache_write_tokens": written,
        "upstream_output_tokens": plain + reasoning,
        "upstream_reasoning_tokens": reasoning,
    }


def test_the_anchor() -> None:
    booked = priced(
        LARGE,
        upstream_input_tokens=172_000,
        upstream_cached_tokens=155_000,
        upstream_cache_write_tokens=3_000,
    )
    assert booked.cost_micros is not None
    assert D(booked.cost_micros).scaleb(-6) == D("0.16625")
    assert (booked.currency, booked.cost_source) == ("EUR", "table")


@UNHURRIED
@given(usages(), TOKEN_PRICES, st.none() | AMOUNTS)
def test_a_cost_is_the_formula_in_decimals_rounded_once(
    usage: dict[str, int], tokens: TokenPrices, request: Decimal | None
) -> None:
    entry = PriceSettings(model="*", per_mtok=tokens, per_request=request)
    assert tokens.input is not None and tokens.output is not None
    cached = usage["upstream_cached_tokens"]
    written = usage["upstream_cache_write_tokens"]
    reasoning = usage["upstream_reasoning_tokens"]
    uncached = usage["upstream_input_tokens"] - cached - written
    plain = usage["upstream_output_tokens"] - reasoning
    exact = (
        uncached * tokens.input
        + cached * (tokens.input if tokens.cached_input is None else tokens.cached_input)
        + written * (tokens.input if tokens.cache_write is None else tokens.cache_write)
        + plain * tokens.output
        + reasoning * (tokens.output if tokens.reasoning is None else tokens.reasoning)
    )
    micros = exact.quantize(D(1), ROUND_HALF_UP) + (request or D(0)) * 1_000_000
    assert priced(entry, **usage).cost_micros == micros


@UNHURRIED
@given(usages(), TOKEN_PRICES)
def test_the_frozen_prices_give_the_cost_again(usage: dict[str, int], tokens: TokenPrices) -> None:
    booked = priced(PriceSettings(model="*", per_mtok=tokens), **usage)
    assert booked.price_id is not None and booked.currency is not None
    again = Price(
        price_id=booked.price_id,
        currency=booked.currency,
        input=booked.price_input,
        cached=booked.price_cached,
        cache_write=booked.price_cache_write,
        output=booked.price_output,
        reasoning=booked.price_reasoning,
        request=booked.price_request,
    )
    assert table_cost(asdict(booked), again) == booked.cost_micros


@UNHURRIED
@given(usages(), TOKEN_PRICES, st.sampled_from(["plain", "reasoning", "uncached", "cached"]))
def test_one_more_token_never_costs_less(
    usage: dict[str, int], tokens: TokenPrices, what: str
) -> None:
    more = dict(usage)
    whole = "upstream_input_tokens" if "cached" in what else "upstream_output_tokens"
    more[whole] += 1
    if what in ("cached", "reasoning"):
        more[f"upstream_{what}_tokens"] += 1
    entry = PriceSettings(model="*", per_mtok=tokens)
    one, other = priced(entry, **usage).cost_micros, priced(entry, **more).cost_micros
    assert one is not None and other is not None and one <= other


@UNHURRIED
@given(usages(), usages(), TOKEN_PRICES)
def test_two_calls_cost_what_one_of_both_would_but_for_rounding(
    one: dict[str, int], other: dict[str, int], tokens: TokenPrices
) -> None:
    entry = PriceSettings(model="*", per_mtok=tokens)
    both = {name: one[name] + other[name] for name in one}
    costs = [priced(entry, **usage).cost_micros for usage in (one, other, both)]
    first, second, together = (cost if cost is not None else -100 for cost in costs)
    assert abs(first + second - together) <= 1


@pytest.mark.parametrize(("tokens", "micros"), [(1, 1), (3, 2), (5, 3), (499_999, 250_000)])
def test_half_a_millionth_is_rounded_up(tokens: int, micros: int) -> None:
    entry = PriceSettings(model="*", per_mtok=TokenPrices(input=D("0.5"), output=D(0)))
    assert priced(entry, upstream_input_tokens=tokens).cost_micros == micros


def test_what_is_missing_is_priced_by_rule() -> None:
    price = PriceList(
        [PriceSettings(model="*", per_mtok=TokenPrices(input=D(3), output=D(7)))]
    ).find("b", "m", NOON_MS)
    assert price is not None
    assert (price.cached, price.cache_write, price.reasoning) == (3_000_000, 3_000_000, 7_000_000)


@pytest.mark.parametrize(
    ("tokens", "usage"),
    [
        (TokenPrices(input=D(1)), {"upstream_input_tokens": 5, "upstream_output_tokens": 5}),
        (TokenPrices(output=D(1)), {"upstream_input_tokens": 5, "upstream_output_tokens": 5}),
        (TokenPrices(input=D(1), output=D(1)), {"upstream_input_tokens": None}),
        (TokenPrices(input=D(1), output=D(1)), {"upstream_output_tokens": None}),
    ],
)
def test_what_is_not_known_costs_not_zero_but_unknown(
    tokens: TokenPrices, usage: dict[str, int | None]
) -> None:
    booked = priced(PriceSettings(model="*", per_mtok=tokens), **usage)
    assert (booked.cost_micros, booked.cost_source) == (None, "none")
    assert booked.price_id is not None  # and yet which entry was meant is known


def test_no_entry_no_cost() -> None:
    booked = priced_by(PriceList([LARGE]), row(upstream_model="other"))
    assert (booked.cost_micros, booked.cost_source, booked.price_id) == (None, "none", None)


def test_an_embedding_has_no_output_to_know() -> None:
    entry = PriceSettings(model="*", per_mtok=TokenPrices(input=D(2)))
    usage = {"upstream_input_tokens": 500, "upstream_output_tokens": None}
    assert priced(entry, kind="embedding", **usage).cost_micros == 1000
    assert priced(entry, kind="generation", **usage).cost_micros is None


def test_a_price_of_a_request_needs_no_tokens() -> None:
    entry = PriceSettings(model="*", per_request=D("0.01"))
    assert priced(entry, upstream_input_tokens=None).cost_micros == 10_000
    assert priced(entry, outcome="failed").cost_micros is None


@pytest.mark.parametrize("kind", ["replay", "cache", "count"])
def test_what_nobody_computed_costs_nothing(kind: str) -> None:
    booked = priced(LARGE, kind=kind, upstream_input_tokens=1000)
    assert (booked.cost_micros, booked.cost_source, booked.currency) == (0, "none", "EUR")


def test_a_refused_request_has_no_cost() -> None:
    entry = PriceSettings(model="*", per_mtok=TokenPrices(input=D(1), output=D(1)))
    assert priced(entry, outcome="refused").cost_micros is None


def test_what_the_provider_says_is_kept() -> None:
    booked = priced(LARGE, cost_source="provider", cost_micros=7, currency="USD")
    assert (booked.cost_micros, booked.currency, booked.price_id) == (7, "USD", None)


def test_pricing_a_second_time_changes_nothing() -> None:
    booked = priced(LARGE, upstream_input_tokens=1000)
    dearer = replace(LARGE, per_mtok=TokenPrices(input=D(99), output=D(99)))
    assert priced_by(PriceList([dearer]), asdict(booked)) == booked


# -- which entry --------------------------------------------------------------------------------


def choice(*entries: PriceSettings, backend: str = "b", model: str = "m", at: str = "2026-07-31"):
    """The place of the entry that wins, in the order given; entries differ in their price."""
    numbered = [replace(entry, per_request=D(place)) for place, entry in enumerate(entries)]
    moment = datetime.fromisoformat(at).replace(tzinfo=UTC)
    found = PriceList(numbered).find(backend, model, round(moment.timestamp() * 1000))
    return None if found is None or found.request is None else found.request // 1_000_000


def entry(model: str, backend: str = "*", since: str | None = None) -> PriceSettings:
    valid_from = None if since is None else date.fromisoformat(since)
    return PriceSettings(model=model, backend=backend, valid_from=valid_from)


def test_exact_names_go_before_globs_and_newer_entries() -> None:
    assert choice(entry("*", since="2026-07-01"), entry("m")) == 1
    assert choice(entry("*"), entry("*", "b"), entry("m"), entry("m", "b")) == 3
    assert choice(entry("*", "b"), entry("m")) == 1
    assert choice(entry("m*"), entry("*", "b")) == 1


def test_the_newest_entry_not_after_the_row_wins() -> None:
    entries = [
        entry("m"), entry("m", since="2026-08-01"), entry("m", since="2026-07-31"),
        entry("m", since="2026-01-01"),
    ]  # fmt: skip
    assert choice(*entries) == 2
    assert choice(*entries, at="2026-07-30T23:59:59.999") == 3
    assert choice(*entries, at="2026-08-01T00:00") == 1
    assert choice(*entries, at="2025-12-31") == 0
    assert choice(entries[1]) is None


def test_among_equals_the_glob_that_says_more_and_then_the_first() -> None:
    assert choice(entry("*"), entry("kes*"), entry("kestrel-*"), model="kestrel-x") == 2
    assert choice(entry("m"), entry("m")) == 0


def test_names_are_matched_whole_and_by_case() -> None:
    assert choice(entry("kestrel"), model="kestrel-mini") is None
    assert choice(entry("Kestrel"), model="kestrel") is None
    assert choice(entry("k.strel"), model="kestrel") is None
    assert choice(entry("kestrel-?"), model="kestrel-x") == 0


def test_the_model_that_was_sent_counts_and_not_an_alias() -> None:
    listed = PriceList([PriceSettings(model="m", per_request=D(1))])
    assert priced_by(listed, row(model="m", upstream_model="n")).cost_micros is None
    assert priced_by(listed, row(model="alias", upstream_model="m")).cost_micros == 1_000_000
    assert priced_by(listed, row(model="m", upstream_model=None)).cost_micros == 1_000_000


def test_each_day_is_looked_up_for_itself_and_not_too_many_are_kept() -> None:
    list_ = PriceList([entry("*"), entry("m", since="2026-07-31")])
    before, after = (list_.find("b", "m", NOON_MS + days * DAY_MS) for days in (-1, 0))
    assert before is not None and after is not None and before.price_id != after.price_id
    assert list_.find("b", "m", NOON_MS - DAY_MS) is before
    for number in range(2 * FOUND_MOST):
        assert list_.find("b", f"model-{number}", NOON_MS) is before
    assert len(list_._found) <= FOUND_MOST


# -- energy, identity, mistakes -----------------------------------------------------------------


@UNHURRIED
@given(
    st.decimals(0, 5000, places=3), st.decimals(0, 10, places=4), st.integers(0, 10**7),
    st.integers(0, 10**7),
)  # fmt: skip
def test_energy_is_watts_times_busy_seconds(
    watts: Decimal, per_kwh: Decimal, prompt_ms: int, decode_ms: int
) -> None:
    entry_ = PriceSettings(model="*", energy=EnergyPrice(watts, per_kwh))
    booked = priced(entry_, prompt_ms=prompt_ms, decode_ms=decode_ms, queue_ms=9, total_ms=99**4)
    exact = Fraction(watts) / 1000 * Fraction(prompt_ms + decode_ms, 3_600_000) * Fraction(per_kwh)
    assert booked.cost_micros is not None
    assert abs(booked.cost_micros - exact * 1_000_000) <= Fraction(1, 2)
    assert booked.cost_source == "energy"


def test_energy_of_a_relayed_call_is_that_of_its_time_without_the_queue() -> None:
    price = EnergyPrice(D(360), D(1))
    assert energy_cost(row(total_ms=11_000, queue_ms=1_000), price) == 1000
    assert energy_cost(row(total_ms=10_000), price) == 1000
    assert energy_cost(row(prompt_ms=10_000), price) == 1000
    assert energy_cost(row(), price) is None


def test_an_entry_is_known_by_its_content_and_not_by_how_it_is_written() -> None:
    def id_of(entry_: PriceSettings) -> str:
        price = PriceList([replace(entry_, model="*", backend="*")]).find("b", "m", NOON_MS)
        assert price is not None
        return price.price_id

    assert len(id_of(LARGE)) == 12
    assert id_of(replace(LARGE, per_request=D(10))) == id_of(replace(LARGE, per_request=D("10.0")))
    others = [
        LARGE,
        replace(LARGE, currency="USD"),
        replace(LARGE, per_request=D(0)),
        replace(LARGE, valid_from=date(2026, 1, 1)),
        replace(LARGE, energy=EnergyPrice(D(1), D(1))),
        replace(LARGE, per_mtok=TokenPrices(input=D(5))),
    ]
    assert len({id_of(other) for other in others}) == len(others)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(LARGE, currency="euro"),
        replace(LARGE, currency="€"),
        replace(LARGE, per_request=D(-1)),
        replace(LARGE, per_request=D("NaN")),
        replace(LARGE, per_request=D("1e30")),
        replace(LARGE, per_mtok=TokenPrices(output=D("-0.1"))),
        replace(LARGE, energy=EnergyPrice(D(-1), D(1))),
    ],
)
def test_an_entry_that_makes_no_sense_names_its_model(wrong: PriceSettings) -> None:
    with pytest.raises(PriceFault, match="kestrel-large"):
        PriceList([wrong])
