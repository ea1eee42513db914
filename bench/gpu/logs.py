"""What stands in for structlog on a machine that has torch and little else."""

import sys
from types import ModuleType
from typing import Any


class _Logger:
    """Says on stderr what is worth a warning."""

    def __getattr__(self, level: str) -> Any:
        return lambda event, **facts: print(level, event, facts, file=sys.stderr)


def stand_in() -> None:
    """Puts itself in the place of structlog where that is missing. Before the engine is loaded."""
    try:
        import structlog  # noqa: F401 - only whether it is there
    except ModuleNotFoundError:
        module = ModuleType("structlog")
        module.get_logger = _Logger  # type: ignore[attr-defined]
        sys.modules["structlog"] = module
