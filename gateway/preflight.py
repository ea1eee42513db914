"""What must be true before a verb may begin. Knows no HTTP."""

import importlib.util
from pathlib import Path

from gateway.embedded_model import REGISTRY, model_path
from gateway.settings.types import Settings

PACKAGES = ("gateway", "conductor", "worker", "proto")
OTEL_PACKAGES = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")


class CommandFailed(Exception):
    """A verb cannot go on; the sentence says why and what to do."""


def check_packages() -> None:
    """`proto` and `conductor` are also names of other distributions: all four must be ours.

    Raises: CommandFailed that names what shadows them.
    """
    home = Path(__file__).resolve().parent.parent
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve().parent.parent if spec and spec.origin else None
        if found != home:
            raise CommandFailed(
                f"the package {name!r} comes from {found or 'nowhere'} instead of {home}; "
                "install Tandem into a virtual environment of its own"
            )


def check_model(settings: Settings) -> None:
    """Raises: CommandFailed when the worker's model is not there."""
    path = model_path(settings.state_dir, settings.engine.model)
    if not path.exists():
        name = settings.engine.model
        advice = f"run 'tandem fetch-model {name}'" if name in REGISTRY else "check worker.model"
        raise CommandFailed(f"the model is not at {path}; {advice}")


def check_otel_packages() -> None:
    """Raises: CommandFailed when this environment cannot send spans."""
    try:
        is_there = all(map(importlib.util.find_spec, OTEL_PACKAGES))
    except ModuleNotFoundError:  # of a package that they would lie in
        is_there = False
    if not is_there:
        raise CommandFailed(
            "server.otel_endpoint needs OpenTelemetry: pip install 'tandem-llm[otel]'"
        )


def check_worker_packages() -> None:
    """Raises: CommandFailed when this environment cannot run a worker."""
    if importlib.util.find_spec("torch") is None:
        raise CommandFailed(
            "the worker needs torch: pip install 'tandem-llm[worker]', "
            "or remove the 'worker' section from the configuration"
        )
