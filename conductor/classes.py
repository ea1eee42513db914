"""The kinds of task a turn can be of, and what makes a set of them usable. Knows no text of a turn.

First letters differ, so that the served model tells a class with its first token or two.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from conductor.profiles import TaskClass

MOST_CLASSES = 12
NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")  # so that a choice of names is a few plain tokens

# What profiles start from. Budgets are starting values; the sentences go into notes.
CLASSES: Mapping[str, TaskClass] = {
    "chat": TaskClass("small talk, opinion, short exchange", 512, "Keep it natural and short."),
    "fact": TaskClass("one fact or definition", 256, "Answer at once; think only to be sure."),
    "write": TaskClass(
        "prose, mail, translation, summary", 1_024, "Settle the shape briefly, then write."
    ),
    "edit": TaskClass(
        "change existing code", 2_048, "Read before changing; change only what is asked."
    ),
    "build": TaskClass(
        "write new code or a program", 4_096, "Settle the structure first, then write it whole."
    ),
    "debug": TaskClass(
        "find why something fails", 6_144, "Take one hypothesis at a time and test it."
    ),
    "review": TaskClass("judge code or text", 6_144, "Look for what is wrong before what is nice."),
    "plan": TaskClass(
        "design, compare, decide", 4_096, "Weigh two or three ways, then choose one."
    ),
    "math": TaskClass("calculation, data, proof", 8_192, "Work step by step and check the result."),
    "agent": TaskClass(
        "many tool steps, research",
        3_072,
        "Decide the next single step; do not plan it all again.",
    ),
    "other": TaskClass("none of these", 2_048),
}


@dataclass(frozen=True, slots=True)
class ClassFault:
    """Why a set of classes cannot be used. `name`: the class, None for the set as a whole."""

    name: str | None
    message: str


def faults_of(classes: Mapping[str, TaskClass]) -> Iterator[ClassFault]:
    """Everything that is wrong with a set; nothing where it can be used."""
    if len(classes) > MOST_CLASSES:
        yield ClassFault(None, f"at most {MOST_CLASSES} classes, found {len(classes)}")
    first_letters: dict[str, str] = {}
    for name, task_class in classes.items():
        if not NAME.fullmatch(name):
            yield ClassFault(name, "a name has a-z, 0-9, '-' and '_', 32 of them at most")
        elif name[0] in first_letters:
            other = first_letters[name[0]]
            yield ClassFault(name, f"it begins with the same letter as {other!r}")
        else:
            first_letters[name[0]] = name
        if not task_class.meaning.strip():
            yield ClassFault(name, "key 'meaning' is missing")
        if "\n" in task_class.meaning:
            yield ClassFault(name, "the meaning is one line of the question to the classifier")
        if task_class.budget < 0:
            yield ClassFault(name, f"budget: expected at least 0, found {task_class.budget}")
