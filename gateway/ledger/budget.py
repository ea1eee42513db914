"""The budgets of client keys: who may still spend, and what is spent. Knows no HTTP and no body.

Before a request is sent on, the most it can cost is held in memory; when it ends, what it cost
takes the place of the hold. What was spent is what the ledger says: the writer's thread adds it up
at the start, each minute, and before a key is refused. It does so between two of its own
transactions, so of every row it is known whether the reading has it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from decimal import Decimal
from threading import Lock
from typing import Protocol

import structlog

from gateway.errors import ApiError
from gateway.ledger.account import Account, State
from gateway.ledger.clock import Clock
from gateway.ledger.entry import Entry
from gateway.ledger.prices import FREE_KINDS, PriceList, most_cost
from gateway.ledger.row import COLUMNS, Bound, Columns, fitted, unbound
from gateway.ledger.window import WORDS, start_ms
from gateway.settings.types import BudgetSettings
from gateway.store.connection import WriteConnection
from gateway.store.statements import BRIEF

log = structlog.get_logger(__name__)

FRESH_S = 1.0  # a reading that is older is made anew before a request is refused
FIRST_READING_WAIT_S = 5.0  # after a start; a database that is known to be away is not waited for
READING_WAIT_S = 1.0
READ_AGAIN_S = 10.0  # after a fault
OUTPUT_TOKENS = 4_096  # of an answer without a limit, at least: the default of many providers
RECENT = 64  # answers of a key and model, of which the largest counts
MOST_MODELS = 1_000  # of which this is remembered, or which were named in the log
_CLIENT_AT = {len(names): names.index("client_id") for names in (BRIEF, COLUMNS)}


class RequestSize(Protocol):
    """As `gateway.surfaces.size` finds it."""

    @property
    def prompt_tokens(self) -> int:
        """Estimated from the text."""

    @property
    def answers(self) -> int:
        """How many are asked for at once."""


@dataclass(eq=False, slots=True)
class Reserve:
    """What one request holds of its key's budget, until it has ended."""

    budgets: "Budgets"
    account: Account
    answers: int
    is_settled: bool = False

    def settle(self, entry: Entry) -> None:
        """Puts what the request cost in the place of what it held, once. The entry is closed."""
        if not self.is_settled:
            self.is_settled = True
            self.budgets.end(self, entry)


class Budgets:
    """Every key's budget. Requests are admitted in the event loop, rows noted by the writer.

    `settle_ended`: settles requests that have ended and are gathered somewhere.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()  # of the accounts; held for a few instructions at a time
        self._accounts: dict[str, Account] = {}
        self._prices = PriceList(())
        self._wake_reader: Callable[[], None] | None = None
        self.settle_ended: Callable[[], None] = _nothing
        self._is_away = False  # the database: it is not waited for
        self._not_before_s = 0.0
        self._recent: dict[tuple[str, str | None, str | None], deque[int]] = {}
        self._unpriced: set[tuple[str | None, str | None]] = set()

    def read_by(self, wake: Callable[[], None]) -> None:
        """A writer will read. `wake`: makes it look soon whether something is due."""
        self._wake_reader = wake

    def use(self, budgets: Mapping[str, BudgetSettings], prices: PriceList) -> None:
        """Takes the budgets of a configuration, by client id; keys that stay keep their sums."""
        accounts = {}
        with self._lock:
            for client_id, budget in budgets.items():
                account = self._accounts.get(client_id)
                if account is None:
                    account = Account(budget, is_recorded=self._wake_reader is not None)
                else:
                    account.change(budget)
                accounts[client_id] = account
            is_first = bool(accounts) and not self._accounts
            self._accounts, self._prices = accounts, prices
            self._unpriced.clear()
        if self._wake_reader is not None:
            self._wake_reader()
        elif is_first:
            log.warning("budget.unrecorded", key_count=len(accounts))

    def state(self, client_id: str) -> State | None:
        """What a key has spent and reserved, None when it has no budget."""
        account = self._accounts.get(client_id)
        return None if account is None else self._state(account)

    # A request, in the event loop.

    async def admit(self, entry: Entry, size: RequestSize) -> Reserve | None:
        """Holds the most that this request can cost; None when nothing can be charged for it.

        Waits for the database only where the key would be refused, and after a start.

        Raises: ApiError 429 `insufficient_quota`; 403 for what costs money that nobody could book.
        """
        account = self._accounts.get(entry.client_id)
        if account is None or entry.kind in FREE_KINDS:
            return None
        if entry.upstream_model is None:
            raise _unbookable()
        most = self._most(account, entry, size)
        if account.is_recorded and account.read_s is None:
            await self._read(account, FIRST_READING_WAIT_S)
        reserve = Reserve(self, account, size.answers)
        if self._is_held(account, reserve, most):
            return reserve
        self.settle_ended()  # a client may have its answer, and its money not yet back
        if self._is_held(account, reserve, most):
            return reserve
        if account.is_recorded and account.is_older(FRESH_S, self._clock.now_s()):
            await self._read(account, READING_WAIT_S)
            if self._is_held(account, reserve, most):
                return reserve
        raise _used_up(account.budget, self._state(account), most)

    def end(self, reserve: Reserve, entry: Entry) -> None:
        """A request that held something has ended. For `Reserve.settle`."""
        account = reserve.account
        micros = 0
        try:
            row = fitted(entry.values())
            self._prices.price(row)
            micros = _micros(row, account.budget)
            self._note_output(entry, reserve.answers)
        except Exception:
            # Whatever cannot be priced must be released all the same.
            log.exception("budget.not_priced", request_id=entry.request_id)
        with self._lock:
            account.end(reserve, entry.request_id, entry.ts_ms, micros)

    def _is_held(self, account: Account, reserve: Reserve, most: int) -> bool:
        now_ms, now_s = self._clock.now_ms(), self._clock.now_s()
        with self._lock:
            state = account.state(now_ms, now_s)
            if state.spent + state.reserved + most > state.limit:
                return False
            account.hold(reserve, most, now_s)
            return True

    def _state(self, account: Account) -> State:
        now_ms, now_s = self._clock.now_ms(), self._clock.now_s()
        with self._lock:
            return account.state(now_ms, now_s)

    def _most(self, account: Account, entry: Entry, size: RequestSize) -> int:
        """The worst case in micros; 0 where it is not known what the model costs."""
        output = 0
        if entry.kind != "embedding":
            output = (entry.max_tokens or self._usual_output(entry)) * size.answers
        price = self._prices.find(entry.backend, entry.upstream_model, entry.ts_ms)
        if price is not None and price.currency == account.budget.currency:
            most = most_cost(price, size.prompt_tokens, output)
            if most is not None:
                return most
        model = (entry.backend, entry.upstream_model)
        if model not in self._unpriced and len(self._unpriced) < MOST_MODELS:
            self._unpriced.add(model)
            log.warning("budget.price_unknown", backend=model[0], model=model[1])
        return 0

    def _usual_output(self, entry: Entry) -> int:
        """The largest of this key's last answers by the model, and never less than many give."""
        recent = self._recent.get((entry.client_id, entry.backend, entry.upstream_model), ())
        return max(OUTPUT_TOKENS, max(recent, default=0))

    def _note_output(self, entry: Entry, answers: int) -> None:
        if (tokens := entry.upstream_output_tokens) is None:
            return
        model = (entry.client_id, entry.backend, entry.upstream_model)
        if (recent := self._recent.get(model)) is None:
            if len(self._recent) >= MOST_MODELS:
                self._recent.clear()
            recent = self._recent[model] = deque(maxlen=RECENT)
        recent.append(-(-tokens // answers))

    async def _read(self, account: Account, most_s: float) -> None:
        """Waits until the database was read, unless it is away or takes too long."""
        with self._lock:
            if account.reading is None:
                account.reading = Future()
            reading = account.reading
        if self._wake_reader is not None:
            self._wake_reader()
        if not self._is_away:
            await asyncio.wait([asyncio.wrap_future(reading)], timeout=most_s)

    # The ledger, in the writer's thread.

    def note_written(self, rows: Sequence[Bound]) -> None:
        """These rows are in the database."""
        accounts = self._accounts
        if not accounts:
            return
        for row in rows:
            if (account := accounts.get(row[_CLIENT_AT[len(row)]])) is not None:
                columns = unbound(row)
                micros = _micros(columns, account.budget)
                with self._lock:
                    account.note_written(columns["request_id"], columns["ts_ms"], micros)

    def note_away(self) -> None:
        """The database takes no rows now: nobody waits for what it says."""
        self._is_away = True
        self._release([*self._accounts.values()])

    def read_if_due(self, writer: WriteConnection) -> None:
        """Adds up what the keys have spent, where it is due. A fault is logged, and tried again."""
        now_s = self._clock.now_s()
        due = [item for item in self._accounts.items() if item[1].is_due(now_s)]
        if not due or now_s < self._not_before_s:
            return
        now_ms = self._clock.now_ms()
        found = []
        try:
            with writer.transaction() as cursor:
                for client_id, account in due:
                    budget = account.budget
                    since_ms = start_ms(budget.window, now_ms)
                    values = (client_id, budget.currency, since_ms)
                    cursor.execute(writer.statements.read_spend, values)
                    found.append((account, budget, int(cursor.fetchone()[0]), since_ms))
        except writer.driver.Error as fault:
            self._not_before_s = now_s + READ_AGAIN_S
            log.error("budget.not_read", reason=writer.reason_of(fault))
            self.note_away()
            return
        self._is_away = False
        with self._lock:
            for account, budget, micros, since_ms in found:
                if account.budget is budget:  # else the reading is of another window
                    account.take_reading(micros, since_ms, now_s)
        self._release([account for account, *_ in found])

    def _release(self, accounts: Sequence[Account]) -> None:
        """Lets those go on who wait for a reading."""
        for account in accounts:
            with self._lock:
                reading, account.reading = account.reading, None
            if reading is not None:
                reading.set_result(None)


def _nothing() -> None:
    """There is nobody who gathers."""


def _micros(row: Columns, budget: BudgetSettings) -> int:
    """What a row counts in a budget: as `read_spend` adds it up."""
    if row.get("billed") != 1 or row.get("currency") != budget.currency:
        return 0
    return row.get("cost_micros") or 0


def _unbookable() -> ApiError:
    message = (
        "This API key has a budget; what a file or a batch costs cannot be counted against it."
    )
    return ApiError(403, "model_not_allowed", message)


def _used_up(budget: BudgetSettings, state: State, most: int) -> ApiError:
    message = (
        f"The budget of this API key does not cover this request: {_amount(state.limit)} "
        f"{budget.currency} {WORDS[budget.window]}, {_amount(state.spent)} spent and "
        f"{_amount(state.reserved)} reserved by running requests; this one may cost up to "
        f"{_amount(most)}. Ask for fewer tokens (max_tokens), or wait until less is spent."
    )
    return ApiError(429, "insufficient_quota", message, may_retry=False)


def _amount(micros: int) -> str:
    return f"{Decimal(micros).scaleb(-6).normalize():f}"
