"""A plain host for the monitor: tokens in, verdicts and their places out."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from conductor.monitor.policy import Monitor
from conductor.monitor.tasks import monitor_plan
from conductor.monitor.verdicts import Block, Continue, Phase, PromptFacts, Verdict
from proto.plan import MonitorPlan, MonitorTask

_TOKEN = re.compile(r"[ ]?\w{1,8}|[ ]?[^\w\s]{1,4}|\n+|[ \t]{1,8}|\s")


def tokens_of(text: str) -> list[str]:
    """A text cut about as tokenizers cut it."""
    return _TOKEN.findall(text)


def plan_with(
    tasks: Mapping[str, str] | None = None,
    params: Mapping[str, Mapping[str, object]] | None = None,
    **limits: int,
) -> MonitorPlan:
    """All tasks off but these."""
    own = params or {}
    modes = dict.fromkeys(monitor_plan({}).tasks, "off") | dict(tasks or {})
    overrides = {
        name: MonitorTask(mode, dict(own.get(name, {})))  # type: ignore[arg-type]
        for name, mode in modes.items()
    }
    return monitor_plan(overrides, **limits)


def facts(**given: object) -> PromptFacts:
    """Facts of a prompt, with reasoning on."""
    return PromptFacts(**{"prompt_tokens": 10, "room": 100_000, "is_thinking": True} | given)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Seen:
    """A verdict that is not Continue, and behind which token it came."""

    at: int
    verdict: Verdict


def watch(
    monitor: Monitor,
    tokens: Iterable[tuple[Phase, str]],
    cut: Callable[[int], int] = lambda horizon: horizon,
) -> Seen | None:
    """Feeds tokens in blocks within the horizon until a verdict other than Continue comes."""
    waiting = list(tokens)
    at = 0
    while at < len(waiting):
        most = max(1, min(cut(monitor.horizon()), monitor.horizon()))
        walk = waiting[at : at + most]
        while walk:
            phase = walk[0][0]
            same = next((i for i, (other, _) in enumerate(walk) if other != phase), len(walk))
            block = Block(phase, "".join(text for _, text in walk[:same]), same, 1000)
            at += same
            verdict = monitor.on_block(block)
            if not isinstance(verdict, Continue):
                return Seen(at, verdict)
            walk = walk[same:]
    return None


def reasoning(text: str) -> list[tuple[Phase, str]]:
    """Tokens of a text, all of them reasoning."""
    return [("reasoning", token) for token in tokens_of(text)]
