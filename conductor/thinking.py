"""Whether a turn may reason, and for how many tokens. Knows no client's dialect and no model.

What the client says comes first, then the kind of task, then the model's own default; who switched
reasoning off never gets it on.
"""

import math
from dataclasses import dataclass
from typing import Literal

from conductor.profiles import ThinkingRules
from proto.plan import Thinking

Effort = Literal["none", "minimal", "low", "medium", "high"]

BUDGET = 2_048  # of a turn whose kind nobody knows
SHARES: dict[Effort, float] = {
    "none": 0.0, "minimal": 0.1, "low": 0.25, "medium": 1.0, "high": 2.0,
}  # fmt: skip
OFF = Thinking(on=False)
# Where there is no profile, nobody but the client has a say.
CLIENT_RULES = ThinkingRules(mode="client")


@dataclass(frozen=True, slots=True)
class ThinkingWish:
    """What a client says about reasoning; None where it says nothing. `tokens` 0 is off."""

    is_on: bool | None = None
    tokens: int | None = None
    effort: Effort | None = None

    @property
    def is_off(self) -> bool:
        """Whether it is switched off, by any of the three."""
        return self.is_on is False or self.tokens == 0 or self.effort == "none"

    @property
    def is_silent(self) -> bool:
        """Whether nothing is said about it."""
        return self.is_on is None and self.tokens is None and self.effort is None


def thinking_of(
    wish: ThinkingWish,
    most_tokens: int | None,
    rules: ThinkingRules = CLIENT_RULES,
    *,
    class_budget: int | None = None,
    most_thinking: int | None = None,
) -> Thinking:
    """The plan for one turn. `most_tokens`: the smallest limit of the whole output, whoever set it.

    `class_budget`: tokens for this kind of task, None where there is none. `most_thinking`: tokens
    of reasoning that nobody may pass. A client that says nothing, without a class that does, leaves
    it to the model, without a budget.
    """
    if wish.is_off or (wish.is_silent and rules.mode == "off"):
        return OFF
    budget = _budget(wish, rules, class_budget)
    limits = [limit for limit in (budget, most_thinking) if limit is not None]
    if most_tokens is not None:
        reserve = max(rules.reserve_min, math.ceil(rules.reserve_share * most_tokens))
        limits.append(most_tokens - reserve)
    if not limits:
        return Thinking(on=True)
    least = min(limits)
    return Thinking(on=True, budget=least) if least > 0 else OFF


def _budget(wish: ThinkingWish, rules: ThinkingRules, class_budget: int | None) -> int | None:
    """Tokens that the client or its kind of task asks for, None where neither does."""
    if wish.tokens is not None:
        return wish.tokens
    if wish.effort is not None:
        return round(SHARES[wish.effort] * (BUDGET if class_budget is None else class_budget))
    if rules.mode != "class":
        return None
    # A class without reasoning does not switch off what the client switched on.
    return class_budget or None if wish.is_on else class_budget
