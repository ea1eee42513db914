"""The socket: who may bind what, and what strange bytes do to it."""

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from scripted import READY
from wire import Gateway

from proto.codec import encode
from proto.limits import LINK_MESSAGE_BYTES
from proto.messages import Beat, Cancel, Hello, Ready, Refused
from worker.faults import EndpointFault
from worker.link import STUCK_AFTER_S, Endpoint, Link
from worker.mailbox import Board, Inbox, Outbox

HELLO = Hello("g", "i", 1, 1)


class Linked:
    """A link in a thread of its own, with nobody behind it."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = Endpoint(f"ipc://{folder}/w.sock")
        self.now = 0.0
        self.board = Board(self.now)
        self.to_loop: Inbox = Inbox()
        self._outbox = Outbox()
        self._stop = threading.Event()
        self._link = Link(
            self.endpoint,
            READY,
            preparer=Inbox(),
            loop=self.to_loop,
            outbox=self._outbox,
            board=self.board,
            clock=lambda: self.now,
        )
        self._thread = threading.Thread(target=self._link.run, args=(self._stop,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self.wake()
        self._thread.join(10)
        assert not self._thread.is_alive()
        self.endpoint.release()

    def wake(self) -> None:
        """Makes the link look at its clock."""
        os.write(self._outbox._write_fd, b"\0")


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[Linked]:
    linked = Linked(tmp_path)
    yield linked
    linked.close()


def test_hello_gets_ready_over_the_socket(linked: Linked):
    with Gateway(linked.endpoint.address) as gateway:
        gateway.say(HELLO)
        assert gateway.hear() == READY


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ((b"\xc1garbage",), "bad_message"),
        ((b"",), "bad_message"),
        ((b"\x80\x04\x95.",), "bad_message"),  # a pickle
        ((b"\x93\x01\x02\x03",), "bad_message"),
        ((encode(HELLO), b"x"), "bad_message"),
        ((b"\x82\xa1v\x01\xa1t\xa5Fancy",), "bad_message"),
        ((b"\x82\xa1v\x01\xa1t\xa6Cancel",), "bad_message"),
        ((b"\x82\xa1v\x07\xa1t\xa5Hello",), "version"),
        ((b"\x81" * 5000 + b"\xc0",), "bad_message"),
        ((b"x" * (LINK_MESSAGE_BYTES + 1),), "bad_message"),
    ],
    ids=[
        "garbage", "empty", "pickle", "list", "two frames", "unknown type", "no fields",
        "version", "deep", "oversized",
    ],
)  # fmt: skip
def test_strange_bytes_are_answered_and_harm_nobody(
    linked: Linked, frames: tuple[bytes, ...], code: str
):
    with Gateway(linked.endpoint.address) as gateway:
        gateway.say(HELLO)
        assert isinstance(gateway.hear(), Ready)
        gateway.say_bytes(*frames)
        refused = gateway.hear()
        assert isinstance(refused, Refused)
        assert refused.code == code
        gateway.say(HELLO)
        assert isinstance(gateway.hear(), Ready)


def test_two_gateways_hear_their_own_answers(linked: Linked):
    address = linked.endpoint.address
    with Gateway(address, b"gw:1") as one, Gateway(address, b"gw:2") as two:
        one.say(HELLO)
        assert isinstance(one.hear(), Ready)
        two.say(Cancel("r1", 1, "x"))
        assert isinstance(two.hear(), Refused)
        one.say(HELLO)
        assert isinstance(one.hear(), Ready)


def test_a_gateway_that_vanished_is_no_fault(linked: Linked):
    address = linked.endpoint.address
    with Gateway(address, b"gw:1") as one:
        one.say(HELLO)
        assert isinstance(one.hear(), Ready)
    linked.now += 2.0  # a beat to nobody is due
    with Gateway(address, b"gw:2") as two:
        two.say(HELLO)
        assert isinstance(two.hear(), Ready)


def test_b58_beats_come_while_the_loop_turns_and_stop_when_it_hangs(linked: Linked):
    with Gateway(linked.endpoint.address) as gateway:
        gateway.say(HELLO)
        assert isinstance(gateway.hear(), Ready)
        linked.board.beat = Beat("busy", running=1)
        linked.now += 4.0  # a long chunk: the pulse is old, not lost
        linked.wake()
        while gateway.hear_beat()["state"] != "busy":
            continue  # the beat of the first second
        while linked.now - linked.board.pulse_s <= STUCK_AFTER_S:
            linked.now += 4.0
            gateway.say(HELLO)
            gateway.hear()
        beats = gateway.beats
        for _ in range(3):
            linked.now += 2.0
            gateway.say(HELLO)
            gateway.hear()
        assert gateway.beats == beats


def test_the_socket_is_for_its_owner_only(linked: Linked):
    path = Path(linked.endpoint.address.removeprefix("ipc://"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_folder_is_made_for_its_owner_only(tmp_path: Path):
    endpoint = Endpoint(f"ipc://{tmp_path}/run/w.sock")
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    endpoint.release()


def test_a_folder_open_to_others_is_refused(tmp_path: Path):
    tmp_path.chmod(0o755)
    with pytest.raises(EndpointFault, match="0700"):
        Endpoint(f"ipc://{tmp_path}/w.sock")


def test_a_second_worker_on_the_endpoint_is_refused_and_a_stale_socket_is_not(tmp_path: Path):
    address = f"ipc://{tmp_path}/w.sock"
    first = Endpoint(address)
    with pytest.raises(EndpointFault, match="already listens"):
        Endpoint(address)
    (tmp_path / "w.sock").touch()  # as a killed worker leaves it
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    first.bind(socket)
    socket.close()
    context.term()
    first.release()
    Endpoint(address).release()


@pytest.mark.parametrize(
    "address",
    ["tcp://0.0.0.0:5555", "tcp://10.0.0.1:5555", "tcp://*:5555", "tcp://worker:5555",
     "udp://127.0.0.1:1", "ipc://@abstract", "ipc://relative", "nonsense"],
)  # fmt: skip
def test_addresses_that_others_could_reach_are_refused(address: str):
    with pytest.raises(EndpointFault) as caught:
        Endpoint(address)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:0", "tcp://localhost:0", "tcp://[::1]:0"])
def test_loopback_addresses_are_allowed(address: str):
    Endpoint(address).release()


def test_an_address_that_is_taken_is_one_sentence():
    context = zmq.Context()
    holder, socket = context.socket(zmq.ROUTER), context.socket(zmq.ROUTER)
    port = holder.bind_to_random_port("tcp://127.0.0.1")
    try:
        with pytest.raises(EndpointFault, match="cannot be bound"):
            Endpoint(f"tcp://127.0.0.1:{port}").bind(socket)
    finally:
        holder.close()
        socket.close()
        context.term()
