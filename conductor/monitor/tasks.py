"""The monitor's tasks: what each is called, how it is set, where it stands. Knows no text.

Parameters are starting values, to be tuned from what shadow hits show. A new task starts in shadow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from proto.chat import Json
from proto.plan import MonitorPlan, MonitorTask

Mode = Literal["off", "shadow", "act"]
Point = Literal["block", "calls", "end"]


@dataclass(frozen=True, slots=True)
class Task:
    """One task. `a_turn`: how often it acts in one request, None for as often as it must.

    `shares`: the task whose count it shares. `can_act`: False where nothing is decided yet.
    `on_reasoning`: it acts before a constraint begins, so in constrained answers too.
    """

    mode: Mode
    points: tuple[Point, ...]
    params: Mapping[str, Json] = field(default_factory=dict)
    a_turn: int | None = None
    shares: str | None = None
    can_act: bool = True
    on_reasoning: bool = False


# Words of ours that the model reads as its own, hidden from the client.
LOOP_BRIDGE = "\n\nI am repeating myself. I have thought enough and will answer now.\n"
NUDGE = "Going on with the answer now.\n\n"
SAME_CALL_NOTE = "This call was made before, with the same result. I do something else now.\n\n"

TASKS: Mapping[str, Task] = {
    "D1": Task(
        "act",
        ("block",),
        {
            "unit_pieces": 24,  # about a long sentence: no phrase of that length recurs by chance
            "sentence_chars": 40,  # shorter ones ("Let me check.") recur in any reasoning
            "times": 4,  # twice is emphasis, three times a list
            "window_pieces": 1024,  # farther apart is a refrain, not a loop
            "new_share": 0.25,  # of 4-grams in between: a poem brings 0.4 and more, a loop none
            "prose_share": 0.7,  # words among pieces; code, tables and logs have under 0.6
            "distinct_pieces": 8,  # in a unit: what has fewer is for the cycle to judge
            "cycle_period": 64,
            "cycle_pieces": 512,  # over 256 equal tokens are still a rightful line of signs
            "cycle_tokens": 320,  # because one token may be sixteen signs
            "long_period": 256,  # a cycle of many different pieces, as formulas make
            "long_distinct": 16,  # maps and grids have fewer signs than that
            "long_times": 4,
            "bridge": LOOP_BRIDGE,
        },
        a_turn=1,
        on_reasoning=True,
    ),
    "D1b": Task(
        "act",
        ("block",),
        {
            "new_share": 0.15,  # prose keeps 0.6 to 0.9, legal boilerplate 0.3
            "window_pieces": 768,  # three or four paragraphs
            "min_tokens": 1536,  # before that a first summary would look the same
            "prose_share": 0.7,
            "bridge": LOOP_BRIDGE,
        },
        a_turn=1,
        shares="D1",
        on_reasoning=True,
    ),
    "D2": Task(
        "act",
        ("block",),
        {
            "line_end_tokens": 32,  # a sentence more or less; then it ends where it stands
            "bridge": "",  # the budget was planned: nothing needs an excuse
        },
        a_turn=1,
        on_reasoning=True,
    ),
    "D3": Task(
        "shadow",
        ("block",),
        {
            "close_markers": 3,  # one is a slip, two are a slip repeated
            "close_marker": "</think>",
            "paragraph_pieces": 200,
            "times": 4,
            "prose_share": 0.7,
        },
        a_turn=1,
    ),
    "E1": Task("act", ("end",), {"bridge": "", "nudge": NUDGE}, a_turn=1),
    "E2": Task("shadow", ("end",), {"tail_chars": 400}, can_act=False),
    "C1": Task("act", ("calls",)),
    "C2": Task(
        "shadow",
        ("end",),
        {
            "tail_chars": 8192,  # of the reasoning, in which a call is looked for
            "bridge": "",
        },
        a_turn=1,
    ),
    "C3": Task("act", ("calls",), {"rename_edits": 1}, a_turn=2),
    "C4": Task(
        "shadow",
        ("block", "calls"),
        {
            "line_repeats": 16,
            "line_chars": 8,  # shorter lines (`}`, `end`) recur in any program
            "unit_pieces": 64,
            "unit_distinct": 16,  # in a unit: grids and maps have fewer
            "min_tokens": 2048,
            "same_calls": 3,
            "note": SAME_CALL_NOTE,
        },
        a_turn=1,
    ),
    "C5": Task(
        "shadow",
        ("calls",),
        {"verbs": ["send", "schedule", "create", "write", "delete"], "tools": []},
    ),
    "C6": Task("shadow", ("end",)),
    "M1": Task(
        "shadow",
        ("block",),
        {
            "min_chars": 20,
            "min_bits": 4.0,  # a character; hashes in hex have under 4, words under 3.5
            "shown_chars": 4,
            "most_secrets": 32,
        },
    ),
}

_KINDS = {int: "a whole number", float: "a number", str: "text", list: "a list of texts"}


@dataclass(frozen=True, slots=True)
class OverrideFault:
    """What is wrong with a profile's override. `path`: keys from `tasks` on.

    `known`: the names that would fit there, empty where the name is right and the value is not.
    """

    path: tuple[str, ...]
    sentence: str
    known: tuple[str, ...] = ()


def override_faults(overrides: Mapping[str, MonitorTask]) -> tuple[OverrideFault, ...]:
    """Everything that is wrong with overrides of tasks; empty when they can be used."""
    faults: list[OverrideFault] = []
    for name, override in overrides.items():
        task = TASKS.get(name)
        if task is None:
            faults.append(_unknown((name,), "task", tuple(TASKS)))
            continue
        if override.mode not in ("off", "shadow", "act"):
            sentence = f"mode {override.mode!r} is none of off, shadow, act"
            faults.append(OverrideFault((name, "mode"), sentence, ("off", "shadow", "act")))
        elif override.mode == "act" and not task.can_act:
            sentence = f"task {name} has no act yet; known modes: off, shadow"
            faults.append(OverrideFault((name, "mode"), sentence, ("off", "shadow")))
        for key, value in (override.params or {}).items():
            path = (name, "params", key)
            if key not in task.params:
                faults.append(_unknown(path, "parameter", tuple(task.params)))
            elif (wrong := _wrong_value(value, task.params[key])) is not None:
                faults.append(OverrideFault(path, f"{'.'.join(path)}: {wrong}"))
    return tuple(faults)


def monitor_plan(
    overrides: Mapping[str, MonitorTask],
    *,
    continuations: int = 2,
    regenerations: int = 1,
    hidden_tokens: int = 2048,
) -> MonitorPlan:
    """The plan of one request: every task, with a profile's overrides in place.

    Overrides must be without fault (`override_faults`). Starting values are not in it: whoever runs
    a task has them (`Params`).
    """
    tasks = {name: overrides.get(name, MonitorTask(task.mode)) for name, task in TASKS.items()}
    return MonitorPlan(tasks, continuations, regenerations, hidden_tokens)


def _unknown(path: tuple[str, ...], noun: str, known: tuple[str, ...]) -> OverrideFault:
    names = ", ".join(known) or "none"
    return OverrideFault(path, f"unknown {noun} {'.'.join(path)!r}; known: {names}", known)


def _wrong_value(value: Json, start: Json) -> str | None:
    kind = type(start)
    expected = f"expected {_KINDS[kind]}"
    if isinstance(start, list):
        are_texts = isinstance(value, list) and all(isinstance(text, str) for text in value)
        return None if are_texts else expected
    fits = isinstance(value, (int, float) if kind is float else kind)
    if not fits or isinstance(value, bool):
        return expected
    if isinstance(value, int | float) and not 0 <= value <= 1_000_000:
        return "expected a number from 0 to 1,000,000"
    return None


class Params:
    """The parameters of one task of a plan, starting values where it names none."""

    def __init__(self, name: str, task: MonitorTask) -> None:
        self._values = {**TASKS[name].params, **(task.params or {})}

    def count(self, key: str) -> int:
        """A whole number."""
        value = self._values[key]
        assert isinstance(value, int)
        return value

    def share(self, key: str) -> float:
        """A number."""
        value = self._values[key]
        assert isinstance(value, int | float)
        return value

    def text(self, key: str) -> str:
        """A text."""
        value = self._values[key]
        assert isinstance(value, str)
        return value

    def names(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        value = self._values[key]
        assert isinstance(value, list)
        return tuple(str(name) for name in value)
