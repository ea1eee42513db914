"""The price list: what one row costs, in integers. Knows no database and no request.

A token price is an integer, 1e-6 of the currency for a million tokens; a cost is an integer, 1e-6
of the currency. Prices are frozen into the row, so that a later edit of the list changes no old
one. What is not known stays None: it is never 0.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from fnmatch import translate
from fractions import Fraction
from hashlib import sha256
from math import floor

from gateway.ledger.entry import MICROS
from gateway.ledger.row import BIG_MAX, Columns
from gateway.settings.types import EnergyPrice, PriceSettings, TokenPrices

TOKENS_PER_PRICE = 1_000_000
DAY_MS = 86_400_000
EPOCH_DAY = date(1970, 1, 1).toordinal()
W_MS_PER_KWH = 3_600_000_000  # 1,000 W for an hour
FREE_KINDS = frozenset({"replay", "cache", "count"})  # nothing is processed for these
GLOB_SIGNS = frozenset("*?[")
CURRENCY = re.compile(r"[A-Z]{3}")
FROZEN = ("input", "cached", "cache_write", "output", "reasoning", "request")
FOUND_MOST = 1_000  # answers that are kept; a client may choose a model's name


class PriceFault(Exception):
    """An entry of the price list that cannot be used. `model` names it."""

    def __init__(self, model: str, wish: str) -> None:
        super().__init__(f"prices, model {model!r}: {wish}")
        self.model = model


@dataclass(frozen=True, slots=True)
class Price:
    """One entry as it is frozen into rows, with what is missing filled in by rule.

    `since_day`: an ordinal, 0 for ever. All token prices None: tokens are not charged. `columns`:
    what of it a row keeps.
    """

    price_id: str
    currency: str
    since_day: int = 0
    input: int | None = None
    cached: int | None = None
    cache_write: int | None = None
    output: int | None = None
    reasoning: int | None = None
    request: int | None = None
    energy: EnergyPrice | None = None
    columns: Columns = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        known = {f"price_{name}": getattr(self, name) for name in FROZEN}
        columns = {name: units for name, units in known.items() if units is not None}
        columns |= {"currency": self.currency, "price_id": self.price_id}
        object.__setattr__(self, "columns", columns)


class PriceList:
    """The price list, most exact entries first.

    An exact model goes before an exact backend and that before globs; then the newest `valid_from`
    not after the row; then the glob that says more; then the entry that stands first.

    Raises: PriceFault.
    """

    def __init__(self, entries: Sequence[PriceSettings]) -> None:
        ranked = sorted(entries, key=_rank, reverse=True)  # keeps the order of equals
        self._entries = [
            (_matcher(entry.backend), _matcher(entry.model), _price_of(entry)) for entry in ranked
        ]
        self._found: dict[tuple[str, str, int], Price | None] = {}

    def find(self, backend: str | None, model: str | None, ts_ms: int) -> Price | None:
        """The price of a call at this time (days are UTC), None when the list has none."""
        if backend is None or model is None:
            return None
        asked = (backend, model, ts_ms // DAY_MS)
        try:
            return self._found[asked]
        except KeyError:
            if len(self._found) >= FOUND_MOST:
                self._found.clear()
            found = self._found[asked] = self._look_up(*asked)
            return found

    def price(self, row: Columns) -> None:
        """Adds the cost columns. A row that has a `cost_source` keeps what it has."""
        if row["cost_source"] is not None:
            return
        model = row.get("upstream_model") or row.get("model")
        price = self.find(row.get("backend"), model, row["ts_ms"])
        if row["kind"] in FREE_KINDS:
            row["cost_micros"] = 0
            row["cost_source"] = "none"
            if price is not None:
                row["currency"] = price.currency
            return
        if price is None or row["outcome"] == "refused":
            row["cost_source"] = "none"
            return
        cost = energy_cost(row, price.energy) if price.energy else table_cost(row, price)
        row.update(price.columns)
        if cost is None or cost > BIG_MAX:
            row["cost_source"] = "none"
        else:
            row["cost_micros"] = cost
            row["cost_source"] = "energy" if price.energy else "table"

    def _look_up(self, backend: str, model: str, day: int) -> Price | None:
        ordinal = EPOCH_DAY + day
        for of_backend, of_model, price in self._entries:
            if price.since_day <= ordinal and of_model.match(model) and of_backend.match(backend):
                return price
        return None


def table_cost(row: Columns, price: Price) -> int | None:
    """What the row's own call costs; None when a part of it is not known.

    Over the upstream columns, with `uncached = input − cached − cache_write` and `plain = output −
    reasoning`: `round_half_up((uncached·P_in + cached·P_cached + cache_write·P_write + plain·P_out
    + reasoning·P_reason) / 10^6) + P_request`.
    """
    known = row.get
    if price.input is None and price.output is None:
        is_answered = row["outcome"] in ("succeeded", "aborted")
        return price.request if is_answered else None
    tokens, output = known("upstream_input_tokens"), known("upstream_output_tokens")
    if output is None and row["kind"] == "embedding":
        output = 0  # there is none to know
    if tokens is None or output is None:
        return None
    cached = known("upstream_cached_tokens") or 0
    cache_write = known("upstream_cache_write_tokens") or 0
    reasoning = known("upstream_reasoning_tokens") or 0
    parts = (
        (max(0, tokens - cached - cache_write), price.input),
        (cached, price.cached),
        (cache_write, price.cache_write),
        (max(0, output - reasoning), price.output),
        (reasoning, price.reasoning),
    )
    exact = 0
    for count, unit in parts:
        if count:
            if unit is None:
                return None
            exact += count * unit
    rounded = (2 * exact + TOKENS_PER_PRICE) // (2 * TOKENS_PER_PRICE)
    return int(rounded + (price.request or 0))


def most_cost(price: Price, prompt_tokens: int, output_tokens: int) -> int | None:
    """The most that a call of this size can cost, rounded up; None when it is not known.

    What a busy machine costs shows only afterwards: nothing is known of it before.
    """
    if price.energy is not None:
        return 0
    if price.input is None and price.output is None:
        return price.request
    parts = (
        (prompt_tokens, (price.input, price.cached, price.cache_write)),
        (output_tokens, (price.output, price.reasoning)),
    )
    exact = 0
    for count, units in parts:
        known = [unit for unit in units if unit is not None]
        if count and not known:
            return None
        exact += count * max(known, default=0)
    return -(-exact // TOKENS_PER_PRICE) + (price.request or 0)


def energy_cost(row: Columns, energy: EnergyPrice) -> int | None:
    """Watts × busy seconds: the engine's own times, or else the time the call took."""
    prompt_ms, total_ms = row.get("prompt_ms"), row.get("total_ms")
    if prompt_ms is not None:
        busy_ms = prompt_ms + (row.get("decode_ms") or 0)
    elif total_ms is not None:
        busy_ms = max(0, total_ms - (row.get("queue_ms") or 0))
    else:
        return None
    kwh = Fraction(energy.watts) * busy_ms / W_MS_PER_KWH
    return _half_up(kwh * Fraction(energy.per_kwh) * MICROS)


def _price_of(entry: PriceSettings) -> Price:
    if not CURRENCY.fullmatch(entry.currency):
        raise PriceFault(entry.model, "'currency' must be three letters, such as USD")
    tokens = entry.per_mtok or TokenPrices()
    input_, output = _units(entry, tokens.input), _units(entry, tokens.output)
    cached, cache_write = _units(entry, tokens.cached_input), _units(entry, tokens.cache_write)
    reasoning = _units(entry, tokens.reasoning)
    has_table = entry.per_mtok is not None or entry.per_request is not None
    for amount in (entry.energy.watts, entry.energy.per_kwh) if entry.energy else ():
        _units(entry, amount)
    return Price(
        price_id=_hash_of(entry),
        currency=entry.currency,
        since_day=entry.valid_from.toordinal() if entry.valid_from else 0,
        input=input_,
        cached=input_ if cached is None else cached,
        cache_write=input_ if cache_write is None else cache_write,
        output=output,
        reasoning=output if reasoning is None else reasoning,
        request=_units(entry, entry.per_request),
        energy=None if has_table else entry.energy,
    )


def _units(entry: PriceSettings, amount: Decimal | None) -> int | None:
    if amount is None:
        return None
    if not amount.is_finite() or amount < 0:
        raise PriceFault(entry.model, f"a price is 0 or more, not {amount}")
    units = _half_up(Fraction(amount) * MICROS)
    if units > BIG_MAX:
        raise PriceFault(entry.model, f"{amount} is more than the ledger can hold")
    return units


def _half_up(amount: Fraction) -> int:
    return floor(amount + Fraction(1, 2))


def _rank(entry: PriceSettings) -> tuple[bool, bool, int, int]:
    letters = sum(sign not in GLOB_SIGNS for sign in entry.model + entry.backend)
    since = entry.valid_from.toordinal() if entry.valid_from else 0
    return _is_exact(entry.model), _is_exact(entry.backend), since, letters


def _is_exact(name: str) -> bool:
    return GLOB_SIGNS.isdisjoint(name)


def _matcher(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name) + r"\Z" if _is_exact(name) else translate(name), re.DOTALL)


def _hash_of(entry: PriceSettings) -> str:
    """12 hex of the entry's content; an amount counts by its value, not by how it was written."""
    tokens = entry.per_mtok
    energy = entry.energy
    content = [
        entry.model,
        entry.backend,
        entry.currency,
        entry.valid_from and entry.valid_from.isoformat(),
        tokens
        and [
            _plain(price)
            for price in (
                tokens.input,
                tokens.cached_input,
                tokens.cache_write,
                tokens.output,
                tokens.reasoning,
            )
        ],
        _plain(entry.per_request),
        energy and [_plain(energy.watts), _plain(energy.per_kwh)],
    ]
    return sha256(json.dumps(content).encode()).hexdigest()[:12]


def _plain(amount: Decimal | None) -> str | None:
    return None if amount is None else f"{amount.normalize():f}"
