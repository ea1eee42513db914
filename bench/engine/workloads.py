"""What is written when speculation is measured: prompts, and the texts that all commit.

Knows a tokenizer and a template; no engine.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from proto.chat import Call, Message, TextPart
from worker.loading.locate import Checkpoint
from worker.text.prompt import PromptWriter
from worker.text.sources import template_of, tokenizer_of

TEXTS = Path(__file__).with_name("texts")
MODEL = "smollm2"  # whose template it is
MOST_COPIED, MOST_FRESH = 420, 160  # tokens of an answer
# A rename and two small changes, all within the part that is written.
EDITS = (
    ("Reader", "Member"),
    ("LOAN_DAYS = 21", "LOAN_DAYS = 28"),
    ("default=1000) + 1", "default=5000) + 1"),
)
BETWEEN = "That is how it begins. The text goes on with what the water did:"
EDIT = "Write this Python file again, with the class `Reader` renamed to `Member`, loans of 28 days"
COPY = "Repeat this Python file, with `Reader` renamed to `Member`:"


@dataclass(frozen=True, slots=True)
class Task:
    """One answer to be written. `follow`: the text that all commit; None where each writes its own,
    until one of `ends`."""

    prompt: tuple[int, ...]
    count: int
    follow: tuple[int, ...] | None = None
    ends: frozenset[int] = frozenset()

    def first(self, count: int) -> "Task":
        """A part of it."""
        count = min(count, self.count)
        return replace(self, count=count, follow=self.follow and self.follow[:count])


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of work. `is_copy`: most of the answer stands in the prompt."""

    name: str
    is_copy: bool
    forced: Task
    free: Task


def workloads_of(checkpoint: Checkpoint) -> list[Workload]:
    """All of them, in the tokens of a model with a chat template."""
    text = checkpoint.text
    writer = PromptWriter(tokenizer_of(text), template_of(text, MODEL))
    ends = frozenset(checkpoint.end_ids)

    def made(name: str, asked: str, answer: str, *, free: tuple[str, str] | None) -> Workload:
        is_copy = name in ("edit", "quote")
        most = MOST_COPIED if is_copy else MOST_FRESH
        prompt, follow = _chat(writer, asked), writer.encode(answer)[:most]
        free_prompt = prompt
        if free is not None:  # a question of its own, and how the answer begins
            free_prompt = _chat(writer, free[0]) + writer.encode(free[1])
        forced = Task(prompt, len(follow), follow)
        return Workload(name, is_copy, forced, Task(free_prompt, most, None, ends))

    source, passage = _read("source.txt"), _read("passage.txt")
    begin, _, end = passage.partition("\n\nIn the spring")
    quoted = f"{begin}\n\n{BETWEEN}\n\nIn the spring{end}"
    # What the model is able to copy: a part of the file, once it has seen how that is done.
    part = source[: source.index("    def lend")].rstrip() + "\n"
    opening = edited(part)[: edited(part).index("class Library:")]
    edit_asked = f"{EDIT}, and cards that start at 5000:\n\n```python\n{source}```"
    copy = (f"{COPY}\n\n```python\n{part}```", f"Here is the whole file:\n\n```python\n{opening}")
    return [
        made("edit", edit_asked, f"```python\n{edited(source)}```", free=copy),
        made("quote", f"Please copy the following text exactly:\n\n{passage}", quoted, free=None),
        made("chat", "How do I start a small vegetable garden?", _read("chat.txt"), free=None),
        made(
            "prose",
            "Write a story about a clockmaker.",
            _read("fresh.txt"),
            free=None,
        ),
    ]


def edited(source: str) -> str:
    """The file as the answer has it."""
    for old, new in EDITS:
        source = source.replace(old, new)
    return source


def _read(name: str) -> str:
    return (TEXTS / name).read_text("utf-8")


def _chat(writer: PromptWriter, asked: str) -> tuple[int, ...]:
    message = Message("user", (TextPart(asked),))
    return writer.write(Call("bench", (message,)), is_thinking=False).ids
