"""An HTTP backend as the host of a request's runs. Knows no socket and no surface."""

from collections.abc import Sequence

from conductor.types import Target
from gateway.backends.base import SELF_SERVED, Backend
from gateway.backends.http import HttpRun, Place
from gateway.backends.run import Run, Work
from gateway.errors import ApiError
from gateway.ledger.entry import Entry
from proto.events import Finished


class HttpHost:
    """The host of one request."""

    def __init__(self, place: Place) -> None:
        self.is_planned = True
        self._place = place

    @property
    def target(self) -> Target:
        """See `Host`."""
        return target_of(self._place.backend)

    def saw_no_choice(self) -> None:
        """See `Host`. Servers ignore what they do not know: the other name is tried next time."""
        self._place.backend.has_new_choice = not self._place.backend.has_new_choice

    async def start(self, work: Work, entry: Entry, choice: int) -> HttpRun:
        """See `Host`. Raises: ApiError."""
        if work.choices > 1:
            message = "This model answers once; leave 'n' out."
            raise ApiError(400, "unsupported_parameter", message, param="n")
        return HttpRun(self._place, work, entry)

    def book(self, entry: Entry, runs: Sequence[Run], finished: Finished | None) -> None:
        """A run books its own requests; here is what it comes to."""
        found = [finding for run in runs for finding in run.findings]
        entry.monitor_acts = sum(finding.mode == "act" for finding in found)
        entry.monitor_shadows = len(found) - entry.monitor_acts
        entry.tool_calls = sum(run.calls for run in runs) or None
        if finished is not None:
            entry.thinking_closed_by = finished.thinking_closed_by


def target_of(backend: Backend) -> Target:
    """What an HTTP backend can do. Nobody knows its model's context or tokenizer."""
    is_server = backend.settings.flavor in SELF_SERVED
    return Target(
        kind="server" if is_server else "cloud",
        small_models=frozenset(backend.settings.small),
        has_choice=is_server,
        can_go_on=backend.can_go_on,
    )
