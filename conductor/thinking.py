"""Whether a turn may reason, and for how many tokens. Knows no client's dialect and no model.

What the client says comes first; who switched reasoning off never gets it on.
"""

from dataclasses import dataclass
from typing import Literal

from proto.plan import Thinking

Effort = Literal["none", "minimal", "low", "medium", "high"]

BUDGET = 2_048  # of a turn whose kind nobody knows
SHARES: dict[Effort, float] = {
    "none": 0.0, "minimal": 0.1, "low": 0.25, "medium": 1.0, "high": 2.0,
}  # fmt: skip
RESERVE_TOKENS = 512  # of an answer's limit that reasoning must leave, at least,
RESERVE_SHARE = 0.25  # and this much of it where that is more


@dataclass(frozen=True, slots=True)
class ThinkingWish:
    """What a client says about reasoning; None where it says nothing. `tokens` 0 is off."""

    is_on: bool | None = None
    tokens: int | None = None
    effort: Effort | None = None


def thinking_of(wish: ThinkingWish, most_tokens: int | None) -> Thinking:
    """The plan for one turn. `most_tokens`: the answer's own limit, reasoning included.

    A client that says nothing leaves it to the model, without a budget.
    """
    if wish.is_on is False or wish.tokens == 0 or wish.effort == "none":
        return Thinking(on=False)
    budget = wish.tokens
    if budget is None and wish.effort is not None:
        budget = round(SHARES[wish.effort] * BUDGET)
    if most_tokens is not None:
        room = most_tokens - max(RESERVE_TOKENS, round(RESERVE_SHARE * most_tokens))
        if room <= 0:
            return Thinking(on=False)
        budget = room if budget is None else min(budget, room)
    return Thinking(on=True, budget=budget)
