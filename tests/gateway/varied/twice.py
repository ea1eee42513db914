"""Sends each case twice, straight to the backend and through the gateway, and compares.

Knows the rules and both clients; chooses no case.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.gateway.harness import Running
from tests.gateway.varied.backend import ScriptedBackend
from tests.gateway.varied.cases import Case
from tests.gateway.varied.client import Answer, Client, NotHttp, values
from tests.gateway.varied.rules import faults_of_answer, faults_of_request

AT_ONCE = 4


@dataclass(slots=True)
class Outcome:
    """How a case went. No faults: every rule held."""

    case: Case
    request_id: str = ""
    faults: list[str] = field(default_factory=list)


async def send_all(
    cases: list[Case], backend: ScriptedBackend, gateway_port: int, at_once: int = AT_ONCE
) -> list[Outcome]:
    """Sends every case, a few at once over connections that are kept."""
    outcomes: list[Outcome] = []

    async def work(waiting: Iterator[Case]) -> None:
        with Client(backend.port) as direct, Client(gateway_port) as through:
            for case in waiting:
                outcomes.append(await _send_twice(case, backend, direct, through))

    waiting = iter(cases)
    async with asyncio.TaskGroup() as workers:
        for _ in range(at_once):
            workers.create_task(work(waiting))
    return outcomes


async def _send_twice(
    case: Case, backend: ScriptedBackend, direct: Client, through: Client
) -> Outcome:
    backend.plans[case.number] = case.plan
    outcome = Outcome(case)
    answers: list[Answer] = []
    for name, client in (("direct", direct), ("through the gateway", through)):
        try:
            answers.append(await client.send(case.request))
        except (NotHttp, TimeoutError, OSError) as fault:
            outcome.faults.append(f"{name}: {fault!r}")
            client.close()
    received = backend.received.pop(case.number, [])
    if len(answers) == 2:
        ids = values(answers[1].headers, b"x-request-id")
        outcome.request_id = ids[0].decode("latin-1") if ids else ""
        outcome.faults += faults_of_answer(answers[0], answers[1], case.expected)
    if len(received) == 2:
        outcome.faults += faults_of_request(
            case.request, received[1], case.expected, backend.authority
        )
    else:
        outcome.faults.append(f"the backend was asked {len(received)} times, not twice")
    return outcome


async def check_books(outcomes: list[Outcome], gateway: Running) -> None:
    """Adds the faults of the ledger: one row a case, with the tokens that the backend reported."""
    with contextlib.suppress(TimeoutError):  # then some of them have no row
        await gateway.row(len(outcomes) - 1)
    rows = {row.request_id: row for row in gateway.books.rows}
    for outcome in outcomes:
        row, tokens = rows.get(outcome.request_id), outcome.case.tokens
        if row is None:
            outcome.faults.append("no row with the answer's X-Request-ID")
        elif tokens is not None:
            booked = row.outcome, row.prompt_tokens, row.completion_tokens or 0, row.usage_source
            if booked != (due := ("succeeded", *tokens, "backend")):
                outcome.faults.append(f"booked {booked} instead of {due}")


def report(seed: int, outcomes: list[Outcome]) -> str:
    """What is wrong, case by case, and how to see it again. Empty when nothing is."""
    lines = [
        f"  case {outcome.case.number} ({outcome.case.title})\n"
        + "\n".join(f"    {fault}" for fault in outcome.faults)
        for outcome in sorted(outcomes, key=lambda outcome: outcome.case.number)
        if outcome.faults
    ]
    if not lines:
        return ""
    return "\n".join([f"seed {seed}: {len(lines)} of {len(outcomes)} cases differ", *lines])
