"""One target under libFuzzer: `python -m tests.fuzz.target NAME CORPUS [options of libFuzzer]`.

With `--seeds FOLDER` instead it writes the seeds and the dictionary that the run begins with.
"""

import importlib
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

TARGETS = ("answers", "streams", "requests", "headers", "bodies")


def load(name: str) -> ModuleType:
    """The module of a target: `check`, `SEEDS`, `WORDS`, `LIMITS`, `MOST_BYTES`."""
    return importlib.import_module(f"tests.fuzz.{name}")


def with_small_limits(target: ModuleType, stack: ExitStack) -> Callable[[bytes], None]:
    """The target's check, with limits so small that short inputs reach them."""
    for name, value in target.LIMITS.items():
        stack.enter_context(patch(name, value))
    check: Callable[[bytes], None] = target.check
    return check


def write_seeds(target: ModuleType, folder: Path) -> None:
    """The seeds as files, and the words that make sense to the target."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.SEEDS):
        (folder / f"seed-{number:03d}").write_bytes(seed)
    lines = ["".join(f"\\x{byte:02x}" for byte in word) for word in target.WORDS]
    folder.with_suffix(".dict").write_text("".join(f'"{line}"\n' for line in lines))


def main() -> None:
    import atheris
    import structlog

    structlog.configure(processors=[], logger_factory=structlog.ReturnLoggerFactory())
    name = sys.argv[1]
    with atheris.instrument_imports(include=["gateway"]):
        target = load(name)
    if sys.argv[2] == "--seeds":
        write_seeds(target, Path(sys.argv[3]))
        return
    with ExitStack() as stack:
        check = with_small_limits(target, stack)
        options = [f"-max_len={target.MOST_BYTES}", *sys.argv[2:]]
        atheris.Setup([sys.argv[0], *options], check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
