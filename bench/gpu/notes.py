"""What a part of the check finds, told piece by piece. Knows no part.

A part runs in a process of its own and may be ended by its limit: what it told before stays.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

Outcome = Literal["finished", "timed out", "crashed"]


@dataclass(frozen=True, slots=True)
class Stage:
    """What a part runs on. `is_tiny`: small shapes, to try the check itself."""

    device: torch.device
    is_tiny: bool

    @property
    def is_cuda(self) -> bool:
        """Whether the device counts its memory and works behind our back."""
        return self.device.type == "cuda"


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must hold: an error (or a count) of at most `limit`."""

    what: str
    error: float
    limit: float

    @property
    def holds(self) -> bool:
        """NaN never does."""
        return self.error <= self.limit


@dataclass(frozen=True, slots=True)
class Number:
    """Something measured, which is neither right nor wrong."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Remark:
    """A few words for the part's line."""

    text: str


@dataclass(frozen=True, slots=True)
class Crash:
    """A part's fault."""

    text: str


Note = Check | Number | Remark | Crash


class Notes:
    """What a part writes into."""

    def __init__(self, send: Callable[[Note], None]) -> None:
        self._send = send

    def check(self, what: str, error: float, limit: float) -> None:
        """Tells of something that must hold."""
        self._send(Check(what, error, limit))

    def number(self, name: str, value: Any) -> None:
        """Tells of a measurement. value: anything that JSON can hold."""
        self._send(Number(name, value))

    def remark(self, text: str) -> None:
        """Adds a few words to the part's line."""
        self._send(Remark(text))


def worst(errors: Iterable[float]) -> float:
    """The largest; NaN if one is, which `max` might pass by."""
    return float(torch.tensor(list(errors), dtype=torch.float64).max())


@dataclass(slots=True)
class Found:
    """All that one part told, and how it ended."""

    outcome: Outcome = "crashed"
    seconds: float = 0.0
    fault: str = ""
    checks: list[Check] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def add(self, note: Note) -> None:
        """Takes in what the part told."""
        match note:
            case Check():
                self.checks.append(note)
            case Number(name, value):
                self.numbers[name] = value
            case Remark(text):
                self.remarks.append(text)
            case Crash(text):
                self.fault = text
