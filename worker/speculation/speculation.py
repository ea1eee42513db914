"""What an engine's rounds are planned by. Knows no sequence and no model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from worker.draft.base import Drafter
from worker.draft.suffix_store import SuffixStores
from worker.speculation.cut import Bounds
from worker.speculation.prices import Prices
from worker.state.slot import Slot


@dataclass(frozen=True, slots=True)
class Speculation:
    """What rounds are planned by. `new_drafters`: those of one slot; `drafter_bytes`: what they
    hold of a sequence of so many tokens. `stores`: texts of earlier sequences to copy from; of the
    prompts too if `are_prompts_kept`."""

    prices: Prices
    bounds: Bounds
    new_drafters: Callable[[], Sequence[Drafter]]
    drafter_bytes: Callable[[int], int] = lambda length: 0
    stores: SuffixStores | None = None
    are_prompts_kept: bool = False

    def keep(self, slot: Slot) -> None:
        """Adds what a sequence wrote to the store of its salt."""
        if self.stores is None or slot.salt is None:
            return
        store = self.stores.of(slot.salt)
        if store is not None:
            store.add(slot.ctx[0 if self.are_prompts_kept else slot.prompt_length :])
