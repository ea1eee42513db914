"""What a monitor needs of this worker, and the run in a monitor's words. Decides nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from conductor.monitor.verdicts import Form, MadeCall, PastCall, PromptFacts, Watch
from proto.chat import AnswerFormat, Call, ToolChoice
from proto.messages import CallPart
from proto.plan import MonitorPlan
from worker.grammar.compiler import GrammarCompiler
from worker.run import Run
from worker.text.answer import Spoken
from worker.text.call_syntax import CallForm as CallSyntax

NewWatch = Callable[[MonitorPlan, PromptFacts], Watch]


@dataclass(frozen=True, slots=True)
class Hosting:
    """What all monitors share. `encode`: ids of a text by itself.

    `is_strict`: a verdict that its point does not allow ends the worker, as in tests.
    """

    new_watch: NewWatch
    encode: Callable[[str], list[int]]
    compiler: GrammarCompiler
    call_syntax: CallSyntax
    is_strict: bool = False


class Watched:
    """The monitor of one run. `most_hidden`: tokens that it may hide."""

    def __init__(self, watch: Watch, most_hidden: int) -> None:
        self.watch = watch
        self.most_hidden = most_hidden
        self._horizon = 1

    def look_ahead(self) -> None:
        """Learns how far the run may go before it is asked again."""
        self._horizon = max(1, self.watch.horizon())

    def horizon(self) -> int:
        """Tokens that may be written before it is asked again."""
        return self._horizon


def facts_of(run: Run) -> PromptFacts:
    """What a monitor is told before anything is forwarded."""
    submit = run.prepared.arrival.submit
    messages = submit.call.messages
    results = {message.call_id: message.text for message in messages if message.role == "tool"}
    past = [call for message in messages for call in message.calls]
    is_plain = run.choices == 1 and submit.params.top_logprobs is None
    return PromptFacts(
        prompt_tokens=len(run.prepared.prompt),
        room=run.room_left(),
        is_thinking=run.is_thinking,
        budget=submit.plan.thinking.budget,
        tools=submit.call.tools,
        past=tuple(PastCall(call.name, call.arguments, results.get(call.id)) for call in past),
        is_plain=is_plain and run.prepared.matcher is None,
        may_regenerate=submit.plan.tool_stream == "held",
    )


def call_under(call: Call, spec: Form) -> Call:
    """A call whose answer must have this form."""
    if isinstance(spec, AnswerFormat):
        return Call(call.model, (), answer_format=spec)
    choice = ToolChoice("required") if spec.tool is None else ToolChoice("named", spec.tool)
    return Call(call.model, (), call.tools, choice, parallel_tool_calls=False)


def made_calls(run: Run) -> tuple[MadeCall, ...]:
    """The calls of the answer so far that are complete."""
    return tuple(
        MadeCall(
            index,
            next(part.name for _, part in parts if part.name is not None),
            "".join(part.args or "" for _, part in parts),
            is_sent=parts[0][0] < run.out.sent,
        )
        for index, parts in sorted(run.out.parts().items())
        if parts[-1][1].end
    )


def replace_calls(run: Run, calls: tuple[MadeCall, ...]) -> None:
    """These calls in place of those that did not go out; what went out stays as it is."""
    parts, last = run.out.parts(), run.out.log[-1]
    sent = {index for index, some in parts.items() if some[0][0] < run.out.sent}
    ids = {index: some[0][1].id for index, some in parts.items()}
    for one in run.out.log[run.out.sent :]:
        kept = tuple(part for part in one.said.calls if part.index in sent)
        one.said = Spoken(one.said.kind, one.said.piece, kept)
    made: list[CallPart] = list(last.said.calls)
    at = run.number - 1
    for index, call in enumerate(calls):
        if index not in sent:
            made.append(CallPart(at, index, id=ids.get(index) or run.out.new_id(), name=call.name))
            made.append(CallPart(at, index, args=call.arguments))
            made.append(CallPart(at, index, end=True))
    last.said = Spoken(last.said.kind, last.said.piece, tuple(made))
