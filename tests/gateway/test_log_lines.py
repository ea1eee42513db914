"""Log lines: written by a thread, numbered when several processes share a pipe, counted if lost."""

import json
import os
import socket
from collections.abc import Iterator
from select import PIPE_BUF

import pytest

from gateway.observe.logs import QUEUED_LINES, LineWriter

LINE = '{"event": "e", "text": "' + "x" * 900 + '"}\n'


@pytest.fixture
def packets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A pair of sockets that keeps each write apart."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ends[0], ends[1]:
        ends[1].settimeout(5)
        yield ends


def received(end: socket.socket, line_count: int) -> list[bytes]:
    """Each write, until so many lines have come."""
    found: list[bytes] = []
    while b"".join(found).count(b"\n") < line_count:
        found.append(end.recv(1 << 20))
    return found


def test_lines_of_one_process_of_several_say_which_and_are_never_torn(
    packets: tuple[socket.socket, socket.socket],
) -> None:
    """No write is larger than what a pipe takes at once, and each ends with a line."""
    writer = LineWriter(packets[0].fileno(), process=2)
    for _ in range(40):
        writer.write(LINE)
    writes = received(packets[1], 40)
    assert all(len(data) <= PIPE_BUF and data.endswith(b"\n") for data in writes)
    lines = [json.loads(line) for line in b"".join(writes).splitlines()]
    assert lines == [{**json.loads(LINE), "process": 2}] * 40
    writer.close()


def test_lines_of_a_process_alone_stay_as_they_are(
    packets: tuple[socket.socket, socket.socket],
) -> None:
    writer = LineWriter(packets[0].fileno())
    writer.write(LINE)
    assert received(packets[1], 1) == [LINE.encode()]
    writer.close()


def test_a_line_longer_than_a_pipe_takes_at_once_is_written_all_the_same(
    packets: tuple[socket.socket, socket.socket],
) -> None:
    writer = LineWriter(packets[0].fileno(), process=1)
    long = json.dumps({"event": "x" * 3 * PIPE_BUF}) + "\n"
    for line in (LINE, long, LINE):
        writer.write(line)
    lines = b"".join(received(packets[1], 3)).splitlines()
    assert [len(json.loads(line)["event"]) for line in lines] == [1, 3 * PIPE_BUF, 1]
    writer.close()


def test_lines_that_nobody_takes_are_counted_for_good(
    packets: tuple[socket.socket, socket.socket],
) -> None:
    """Also after the log has said so."""
    for end in packets:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    writer = LineWriter(packets[0].fileno(), process=1)
    written = 0
    while not writer.dropped_count:
        writer.write(LINE)
        written += 1
    assert written > QUEUED_LINES
    lost = writer.dropped_count
    data, taken = b"", 0
    while b"log.dropped" not in data:
        data = packets[1].recv(1 << 20)
        taken += data.count(b"\n")
    said = [json.loads(line) for line in data.splitlines() if b"log.dropped" in line]
    assert said[0]["lines"] == writer.dropped_count == lost
    assert taken - 1 + lost == written
    writer.close()


def test_nobody_is_left_to_be_told_when_standard_error_is_closed() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    writer = LineWriter(writes)
    writer.write(LINE)
    writer.close()
    assert writer.dropped_count == 1
    os.close(writes)
