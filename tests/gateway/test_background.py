"""Work that nobody waits for: in order, bounded, and nobody fails by it."""

from collections.abc import Iterator
from threading import Event

import pytest
from structlog.testing import capture_logs

from gateway.background import Background


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background("test", most=3)
    yield made
    made.close()


def test_works_are_done_in_order_before_it_closes(background: Background) -> None:
    done: list[int] = []
    for number in range(3):
        background.put(lambda number=number: done.append(number))  # type: ignore[misc]
    background.close(60)
    assert done == [0, 1, 2]


def test_without_work_there_is_no_thread(background: Background) -> None:
    background.close()
    assert background._thread is None


def test_what_finds_no_room_is_counted_and_said(background: Background) -> None:
    is_running, may_go_on = Event(), Event()

    def wait() -> None:
        is_running.set()
        may_go_on.wait(60)

    done: list[int] = []
    with capture_logs() as logs:
        background.put(wait)
        assert is_running.wait(60)
        for number in range(5):
            background.put(lambda number=number: done.append(number))  # type: ignore[misc]
        assert background.dropped_count == 2
        may_go_on.set()
        background.close(60)
    assert done == [0, 1, 2]
    assert [(line["event"], line["count"]) for line in logs] == [("background.dropped", 2)]


def test_work_that_fails_costs_only_itself(background: Background) -> None:
    done: list[int] = []
    with capture_logs() as logs:
        background.put(lambda: [][0])
        background.put(lambda: done.append(1))
        background.close(60)
    assert done == [1]
    assert [(line["event"], line["fault"]) for line in logs] == [
        ("background.failed", "IndexError")
    ]


def test_what_comes_after_the_end_is_counted(background: Background) -> None:
    background.close()
    background.put(lambda: None)
    assert background.dropped_count == 1
