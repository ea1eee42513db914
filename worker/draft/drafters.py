"""Which drafters a slot gets, by the settings. Knows no slot and no model."""

from collections.abc import Callable, Sequence

from proto.worker_settings import LookupSettings, WorkerSettings
from worker.draft.base import Drafter
from worker.draft.form import FormDrafter
from worker.draft.lookup import CopyRates, LookupDrafter, Stores
from worker.draft.ngrams import MOST_COMPARED, SHORT
from worker.faults import StartFault


def drafters_of(
    settings: WorkerSettings,
    *,
    most_rows: int,
    stores: Stores | None,
    new_block: Callable[[], Drafter] | None,
) -> Callable[[], Sequence[Drafter]]:
    """What makes the drafters of one slot, the cheapest first. They share what was learned.

    `new_block`: makes a block drafter, where there is one.

    Raises: StartFault for numbers with which nothing would ever be copied.
    """
    rates, lookup = CopyRates(), settings.draft.lookup
    _check(lookup, most_rows)

    def new() -> Sequence[Drafter]:
        if not settings.speculation.enabled:
            return ()
        drafters: list[Drafter] = [FormDrafter()]
        if lookup.enabled:
            drafters.append(
                LookupDrafter(
                    rates,
                    most_rows=most_rows,
                    least_match=lookup.min_match,
                    least_expected=lookup.min_expected,
                    stores=stores,
                )
            )
        if new_block is not None:
            drafters.append(new_block())
        return drafters

    return new


def _check(lookup: LookupSettings, most_rows: int) -> None:
    if not SHORT <= lookup.min_match <= MOST_COMPARED:
        raise StartFault(
            f"worker.draft.lookup.min_match is {lookup.min_match}; it must be {SHORT} to "
            f"{MOST_COMPARED}."
        )
    if not 0.0 <= lookup.min_expected < most_rows:
        raise StartFault(
            f"worker.draft.lookup.min_expected is {lookup.min_expected}; it must be at least 0 and "
            f"below the {most_rows} rows of worker.speculation.max_rows."
        )
