"""Which tasks may still act in one request, and what is told of what they did or would have done.

Knows no text and no verdict. Every act and every shadow hit is one finding.
"""

from conductor.monitor.tasks import TASKS, Mode, Params
from conductor.monitor.verdicts import Finding
from proto.chat import Json
from proto.plan import MonitorPlan, MonitorTask

MOST_FINDINGS = 32  # of one task in one request

_OFF = MonitorTask("off")


class Acts:
    """The limits of one request. A task that a plan does not name is off."""

    def __init__(self, plan: MonitorPlan) -> None:
        self.is_plain = True  # one answer, unconstrained, without log-probabilities
        self._tasks = {name: plan.tasks.get(name, _OFF) for name in TASKS}
        self._continuations = plan.continuations
        self._regenerations = plan.regenerations
        self._hidden = plan.hidden_tokens
        self._done = dict.fromkeys(TASKS, 0)
        self._told = dict.fromkeys(TASKS, 0)
        self._round_of: str | None = None  # the task whose regeneration round is open
        self._findings: list[Finding] = []

    def mode(self, task: str) -> Mode:
        """How a task is set."""
        return self._tasks[task].mode

    def is_on(self, task: str) -> bool:
        """Whether a task looks at all."""
        return self._tasks[task].mode != "off"

    def params(self, task: str) -> Params:
        """The parameters of a task."""
        return Params(task, self._tasks[task])

    def take_findings(self) -> tuple[Finding, ...]:
        """What was found since the last time."""
        found, self._findings = tuple(self._findings), []
        return found

    def fitting(self, text: str) -> str:
        """Hidden text, or "" where it would pass the limit of hidden tokens."""
        return text if most_tokens(text) <= self._hidden else ""

    def act(
        self,
        task: str,
        reason: str,
        numbers: dict[str, Json] | None = None,
        *,
        hidden: int = 0,
        continues: bool = False,
        regenerates: bool = False,
        counts: bool = True,
        barrier: str | None = None,
    ) -> bool:
        """Notes a hit of a task; whether it is to act, which is then booked.

        `hidden`: tokens that it hides, at most. `counts`: against how often it may act. `barrier`:
        what the caller knows to keep it from acting, `late` where the client has it already. A hit
        that something keeps from acting is a shadow hit, its reason followed by that thing's name.
        """
        row = TASKS[task]
        mode = self._tasks[task].mode
        shared = row.shares or task
        is_spent = counts and row.a_turn is not None and self._done[shared] >= row.a_turn
        if mode == "off" or (mode == "shadow" and is_spent):
            return False
        limit = None
        if mode == "act":
            limit = barrier or self._limit(
                task, is_spent=is_spent, hidden=hidden, continues=continues,
                regenerates=regenerates,
            )  # fmt: skip
        acts = mode == "act" and limit is None
        if acts or mode == "shadow":
            self._done[shared] += counts
        if acts:
            self._book(task, hidden=hidden, continues=continues, regenerates=regenerates)
        self._tell(task, "act" if acts else "shadow", reason, limit, numbers)
        return acts

    def _limit(
        self, task: str, *, is_spent: bool, hidden: int, continues: bool, regenerates: bool
    ) -> str | None:
        """The name of the limit that keeps a task from acting."""
        if not self.is_plain and not TASKS[task].on_reasoning:
            return "constrained"
        if is_spent:
            return "turn"
        if continues and self._continuations <= 0:
            return "continuations"
        if regenerates and self._round_of != task and self._regenerations <= 0:
            return "regenerations"
        return "hidden" if hidden > self._hidden else None

    def _book(self, task: str, *, hidden: int, continues: bool, regenerates: bool) -> None:
        self._hidden -= hidden
        self._continuations -= continues
        if regenerates and self._round_of != task:  # the tries of one task are one round
            self._regenerations -= 1
            self._round_of = task

    def _tell(
        self,
        task: str,
        mode: Mode,
        reason: str,
        limit: str | None,
        numbers: dict[str, Json] | None,
    ) -> None:
        if self._told[task] >= MOST_FINDINGS or mode == "off":
            return
        self._told[task] += 1
        reason = reason if limit is None else f"{reason}:{limit}"
        self._findings.append(Finding(task, mode, reason, numbers))


def most_tokens(text: str) -> int:
    """Tokens that a text is at most: no tokenizer makes more of it than it has bytes."""
    return len(text.encode(errors="replace"))
