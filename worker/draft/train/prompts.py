"""What the target is asked, so that it writes text of its own. Knows no model and no tensor."""

import random
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from proto.chat import Call, Message, TextPart
from worker.faults import StartFault
from worker.text.prompt import PromptWriter

SEEDS = "seeds.txt"
BLANK = "{}"
# Which lines are combined with which.
COMBINED = {"forms": "topics", "tasks": "things"}


def read_prompts(path: Path | None) -> list[str]:
    """One prompt a line, of a file or of every `.txt` file in a folder; ours where none is named.

    Raises: StartFault where there is nothing to read.
    """
    if path is None:
        return seed_prompts()
    paths = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    try:
        lines = [line.strip() for each in paths for line in each.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as fault:
        raise StartFault(f"The prompts in {str(path)!r} cannot be read: {fault}.") from fault
    prompts = list(dict.fromkeys(line for line in lines if line))
    if not prompts:
        raise StartFault(f"{str(path)!r} holds no prompt; write one a line, in files named *.txt.")
    return prompts


def seed_prompts() -> list[str]:
    """Our own prompts, all different."""
    sections: dict[str, list[str]] = {}
    for line in files("worker.draft.train").joinpath(SEEDS).read_text("utf-8").splitlines():
        if line.startswith("["):
            lines = sections[line.strip("[]")] = []
        elif line and not line.startswith("#"):
            lines.append(line)
    prompts = list(sections["prompts"])
    for forms, topics in COMBINED.items():
        prompts += [
            form.replace(BLANK, topic) for form in sections[forms] for topic in sections[topics]
        ]
    return prompts


def shuffled(prompts: list[str], seed: int) -> list[str]:
    """The same in an order that depends on the seed alone."""
    order = list(prompts)
    random.Random(seed).shuffle(order)
    return order


def encoded(prompts: list[str], writer: PromptWriter, longest: int) -> Iterator[tuple[int, ...]]:
    """The ids of each prompt as a conversation of one message; () where they are too many."""
    for text in prompts:
        call = Call("", (Message("user", (TextPart(text),)),))
        ids = writer.write(call, is_thinking=False).ids
        yield ids if len(ids) <= longest else ()
