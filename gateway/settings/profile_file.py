"""A profile as its file has it. Knows nothing of YAML.

`docs/profiles.md` explains each key; a test compares the two.
"""

from dataclasses import dataclass, fields, replace
from typing import Literal

from conductor.profiles import (
    Match,
    MemoryRules,
    MonitorRules,
    NoteRules,
    PackageRules,
    Profile,
    Router,
    Rule,
    SideRules,
    StatusRules,
    ThinkingRules,
    TranscriptRules,
)


@dataclass(frozen=True, slots=True)
class When:
    """Conditions of a rule: every given one must hold."""

    classes: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    regex: str | None = None


@dataclass(frozen=True, slots=True)
class RuleEntry:
    """A sentence for the note, and when."""

    id: str
    text: str
    when: When = When()


@dataclass(frozen=True, slots=True)
class SamplingFields:
    """For fields that the client left out; named as clients name them."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps under the client's, in tokens."""

    max_output: int | None = None


@dataclass(frozen=True, slots=True)
class ProfileFile:
    """The whole file."""

    name: str
    description: str = ""
    extends: str | None = None
    match: Match | None = None
    system_prompt: str | None = None
    router: Router = Router()
    thinking: ThinkingRules = ThinkingRules()
    reasoning_format: Literal["reasoning_content", "tags", "both"] = "reasoning_content"
    effort: Literal["on", "off"] = "on"
    rules: tuple[RuleEntry, ...] = ()
    packages: PackageRules = PackageRules()
    note: NoteRules = NoteRules()
    side: SideRules = SideRules()
    monitor: MonitorRules = MonitorRules()
    tool_stream: Literal["live", "held"] = "live"
    status: StatusRules = StatusRules()
    memory: MemoryRules = MemoryRules()
    transcript: TranscriptRules = TranscriptRules()
    sampling: SamplingFields = SamplingFields()
    limits: Limits = Limits()

    def profile(self) -> Profile:
        """As the conductor knows it."""
        named = ((key.name, getattr(self.sampling, key.name)) for key in fields(SamplingFields))
        return Profile(
            name=self.name,
            description=self.description,
            extends=self.extends,
            match=_lowered(self.match),
            system_prompt=self.system_prompt,
            router=self.router,
            thinking=self.thinking,
            reasoning_format=self.reasoning_format,
            effort=self.effort,
            rules=tuple(
                Rule(r.id, r.text, r.when.classes, r.when.tools, r.when.regex) for r in self.rules
            ),
            packages=self.packages,
            note=self.note,
            side=self.side,
            monitor=self.monitor,
            tool_stream=self.tool_stream,
            status=self.status,
            memory=self.memory,
            transcript=self.transcript,
            sampling={name: value for name, value in named if value is not None},
            max_output=self.limits.max_output,
        )


def _lowered(match: Match | None) -> Match | None:
    """With the names of headers as requests have them."""
    if match is None:
        return None
    headers = {name.lower(): value for name, value in match.headers.items()}
    return replace(match, headers=headers)
