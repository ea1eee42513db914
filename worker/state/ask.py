"""What is asked of the kept states when a prompt is to be read. Knows no slot and no tensor."""

from dataclasses import dataclass

from worker.sampling.chooser import Chooser


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt that needs a slot.

    `cuts`: chunk starts beside the grid. `salt`: whose kept states it may use and leave some; None
    for none. `output`: tokens it may write. `is_side`: in the lane of short requests. `is_shared`:
    another run has read the prompt and hands its state over.
    """

    prompt: tuple[int, ...]
    chooser: Chooser
    cuts: tuple[int, ...] = ()
    salt: str | None = None
    output: int = 0
    is_side: bool = False
    is_shared: bool = False
