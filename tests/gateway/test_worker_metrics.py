"""What the engine's worker says in its beats, as `/metrics` shows it."""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.observe.metrics import Metrics, exposition
from gateway.observe.shared import SharedMetrics, forget_all
from gateway.observe.worker import WorkerCounts, newest, showable
from gateway.settings.types import WorkerHostSettings
from proto.limits import LINK_LABELS, LINK_SERIES
from proto.messages import Beat, Metric, Submit
from tests.fakes.worker import READY, FakeWorker
from tests.gateway.harness import Running, running_gateway

PREFIX = "tandem_worker_"
BUCKETS = {"1": 2, "2.5": 2, "+Inf": 3}
SECONDS = {"buckets": BUCKETS, "sum": 7.25, "count": 3}


def sample(name: str, value: Any = 1, **labels: str) -> Metric:
    return Metric(PREFIX + name, labels, value)


def requests(count: float) -> Metric:
    return sample("requests_total", count, finish="stop")


async def say_nothing(worker: FakeWorker, run: Submit) -> None:
    """No run is asked for."""


@asynccontextmanager
async def scraped(
    tmp_path: Path, *metrics: Metric, worker_id: str = "0123456789abcdef"
) -> AsyncIterator[tuple[Running, FakeWorker, Callable[[Callable[[str], bool]], Any]]]:
    """A gateway whose worker beats so; and what waits until `/metrics` looks as it should."""
    worker = FakeWorker(say_nothing)
    worker.metrics = metrics
    worker.ready = replace(READY, worker_id=worker_id)
    async with worker.listening(tmp_path) as endpoint:
        host = WorkerHostSettings(endpoint=endpoint, spawn=False)
        async with (
            running_gateway(tmp_path, worker=host) as gateway,
            httpx.AsyncClient(base_url=gateway.base, timeout=10) as client,
        ):

            async def until(is_so: Callable[[str], bool]) -> str:
                async with asyncio.timeout(10):
                    while True:
                        answer = await client.get("/metrics")
                        assert answer.status_code == 200
                        if is_so(answer.text):
                            return answer.text
                        await asyncio.sleep(0.02)

            yield gateway, worker, until


def of_worker(text: str) -> list[str]:
    return [line for line in text.splitlines() if PREFIX in line]


def shown(*samples: Metric) -> list[str]:
    """The lines of a worker that says so; they can be read."""
    counts = WorkerCounts("w", "1", tuple(showable(samples)))
    text = exposition(Metrics().values(), counts)[1].decode()
    assert [*text_string_to_metric_families(text)]
    return of_worker(text)


async def test_counters_gauges_and_histograms_are_shown_with_their_worker(tmp_path: Path) -> None:
    beat = (
        requests(3),
        sample("uptime_s", 1.5),
        sample("requests_total", 2**40, finish="eos"),  # another family lies between
        sample("ttft_ms", SECONDS),
        sample("info", 1, model='a "b" \\ c'),
    )
    async with scraped(tmp_path, *beat) as (_, _, until):
        text = await until(lambda text: PREFIX in text)
    assert of_worker(text) == [
        "# HELP tandem_worker_requests_total Of the engine's worker.",
        "# TYPE tandem_worker_requests_total counter",
        'tandem_worker_requests_total{finish="stop",worker="0123456789abcdef"} 3.0',
        'tandem_worker_requests_total{finish="eos",worker="0123456789abcdef"} 1.099511627776e+12',
        "# HELP tandem_worker_uptime_s Of the engine's worker.",
        "# TYPE tandem_worker_uptime_s gauge",
        'tandem_worker_uptime_s{worker="0123456789abcdef"} 1.5',
        "# HELP tandem_worker_ttft_ms Of the engine's worker.",
        "# TYPE tandem_worker_ttft_ms histogram",
        'tandem_worker_ttft_ms_bucket{le="1",worker="0123456789abcdef"} 2.0',
        'tandem_worker_ttft_ms_bucket{le="2.5",worker="0123456789abcdef"} 2.0',
        'tandem_worker_ttft_ms_bucket{le="+Inf",worker="0123456789abcdef"} 3.0',
        'tandem_worker_ttft_ms_count{worker="0123456789abcdef"} 3.0',
        'tandem_worker_ttft_ms_sum{worker="0123456789abcdef"} 7.25',
        "# HELP tandem_worker_info Of the engine's worker.",
        "# TYPE tandem_worker_info gauge",
        'tandem_worker_info{model="a \\"b\\" \\\\ c",worker="0123456789abcdef"} 1.0',
    ]
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["tandem_worker_info"].samples[0].labels["model"] == 'a "b" \\ c'
    assert families["tandem_worker_requests"].samples[1].value == 2**40
    assert 'tandem_link_faults_total{kind="samples"} 0.0' in text


async def test_each_beat_takes_the_place_of_the_last_one(tmp_path: Path) -> None:
    async with scraped(tmp_path, requests(1), sample("running", 1)) as (_, worker, until):
        await until(lambda text: f'{PREFIX}running{{worker="0123456789abcdef"}} 1.0' in text)
        worker.metrics = (requests(2),)
        text = await until(lambda text: '"} 2.0' in "".join(of_worker(text)))
    assert len(of_worker(text)) == 3


async def test_a_worker_whose_lease_is_lost_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.backends.engine.LINK_LEASE_S", 0.6)
    monkeypatch.setattr("gateway.backends.engine.LINK_BEAT_S", 0.1)
    async with scraped(tmp_path, requests(1)) as (_, worker, until):
        await until(lambda text: PREFIX in text)
        worker.is_silent = True
        text = await until(lambda text: PREFIX not in text)
        assert "tandem_link_faults_total" in text
        worker.is_silent = False
        await until(lambda text: PREFIX in text)


async def test_the_next_worker_is_not_shown_with_the_counts_of_the_last(tmp_path: Path) -> None:
    async with scraped(tmp_path, requests(7)) as (gateway, worker, until):
        await until(lambda text: PREFIX in text)
        worker.metrics = ()
        link = gateway.gateway.engine
        assert link is not None
        link.lose("the worker was ended")
        await link._take(Beat("idle", metrics=(requests(7),)))  # was under way when it ended
        await link._take(replace(worker.ready, incarnation="2"))
        counts = gateway.gateway.metrics.worker()
        assert counts is not None and (counts.incarnation, counts.samples) == ("2", ())


async def test_odd_samples_are_counted_and_the_others_shown(tmp_path: Path) -> None:
    odd = (sample("a-b"), sample("text", "1"), requests(-1))
    async with scraped(tmp_path, *odd, requests(4)) as (gateway, _, until):
        text = await until(lambda text: PREFIX in text)
        assert len(of_worker(text)) == 3
        beats = gateway.gateway._beats
        assert beats is not None
        beats.counts()
        count = beats.left_out_count
        beats.counts()  # a beat is counted once, however often it is shown
        assert beats.left_out_count == count
    counted = re.search(r'tandem_link_faults_total{kind="samples"} (\S+)', text)
    assert counted and float(counted[1]) == len(odd)  # in the very answer that lacks them


HUGE = {str(number): 1 for number in range(LINK_SERIES)} | {"+Inf": 1}


@pytest.mark.parametrize(
    "odd",
    [
        Metric("tandem_requests_total", {}, 1),  # one of the gateway's own
        Metric("", {}, 1),
        sample(""),
        sample("a b"),
        sample("a\n"),
        sample("ä"),
        sample("a" * 300),
        Metric(f"{PREFIX}a", {"worker": "x"}, 1),
        Metric(f"{PREFIX}a", {"le": "1"}, 1),
        Metric(f"{PREFIX}a", {"__name__": "x"}, 1),
        Metric(f"{PREFIX}a", {"": "x"}, 1),
        Metric(f"{PREFIX}a", {"a-b": "x"}, 1),
        Metric(f"{PREFIX}a", {"kind": "x" * 300}, 1),
        Metric(f"{PREFIX}a", {"kind": "\0"}, 1),
        Metric(f"{PREFIX}a", {"kind": "\n"}, 1),
        Metric(f"{PREFIX}a", {"kind": "\ud800"}, 1),
        Metric(f"{PREFIX}a", {f"l{number}": "x" for number in range(LINK_LABELS + 1)}, 1),
        *(sample("a", value) for value in (None, "1", True, [1])),
        *(sample("a_total", value) for value in (None, "1", True, [1], SECONDS, -1, math.nan,
                                                 math.inf)),
        sample("a", {}),
        sample("a", {"buckets": BUCKETS, "sum": 7.25}),
        sample("a", {"buckets": BUCKETS, "sum": math.nan, "count": 3}),
        sample("a", {"buckets": BUCKETS, "sum": 1, "count": 4}),
        sample("a", {"buckets": [], "sum": 1, "count": 3}),
        *(
            sample("a", {"buckets": buckets, "sum": 1, "count": 3})
            for buckets in (
                {},
                {"1": 3},
                {"+Inf": 3, "1": 3},
                {"+Inf": "3"},
                {"2": 1, "1": 2, "+Inf": 3},
                {"1": 1, "1.0": 2, "+Inf": 3},
                {"1": 2, "2": 1, "+Inf": 3},
                {"1": -1, "+Inf": 3},
                {"1": None, "+Inf": 3},
                {"x": 1, "+Inf": 3},
                {"1_0": 1, "+Inf": 3},
                {"nan": 1, "+Inf": 3},
                {"9" * 400: 1, "+Inf": 3},
            )
        ),
        sample("a", {"buckets": HUGE, "sum": 1, "count": 1}),
    ],
)  # fmt: skip
def test_an_odd_sample_is_left_out_alone(odd: Metric) -> None:
    assert shown(odd, requests(1)) == shown(requests(1))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (sample("a", 1, kind="x"), sample("a", 2, kind="x")),
        (sample("a", 1), sample("a", SECONDS)),
        (sample("a", 1, kind="x"), sample("a", 2, other="x")),
        (sample("a", SECONDS), sample("a_count", 2)),
        (sample("a_sum", 2), sample("a", SECONDS)),
    ],
)
def test_what_contradicts_an_earlier_sample_is_left_out(first: Metric, second: Metric) -> None:
    assert shown(first, second) == shown(first)


def test_a_gauge_may_be_no_number_that_one_can_count_to() -> None:
    values = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}
    for value, text in values.items():
        assert shown(sample("a", float(value)))[-1] == f'{PREFIX}a{{worker="w"}} {text}'


def test_a_worker_fills_so_many_lines_and_no_more() -> None:
    many = [sample("a", number, n=str(number)) for number in range(3 * LINK_SERIES)]
    lines = [line for line in shown(*many) if not line.startswith("#")]
    assert len(lines) == LINK_SERIES
    histograms = [sample("a", SECONDS, n=str(number)) for number in range(LINK_SERIES)]
    lines = [line for line in shown(*histograms) if not line.startswith("#")]
    assert LINK_SERIES - 5 < len(lines) <= LINK_SERIES


async def test_a_worker_with_an_odd_id_is_shown_with_what_can_be_written_of_it(
    tmp_path: Path,
) -> None:
    async with scraped(tmp_path, requests(1), worker_id='"\0\n' + "x" * 5000) as (_, _, until):
        text = await until(lambda text: PREFIX in text)
    assert f'worker="\\"{"x" * 13}"}} 1.0' in text


# Several processes, each with a link of its own to the one worker.


def knowing(folder: Path, number: int, *samples: Metric, life: str = "1") -> SharedMetrics:
    metrics = SharedMetrics(folder, number)
    metrics.worker = lambda: WorkerCounts("w", life, samples)
    return metrics


async def lines_of(metrics: SharedMetrics) -> list[str]:
    worker = await metrics.shown_worker()
    text = exposition(await metrics.shown(), worker)[1].decode()
    return [line for line in of_worker(text) if not line.startswith("#")]


BEAT = (requests(5), sample("running", 1), sample("ttft_ms", SECONDS))


async def test_a_worker_is_shown_once_whichever_process_is_asked(tmp_path: Path) -> None:
    processes = [knowing(tmp_path, number, *BEAT) for number in (1, 2, 3)]
    expected = [line for line in shown(*BEAT) if not line.startswith("#")]
    for metrics in (*processes, *processes):
        metrics.write()
        assert await lines_of(metrics) == expected


async def test_what_one_has_shown_of_the_worker_no_other_takes_back(tmp_path: Path) -> None:
    """A process that is behind by a beat would make a scraper take that for a restart."""
    ahead = knowing(tmp_path, 1, requests(6), sample("running", 2))
    behind = knowing(tmp_path, 2, requests(5), sample("running", 1))
    expected = await lines_of(ahead)
    assert expected[0].endswith(" 6.0")
    assert await lines_of(behind) == expected
    starting = knowing(tmp_path, 3)  # has heard no beat yet
    assert await lines_of(starting) == expected
    behind.worker = lambda: WorkerCounts("w", "1", (requests(6), sample("running", 0)))
    assert (await lines_of(behind))[1].endswith(" 0.0")  # nothing counted since: our own is it


async def test_histograms_say_too_which_beat_is_the_later(tmp_path: Path) -> None:
    later = {"buckets": {**BUCKETS, "+Inf": 4}, "sum": 8, "count": 4}
    expected = await lines_of(knowing(tmp_path, 1, sample("ttft_ms", later)))
    assert await lines_of(knowing(tmp_path, 2, sample("ttft_ms", SECONDS))) == expected


async def test_the_counts_of_a_worker_that_is_gone_are_not_those_of_the_next(
    tmp_path: Path,
) -> None:
    await lines_of(knowing(tmp_path, 1, requests(9)))
    assert (await lines_of(knowing(tmp_path, 2, requests(1), life="2")))[0].endswith(" 1.0")
    alone = SharedMetrics(tmp_path, 3)  # whose lease is lost
    assert await lines_of(alone) == []


async def test_a_process_that_has_left_the_folder_shows_what_it_knows_itself(
    tmp_path: Path,
) -> None:
    orphan, other = knowing(tmp_path, 1, requests(5)), knowing(tmp_path, 2, requests(9))
    await lines_of(other)
    orphan.leave()
    assert (await lines_of(orphan))[0].endswith(" 5.0")
    forget_all(tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_every_sample_survives_its_file() -> None:
    counts = WorkerCounts("w", "1", BEAT)
    assert WorkerCounts.from_json(counts.to_json()) == counts
    assert newest(counts, [WorkerCounts("v", "1", (requests(99),))]) is counts
