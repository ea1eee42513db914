"""`tandem explain`: what would be decided about a request. Knows no server, no store, no model.

The conversation is taken for a new one, and nobody is asked: kinds of task are those of the rules.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from conductor.classify import Answers
from conductor.client import detect
from conductor.conductor import plan
from conductor.ports import PortFault, Ports, Question, Reply
from conductor.profiles import ProfileFault
from conductor.types import Facts, NoteRecord, Session, Target, TurnPlan
from gateway.backends.base import Backend
from gateway.backends.http_host import target_of
from gateway.conducting.facts import asked_of
from gateway.errors import ApiError
from gateway.preflight import CommandFailed
from gateway.routing.table import RoutingTable
from gateway.settings.types import Settings
from gateway.surfaces.chat.parse import parse_chat
from gateway.surfaces.fields import clean

NOTE_OPEN, NOTE_CLOSE = "⟦note⟧", "⟦/note⟧"
NOBODY = "by the model, which nobody asked"


def print_explained(settings: Settings, args: argparse.Namespace, out: TextIO) -> int:
    """Reads the files and prints. Raises: CommandFailed."""
    facts = explained(settings, _body(args.request), _headers(args.headers))
    if args.json:
        out.write(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
        return 0
    for name, value in facts.items():
        if name != "messages":
            out.write(f"{name}: {value if isinstance(value, str) else json.dumps(value)}\n")
    for message in facts["messages"]:
        out.write(f"--- {message['role']}\n{message['text']}\n")
    return 0


def explained(settings: Settings, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
    """Everything that is decided, by name. Raises: CommandFailed for what would be refused."""
    table = RoutingTable(settings, lambda name: _listed(settings, name), lambda: True)
    try:
        request = parse_chat(clean(body))
        target = table.check(table.find(request.call.model), request.call.model, "chat")
        backend = settings.backends.get(target.backend or "")
        route = f"{target.backend or 'worker'}/{target.model or request.call.model}"
        is_planned = (
            backend.conductor if backend else bool(settings.worker and settings.worker.conductor)
        )
        facts: dict[str, Any] = {"route": route, "path": "managed"}
        if backend is not None and not is_planned:
            return {**facts, "path": "relay", "messages": []}
        can = (
            Target("engine")
            if backend is None
            else target_of(Backend(target.backend or "", backend))
        )
        raw = {name.encode(): value.encode() for name, value in headers.items()}
        told = Facts(
            settings.planning,
            detect(raw),
            asked_of("chat", headers.items(), body, request),
            can,
            "explain",
            int(time.time() * 1000),
        )
        ports = Ports(_Nobody(), _Empty(), _Empty())
        made = asyncio.run(plan(request.call, told, ports, Answers()))
    except ApiError as error:
        raise CommandFailed(error.message) from error
    except ProfileFault as fault:
        known = ", ".join(fault.names)
        raise CommandFailed(f"no profile is named {fault.asked!r}; known: {known}") from fault
    facts["conductor"] = "on" if is_planned else "off: worker.conductor is false"
    return {**facts, **_decided(made)}


def _listed(settings: Settings, backend: str) -> list[str]:
    """The models that the configuration names; what backends list is not looked up."""
    models = settings.backends[backend].models
    return [] if models == "auto" else [*models]


def _decided(made: TurnPlan) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "client": made.client,
        "profile": made.profile.name,
        "turn": made.turn,
        "side": made.side.kind if made.side else None,
    }
    if made.task is not None:
        facts["class"] = NOBODY if made.task.fault else f"{made.task.name} ({made.task.source})"
    facts["thinking"] = {"on": made.thinking.on, "budget": made.thinking.budget}
    if made.monitor is not None:
        facts["monitor"] = {name: task.mode for name, task in made.monitor.tasks.items()}
    texts = [message.text for message in made.call.messages]
    for segment in made.segments:
        texts[segment.message] += f"{NOTE_OPEN}{segment.text}{NOTE_CLOSE}"
    facts["messages"] = [
        {"role": message.role, "text": text}
        for message, text in zip(made.call.messages, texts, strict=True)
    ]
    return facts


class _Nobody:
    async def ask(self, question: Question) -> Reply:
        raise PortFault("not_asked")


class _Empty:
    """Sessions or notes, of which there are none."""

    async def find(self, *words: object) -> Sequence[Any]:
        return ()

    async def save(self, kept: Session | Sequence[NoteRecord]) -> None:
        raise AssertionError("nothing is kept of what is only explained")


def _body(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as fault:
        raise CommandFailed(f"{path} cannot be read as JSON: {fault}") from fault
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        raise CommandFailed(f"{path} must hold a chat request: an object with 'model'")
    return body


def _headers(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError) as fault:
        raise CommandFailed(f"{path} cannot be read: {fault}") from fault
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}
