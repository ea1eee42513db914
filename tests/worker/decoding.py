"""Decoding by hand: a real engine, rounds of one sequence, what they chose."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from worker.engine import Engine
from worker.prefill import plan
from worker.sampling.chooser import Chooser, Chosen
from worker.speculation.drafting import Drafting
from worker.speculation.round import Round
from worker.state.anchors import Anchors
from worker.state.ask import Ask
from worker.state.cache import SequenceCache
from worker.state.slot import Slot

NO_DRAFTS = Drafting((), (), lambda: 0.0)
SALTS = map("nobody-{}".format, count())


def opened(engine: Engine, prompt: tuple[int, ...], chooser: Chooser, **more: Any) -> Slot:
    """A slot for a prompt; of a tenant who never came before where no `salt` is given."""
    return engine.open(Ask(prompt, chooser, **{"salt": next(SALTS), **more}))


def begun(
    cache: SequenceCache, drafting: Drafting, prompt: Sequence[int], chooser: Chooser
) -> Slot:
    """A slot without an engine, for a prompt of which nothing is forwarded."""
    slot = Slot(cache, drafting, Anchors(most=4, tail=4))
    slot.begin(tuple(prompt), chooser, plan(len(prompt), "any", 32), None)
    return slot


def read(engine: Engine, slot: Slot) -> int:
    """Reads the slot's prompt by the engine's plan; the first token."""
    length = len(slot.ctx)
    chosen = None
    while chosen is None:
        chosen = engine.read_chunk(slot, slot.plan.chunk_end(slot.kv_len, length))
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
