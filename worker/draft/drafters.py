"""Which drafters a slot gets, by the settings. Knows no slot and no model."""

from collections.abc import Callable, Sequence

from proto.worker_settings import WorkerSettings
from worker.draft.base import Drafter
from worker.draft.form import FormDrafter
from worker.draft.lookup import CopyRates, LookupDrafter, Stores


def drafters_of(
    settings: WorkerSettings,
    *,
    most_rows: int,
    stores: Stores | None,
    new_block: Callable[[], Drafter] | None,
) -> Callable[[], Sequence[Drafter]]:
    """What makes the drafters of one slot, the cheapest first. They share what was learned.

    `new_block`: makes a block drafter, where there is one.
    """
    rates, lookup = CopyRates(), settings.draft.lookup

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
