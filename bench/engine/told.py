"""What is told of a run with speculation: tables in Markdown, ratios, verdicts. Knows no engine."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.engine.drafting import Agreement, Written
from bench.engine.levels import said
from bench.engine.rounds import Ratio, cell
from worker.speculation.prices import Prices

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
BUCKETS = ((0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 31), (32, 63))  # accepted tokens
LEAST_UNPAID = 0.98


@dataclass(frozen=True, slots=True)
class Level:
    """A ratio that is asked for. `against`: "plain", or "peer" with its lookup."""

    level: str
    against: str
    least: float


COPY = (
    Level("good", "plain", 2.5),
    Level("good", "peer", 1.0),
    Level("moonshot", "peer", 1.5),
)
FRESH = (Level("always", "plain", 0.95),)


def speeds(title: str, found: Mapping[str, Sequence[Written]], ours: str) -> list[str]:
    """A line for each contender; ours beside it, formed within each round."""
    lines = [
        f"| {title} | tokens/s | tokens a round | ms a round | {ours} / this |",
        "|---" * 5 + "|",
    ]
    for name, answers in found.items():
        rate = [made.tokens_per_s for made in answers]
        beside = "" if name == ours else str(ratio(found[ours], answers))
        per_round, ms = _per_round(answers)
        lines.append(f"| {name} | {cell(rate)} | {per_round:.2f} | {ms:.1f} | {beside} |")
    return lines


def _per_round(answers: Sequence[Written]) -> tuple[float, float]:
    """Tokens, and milliseconds by the median answer."""
    rounds = [len(made.accepted) for made in answers]
    tokens = sum(len(made.tokens) - 1 for made in answers) / sum(rounds)
    times = [made.decode_s * 1000 / len(made.accepted) for made in answers]
    return tokens, statistics.median(times)


def rounds(answers: Sequence[Written]) -> list[str]:
    """What our rounds were."""
    made = [one for answer in answers for one in answer.rounds]
    drafted = [one for one in made if one.tree.drafted]
    accepted = Counter(one.accepted for one in drafted)
    total = sum(answer.decode_s * 1000 for answer in answers) / len(made)
    times = {
        name: sum(getattr(one, f"{name}_ms") for one in made) / len(made)
        for name in ("draft", "verify", "walk", "commit")
    }
    steps = ", ".join(f"{name} {ms:.2f}" for name, ms in times.items())
    lines = [f"Mean ms of a round: {steps}, around them {total - sum(times.values()):.2f}. "]
    lines[0] += f"{len(made)} rounds, {len(made) - len(drafted)} of them plain."
    if drafted:
        rows = [len(one.tree) for one in drafted]
        off = statistics.median((one.verify_ms + one.commit_ms) / one.price_ms for one in drafted)
        histogram = ", ".join(
            f"{low if low == high else f'{low}–{high}'}: {count}"
            for low, high in BUCKETS
            if (count := sum(accepted[at] for at in range(low, high + 1)))
        )
        lines.append(
            f"Of those with a draft: {statistics.mean(rows):.1f} rows (median "
            f"{statistics.median(rows):.0f}), {sum(one.tree.is_chain for one in drafted)} chains; "
            f"accepted {statistics.mean(one.accepted for one in drafted):.1f} of "
            f"{statistics.mean(rows) - 1:.1f}, by rounds {histogram}; took {off:.2f} of the price."
        )
    return ["  \n".join(lines)]


def alone(name: str, answers: Sequence[Written]) -> str:
    """A contender that is measured in few rounds."""
    return f"{name} {cell([made.tokens_per_s for made in answers])} tokens/s"


def staircase(layout: str, prices: Prices) -> list[str]:
    """What the cut of the run went by."""
    lines = [
        f"| {layout}, ms of a round with rows | {' | '.join(map(str, ROWS))} |",
        "|---" * (len(ROWS) + 1) + "|",
    ]
    for length in (256, 1024):
        at = prices.at(length, ROWS[-1])
        for shape, column in (("chain", at.chain), ("tree", at.tree)):
            cells = [f"{at.plain:.1f}", *[f"{column[rows - 1]:.1f}" for rows in ROWS[1:]]]
            lines.append(f"| {shape} behind {length} tokens | {' | '.join(cells)} |")
    return lines


def ratio(ours: Sequence[Written], theirs: Sequence[Written]) -> Ratio:
    """How many times as fast ours is, round by round."""
    pairs = zip(ours, theirs, strict=True)
    return _spread([mine.tokens_per_s / other.tokens_per_s for mine, other in pairs])


def _spread(values: Sequence[float]) -> Ratio:
    return Ratio(statistics.median(values), min(values), max(values))


def judged(
    title: str, found: Mapping[str, Sequence[Written]], ours: str,
    names: Mapping[str, str | None], levels: Sequence[Level],
) -> list[str]:  # fmt: skip
    """A line for each level."""
    lines = []
    for level in levels:
        name = names[level.against]
        if name is None:
            lines.append(f"| {level.level} | {title} | – | ≥ {level.least} | no llama.cpp |")
            continue
        measured = ratio(found[ours], found[name])
        what = f"{title}: {ours} / {name}"
        lines.append(_verdict(level.level, what, measured, level.least))
    return lines


def overhead(name: str, ratios: Sequence[float]) -> str:
    """The line for drafters that never win."""
    what = f"{name}, one text, bf16, no draft is worth its price: with drafters / without"
    return _verdict("always", what, _spread(ratios), LEAST_UNPAID, digits=3)


def agreed(title: str, found: Agreement) -> str:
    """The line for texts that must be the same."""
    return f"| exact | {title}: {found} | – | ≤ 2 | {'holds' if found.holds else 'missed'} |"


def _verdict(level: str, what: str, found: Ratio, least: float, digits: int = 2) -> str:
    numbers = [f"{value:.{digits}f}" for value in (found.middle, found.least, found.most)]
    shown = f"{numbers[0]} [{numbers[1]}–{numbers[2]}]"
    return f"| {level} | {what} | {shown} | ≥ {least} | {said(found, least)} |"
