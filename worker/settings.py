"""What the operator's settings mean on this machine. Knows no tensors.

The only module of the worker that reads the environment; `memory` and `workspace` alone look at the
machine beside it.
"""

import contextlib
import os
import platform
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from proto.worker_settings import Launch, SpeculationSettings, WarmSettings
from worker.faults import StartFault
from worker.speculation.cut import Bounds

CHUNK_CPU, CHUNK_CUDA = 256, 1024  # tokens of prompt forwarded together
MAX_LEN_CPU = 8192  # positions kept by default on a CPU, where memory is shared with others
MOST_LANES = 64
LEAST_SHARE, MOST_SHARE = 0.05, 0.95  # of the time for reading: neither side starves
CUDA_LAYOUTS = ("bf16", "fp32")
MOST_ROWS, MOST_ROWS_CUDA = 64, 32  # of one verify; delta layers solve at most 64 together
SNAP_CUDA = (8, 16, 24, 32)  # the row counts between which a verify costs the same there
MOST_MARGIN = 10.0
MOST_AGE_S = 3600.0  # of a reply whose next prompt is still read ahead
CGROUP = Path("/sys/fs/cgroup")
# Limit, use, and the count of file pages that are dropped before anybody is refused, of a control
# group of either version. Without the last, a file that was just read would look like memory taken.
CGROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Machine:
    """What the worker runs on. `chunk` in tokens; `lanes`: runs that decode in turn."""

    device: Literal["cpu", "cuda"]
    threads: int
    chunk: int
    lanes: int
    slots: int


def machine_of(launch: Launch, *, has_cuda: bool) -> Machine:
    """Resolves `auto` and 0. Raises: StartFault when CUDA is asked for and absent,
    or there and asked for weights it does not know."""
    settings = launch.settings
    if settings.device == "cuda" and not has_cuda:
        raise StartFault("worker.device is cuda, but this machine offers no CUDA device to torch.")
    if not 1 <= settings.parallel <= MOST_LANES:
        raise StartFault(f"worker.parallel is {settings.parallel}; it must be 1 to {MOST_LANES}.")
    share = settings.prefill.share
    if not LEAST_SHARE <= share <= MOST_SHARE:
        raise StartFault(
            f"worker.prefill.share is {share}; it must be {LEAST_SHARE} to {MOST_SHARE}."
        )
    slots = settings.slots or settings.parallel + 1
    if slots < settings.parallel:
        raise StartFault(
            f"worker.slots is {slots}, fewer than worker.parallel, which is {settings.parallel}."
        )
    is_cuda = has_cuda and settings.device != "cpu"
    if is_cuda and settings.weights not in CUDA_LAYOUTS:
        raise StartFault(
            f"worker.weights is {settings.weights}, which runs on a CPU only: on a CUDA device set "
            f"it to {' or '.join(CUDA_LAYOUTS)}, or worker.device to cpu."
        )
    return Machine(
        device="cuda" if is_cuda else "cpu",
        threads=settings.threads or physical_cores(),
        chunk=settings.prefill.chunk or (CHUNK_CUDA if is_cuda else CHUNK_CPU),
        lanes=settings.parallel,
        slots=slots,
    )


def max_len_of(launch: Launch, machine: Machine, model_max_len: int) -> int:
    """Tokens of prompt and output together. Raises: StartFault above the model's own."""
    wanted = launch.settings.max_len
    if wanted > model_max_len:
        raise StartFault(
            f"worker.max_len is {wanted}, but the model was made for {model_max_len} tokens."
        )
    if wanted:
        return wanted
    return model_max_len if machine.device == "cuda" else min(model_max_len, MAX_LEN_CPU)


def bounds_of(settings: SpeculationSettings, device: Literal["cpu", "cuda"]) -> Bounds:
    """What a draft is cut to. Raises: StartFault for numbers that make no sense."""
    is_cuda = device == "cuda"
    most = settings.max_rows or (MOST_ROWS_CUDA if is_cuda else MOST_ROWS)
    if not 2 <= most <= MOST_ROWS:
        raise StartFault(f"worker.speculation.max_rows is {most}; it must be 2 to {MOST_ROWS}.")
    snap = settings.snap or (SNAP_CUDA if is_cuda else ())
    if any(not 2 <= rows <= most for rows in snap):
        raise StartFault(
            f"worker.speculation.snap names {max(snap)} and {min(snap)} rows; they must be 2 to "
            f"{most}, which is worker.speculation.max_rows."
        )
    if not 1.0 <= settings.margin <= MOST_MARGIN:
        raise StartFault(
            f"worker.speculation.margin is {settings.margin}; it must be 1 to {MOST_MARGIN}."
        )
    return Bounds(most, tuple(sorted(snap)), settings.margin)


def check_warm(settings: WarmSettings) -> None:
    """Raises: StartFault for a reading ahead that could never begin."""
    if not 0.0 < settings.max_age_s <= MOST_AGE_S:
        raise StartFault(
            f"worker.warm.max_age_s is {settings.max_age_s}; it must be above 0 and at most "
            f"{MOST_AGE_S:g}. To switch reading ahead off, set worker.warm.enabled to false."
        )


def physical_cores() -> int:
    """Cores this process may use, threads of one core counted once."""
    usable = os.sched_getaffinity(0)
    siblings = {_siblings(cpu) for cpu in usable}
    return max(1, len(siblings))


def cpu_name() -> str:
    """The processor as it calls itself, else its kind."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def memory_bytes() -> int:
    """All the memory there is for this process, within the limits of a container and of its own."""
    most = PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")
    for limit, *_ in CGROUP_FILES:
        with contextlib.suppress(OSError, ValueError):  # no such file, or no limit ("max")
            most = min(most, int((CGROUP / limit).read_text()))
    return min(most, resident_bytes() + _addresses_left())


def free_memory_bytes() -> int:
    """Memory that may still be taken here, within the limits of a container and of the process."""
    free = PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        kibibytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable"))
        free = int(kibibytes) * 1024
    for limit, use, statistics, dropped in CGROUP_FILES:
        with contextlib.suppress(OSError, ValueError):  # no such file, or no limit ("max")
            most, used = (int((CGROUP / name).read_text()) for name in (limit, use))
            free = min(free, most - used + _counted(CGROUP / statistics, dropped))
    return max(min(free, _addresses_left()), 0)


def resident_bytes() -> int:
    """Memory that this process holds now."""
    return _pages()[1] * PAGE_BYTES


def _pages() -> tuple[int, int]:
    """Pages of addresses, and pages that are there; 0 where the system does not say."""
    with contextlib.suppress(OSError, ValueError):
        addresses, there, *_ = Path("/proc/self/statm").read_text().split()
        return int(addresses), int(there)
    return 0, 0


def _addresses_left() -> int:
    """Bytes that the process may still map: what `ulimit -v` leaves, which torch runs into first
    since it maps more than it touches."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")
    return max(limit - _pages()[0] * PAGE_BYTES, 0)


def _counted(path: Path, name: str) -> int:
    """A line of a control group's statistics; 0 where there is none."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return 0


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text().strip()
    except OSError:  # no such file in some containers: count every thread
        return str(cpu)
