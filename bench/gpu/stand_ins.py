"""What stands in for packages that the engine loads and a machine with torch and numpy may lack."""

import sys
from types import ModuleType
from typing import Any


class _Logger:
    """Says on stderr what is worth a warning."""

    def __getattr__(self, level: str) -> Any:
        return lambda event, **facts: print(level, event, facts, file=sys.stderr)


def _none(*_: Any) -> None:
    raise RuntimeError("there is no grammar and no file of a kept state here")


# By module: what the engine takes from it. No grammar is compiled here, no state kept in a file.
ABSENT: dict[str, dict[str, Any]] = {
    "structlog": {"get_logger": _Logger},
    "llguidance": {"LLMatcher": _none},
    "llguidance.numpy": {"allocate_token_bitmask": _none, "fill_next_token_bitmask": _none},
    "safetensors": {"SafetensorError": OSError, "safe_open": _none},
    "safetensors.torch": {"save_file": _none},
}


def stand_in() -> None:
    """Puts itself in the place of what is missing. Before the engine is loaded."""
    for name, contents in ABSENT.items():
        try:
            __import__(name)
        except ModuleNotFoundError:
            module = ModuleType(name)
            vars(module).update(contents)
            sys.modules[name] = module
