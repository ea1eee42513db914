"""What the kernel knows about a process and its connections. Linux only; knows no gateway."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Tcp(NamedTuple):
    """One end of a loopback connection, and the bytes that wait in the kernel at it."""

    local: int
    remote: int
    state: str
    unsent_bytes: int
    unread_bytes: int


SYN_SENT, ESTABLISHED = "02", "01"


def tcp_ends(port: int) -> Iterator[Tcp]:
    """Every IPv4 connection that has this port on either side."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        local, remote = (int(end.split(":")[1], 16) for end in fields[1:3])
        unsent, unread = (int(size, 16) for size in fields[4].split(":"))
        if port in (local, remote) and fields[3] != "0A":  # not the listener
            yield Tcp(local, remote, fields[3], unsent, unread)


def kernel_bytes(port: int) -> int:
    """Bytes on their way over the connections of a port, in all kernel buffers."""
    return sum(end.unsent_bytes + end.unread_bytes for end in tcp_ends(port))


def resident_bytes(pid: int | str = "self") -> int:
    """Memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def descriptors(pid: int) -> list[str]:
    """What each open descriptor of a process leads to."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(entry))
        except FileNotFoundError:
            continue  # closed since it was listed
    return found


def thread_count(pid: int) -> int:
    """Threads of a process."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def child_count(pid: int) -> int:
    """Processes that a process started and that still run or wait to be reaped."""
    found = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended since it was listed
        found += parent == pid
    return found
