"""`python -m worker`: prepares the process, then starts it. Knows nothing of what it does.

Everything is built in `process`; it is imported late, because importing it loads torch.
"""

import os
import sys

START_FAILED_STATUS = 2


def main() -> int:
    """Runs a worker; returns the process's exit status."""
    # OpenMP reads this once, when torch is loaded. Threads that wait by spinning are a third
    # faster on a quiet machine, and twenty times slower when anything else wants the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        from worker.process import run
    except ImportError as fault:
        print(
            f"The engine needs the package {fault.name!r}: install Tandem with its extra 'worker'.",
            file=sys.stderr,
        )
        return START_FAILED_STATUS
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
