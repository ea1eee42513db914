"""When a waiting run's turn will come: the lanes played forward. Knows no run, clock or rate.

The lanes share one device, so a run takes the longer the more others run beside it, and its end
frees a lane for the next. Sums over lanes miss that; playing the few runs there are forward is
cheap and follows the same rules as the loop (`turns`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LEAST_S = 1e-6  # of work; what is less is done


@dataclass(slots=True)
class Work:
    """What a run still needs of the device, were it alone: seconds of reading, then of writing.

    `is_first`: it is of a burst, which is read before anybody writes.
    """

    read_s: float
    write_s: float
    is_first: bool = False

    @property
    def is_reading(self) -> bool:
        """Whether its prompt comes first."""
        return self.read_s > LEAST_S


def wait_s(running: Iterable[Work], ahead: Iterable[Work], lanes: int, share: float) -> float:
    """Seconds until a lane is free for who waits behind `ahead`. `share`: of reading."""
    lane_works, queue = list(running), list(ahead)
    burst = [work for work in lane_works if work.is_first]
    passed_s = 0.0
    while True:
        lane_works = [work for work in lane_works if work.is_reading or work.write_s > LEAST_S]
        while queue and len(lane_works) < lanes:
            lane_works.append(queue.pop(0))
        if len(lane_works) < lanes:
            return passed_s
        reading = [work for work in lane_works if work.is_reading]
        is_burst = len(reading) == len(lane_works)
        burst = reading if is_burst else [work for work in burst if work.is_reading]
        passed_s += _play(lane_works, reading, burst, share)


def _play(
    lane_works: Sequence[Work], reading: Sequence[Work], burst: Sequence[Work], share: float
) -> float:
    """Goes on until one of them has read or written all that it had to; the seconds of that."""
    writing = [work for work in lane_works if not work.is_reading]
    reading = burst or reading
    if burst:
        writing = []
    of_reading = share if reading and writing else float(bool(reading))
    paces = [(work, of_reading / len(reading)) for work in reading]
    paces += [(work, (1.0 - of_reading) / len(writing)) for work in writing]
    # Who reads goes on to write at a pace of its own, so each of its two parts ends apart.
    seconds = min((work.read_s if work.is_reading else work.write_s) / pace for work, pace in paces)
    for work, pace in paces:
        if work.is_reading:
            work.read_s -= seconds * pace
        else:
            work.write_s -= seconds * pace
    return seconds
