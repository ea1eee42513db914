"""`python -m worker`: prepares the process, then starts it. Knows nothing of what it does.

Everything is built in `process`; it is imported late, because importing it loads torch.
"""

import sys

START_FAILED_STATUS = 2


def main() -> int:
    """Runs a worker; returns the process's exit status."""
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
