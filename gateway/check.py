"""`tandem check`: what a good configuration amounts to. Knows no mistake: those end the reading.

Secrets are only said to be set.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from conductor.classes import CLASSES
from conductor.packages import collisions
from conductor.profiles import Match, Profile, Router
from conductor.tokens import estimated_tokens
from conductor.types import Package
from gateway.routing.table import spoken_by
from gateway.settings.types import Settings

# What no file says.
GROUND = Profile(name="", match=Match(), router=Router(classes=CLASSES))


def report(path: Path, settings: Settings, *, as_json: bool) -> str:
    """The configuration in a few lines, or as JSON; profiles resolved.

    Of a profile the lines have what differs from the defaults, JSON has everything.
    """
    facts: dict[str, Any] = {
        "file": str(path),
        "config_rev": settings.rev,
        "listen": f"{settings.server.host}:{settings.server.port}",
        "keys": [key.label for key in settings.keys],
        "admin_token": "set" if settings.server.admin_token else "missing",
        "worker": settings.engine.model if settings.worker else None,
        "backends": {
            name: {"speaks": list(spoken_by(b)), "key": "set" if b.keys else "missing"}
            for name, b in settings.backends.items()
        },
        "routes": {
            name: f"{route.targets[0].backend}/{route.targets[0].model}"
            for name, route in settings.routes.items()
        },
        "default_profile": settings.planning.default_profile,
        "packages": sorted(settings.planning.packages),
    }
    profiles = settings.planning.profiles
    if as_json:
        facts["profiles"] = {name: asdict(profile) for name, profile in profiles.items()}
        return json.dumps(facts, indent=2)
    lines = [f"{path} is good (revision {settings.rev})"]
    lines += [f"  {key}: {value}" for key, value in facts.items() if key != "file"]
    lines.append("  profiles:")
    for name, profile in profiles.items():
        lines.append(f"    {name}: {profile.description}")
        lines += [f"      {key}: {value}" for key, value in _differences(profile)]
    return "\n".join(lines)


def packages_report(settings: Settings, *, as_json: bool) -> str:
    """Packages with their tokens, the classes they fire in, and where they get in each other's way.

    Tokens are estimated, rather too many than too few.
    """
    packages = sorted(settings.planning.packages.values(), key=lambda package: package.id)
    facts = [_facts_of(package, settings) for package in packages]
    pairs = list(collisions(packages))
    if as_json:
        told = [{"ids": [one, other], "by": what} for one, other, what in pairs]
        return json.dumps({"packages": facts, "collisions": told}, indent=2)
    lines = [
        f"{fact['id']}: at most {fact['tokens']} of {fact['max_tokens']} tokens, "
        f"classes {', '.join(fact['classes']) or 'all'}, "
        f"listed by {', '.join(fact['listed_by']) or 'no profile'}"
        for fact in facts
    ]
    lines += [f"collision: {one} and {other}, by {what}" for one, other, what in pairs]
    return "\n".join(lines or ["there are no packages"])


def _facts_of(package: Package, settings: Settings) -> dict[str, Any]:
    return {
        "id": package.id,
        "title": package.title,
        "version": package.version,
        "hash": package.hash,
        "tokens": estimated_tokens(package.text),
        "max_tokens": package.max_tokens,
        "classes": list(package.classes),
        "listed_by": [
            name for name, profile in settings.planning.profiles.items() if _lists(profile, package)
        ],
    }


def _lists(profile: Profile, package: Package) -> bool:
    named = [*profile.packages.per_class.values()]
    named += [task_class.packages for task_class in profile.router.classes.values()]
    return any(package.id in ids for ids in named)


def _differences(profile: Profile) -> Iterator[tuple[str, str]]:
    """Every key whose value is not the default, beside those that say what it is."""
    for key, value in _changed(profile, GROUND, ""):
        if key not in ("name", "description"):
            yield key, json.dumps(value, default=asdict, ensure_ascii=False)


def _changed(value: Any, ground: Any, path: str) -> Iterator[tuple[str, Any]]:
    if value is None or value == ground:
        return
    if is_dataclass(value) and is_dataclass(ground):
        for key in fields(value):
            below = f"{path}.{key.name}" if path else key.name
            yield from _changed(getattr(value, key.name), getattr(ground, key.name), below)
    elif isinstance(value, dict) and isinstance(ground, dict):
        for name, item in value.items():
            yield from _changed(item, ground.get(name), f"{path}.{name}")
    else:
        yield path, value
