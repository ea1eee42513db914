"""Rounds in which contenders take turns, and what they say together. Knows no engine."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bench.engine.contenders import Answer, Contender

Phase = Literal["decode", "prefill"]

PROMPT = 256  # tokens


@dataclass
class Series:
    """Tokens/s of one contender, a number a round."""

    decode: list[float] = field(default_factory=list)
    prefill: list[float] = field(default_factory=list)

    def add(self, answer: Answer) -> None:
        """Takes what one answer cost."""
        self.prefill.append(PROMPT / answer.prefill_s)
        self.decode.append((len(answer.tokens) - 1) / answer.decode_s)

    def of(self, phase: Phase) -> list[float]:
        """The rounds of one phase."""
        return self.decode if phase == "decode" else self.prefill


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of two contenders, formed within each round: median, least and most."""

    middle: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} [{self.least:.2f}–{self.most:.2f}]"


def prompt_of(vocab: int) -> list[int]:
    """The same ids for everybody, without a meaning."""
    return [(7 + 37 * at) % (vocab - 100) + 50 for at in range(PROMPT)]


def alternate(
    contenders: Sequence[Contender],
    prompt: list[int],
    count: int,
    rounds: int,
    *,
    follow: list[int] | None,
    watch: Callable[[], None],
) -> dict[str, Series]:
    """Rounds, every other one in the reverse order; one before them warms up."""
    series = {contender.name: Series() for contender in contenders}
    for number in range(rounds + 1):
        for contender in contenders if number % 2 else reversed(contenders):
            answer = contender.write(prompt, count, follow)
            if number:
                series[contender.name].add(answer)
            time.sleep(0.02)  # threads of one that still spin would slow the next
        watch()
    return series


def ratio(ours: Series, theirs: Series, phase: Phase) -> Ratio:
    """How many times as fast ours is."""
    pairs = zip(ours.of(phase), theirs.of(phase), strict=True)
    found = [mine / other for mine, other in pairs]
    return Ratio(statistics.median(found), min(found), max(found))


def cell(values: list[float]) -> str:
    """Median and spread."""
    return f"{statistics.median(values):.1f} [{min(values):.1f}–{max(values):.1f}]"
