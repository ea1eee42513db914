"""Prompts that several runs share because a client asked for several answers. Knows no engine.

The first of them reads the prompt; the others wait for that and start from a copy of its state.
"""

from collections.abc import Iterable
from typing import Generic, TypeVar

from worker.run import Run

State = TypeVar("State")
Key = tuple[str, int, str]


class SharedPrompts(Generic[State]):
    """States of prompts that others still want, by prompt. Nothing of an answer is kept."""

    def __init__(self) -> None:
        self._readers: dict[Key, str] = {}
        self._kept: dict[Key, State] = {}

    def must_wait(self, run: Run) -> bool:
        """Whether another run reads this prompt just now."""
        return run.choices > 1 and self._readers.get(run.prompt_key, run.id) != run.id

    def peek(self, run: Run) -> State | None:
        """The state of the run's prompt, if another run has read it."""
        return self._kept.get(run.prompt_key) if run.choices > 1 else None

    def take(self, run: Run) -> State | None:
        """The state of the run's prompt, or None: then the run is the one that reads it."""
        if run.choices == 1:
            return None
        state = self._kept.get(run.prompt_key)
        if state is None:
            self._readers[run.prompt_key] = run.id
        return state

    def is_reader(self, run: Run) -> bool:
        """Whether others wait for what this run reads."""
        return self._readers.get(run.prompt_key) == run.id

    def keep(self, run: Run, state: State) -> None:
        """Takes what a run has read."""
        del self._readers[run.prompt_key]
        self._kept[run.prompt_key] = state

    def leave(self, run: Run, others: Iterable[Run]) -> None:
        """A run is over; what none of the others can want is dropped."""
        if self.is_reader(run):
            del self._readers[run.prompt_key]
        if run.prompt_key in self._kept and run.prompt_key not in {o.prompt_key for o in others}:
            del self._kept[run.prompt_key]
