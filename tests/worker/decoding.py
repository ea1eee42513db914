"""Decoding by hand: a real engine, rounds of one sequence, what they chose."""

from collections.abc import Sequence

from worker.engine import Engine
from worker.sampling.chooser import Chosen
from worker.speculation.drafting import Drafting
from worker.speculation.round import Round
from worker.state.slot import Slot

NO_DRAFTS = Drafting((), (), lambda: 0.0)


def read(engine: Engine, slot: Slot) -> int:
    """Reads the slot's prompt by the engine's plan; the first token."""
    length = len(slot.ctx)
    plan, chosen = engine.plan(tuple(slot.ctx)), None
    while chosen is None:
        chosen = engine.read_chunk(slot, plan.chunk_end(slot.kv_len, length))
    return chosen.token


def chosen_in(engine: Engine, slot: Slot, count: int) -> list[Chosen]:
    """The next `count` tokens, in as many rounds as that takes."""
    return [chosen for _, some in rounds(engine, slot, count) for chosen in some]


def write_on(engine: Engine, slot: Slot, count: int) -> list[int]:
    """The ids of the same."""
    return [chosen.token for chosen in chosen_in(engine, slot, count)]


def rounds(engine: Engine, slot: Slot, count: int) -> list[tuple[Round, Sequence[Chosen]]]:
    """The rounds that write the next `count` tokens."""
    made: list[tuple[Round, Sequence[Chosen]]] = []
    left = count
    while left:
        some: list[Chosen] = []

        def take(chosen: Chosen, some: list[Chosen] = some) -> bool:
            some.append(chosen)
            return True

        done = engine.round(slot, left, take)
        assert tuple(chosen.token for chosen in some) == done.tokens
        assert len(slot.ctx) == slot.kv_len + 1
        made.append((done, some))
        left -= len(some)
    return made
