"""Numbers of the settings that make no sense stop the worker with a sentence that names them."""

import re
from dataclasses import replace

import pytest

from proto.worker_settings import (
    DraftSettings,
    Launch,
    LookupSettings,
    PrefillSettings,
    SpeculationSettings,
    WarmSettings,
    WorkerSettings,
)
from worker.draft.drafters import drafters_of
from worker.faults import StartFault
from worker.settings import bounds_of, check_warm, machine_of
from worker.speculation.cut import Bounds


@pytest.mark.parametrize(
    ("changes", "device", "words"),
    [
        ({"max_rows": 1}, "cpu", "worker.speculation.max_rows is 1; it must be 2 to 64."),
        ({"max_rows": 65}, "cuda", "worker.speculation.max_rows is 65; it must be 2 to 64."),
        ({"snap": (1, 8)}, "cpu", "names 8 and 1 rows; they must be 2 to 64"),
        ({"snap": (8, 40)}, "cuda", "names 40 and 8 rows; they must be 2 to 32"),
        ({"margin": 0.99}, "cpu", "worker.speculation.margin is 0.99; it must be 1 to 10"),
        ({"margin": float("nan")}, "cpu", "worker.speculation.margin is nan"),
    ],
)
def test_what_a_draft_cannot_be_cut_to_is_refused(changes, device, words: str):
    with pytest.raises(StartFault, match=re.escape(words)):
        bounds_of(SpeculationSettings(**changes), device)


def test_rows_of_a_verify_are_those_of_the_device_unless_they_are_set():
    unset = SpeculationSettings()
    assert bounds_of(unset, "cpu") == Bounds(64, (), 1.02)
    assert bounds_of(unset, "cuda") == Bounds(32, (8, 16, 24, 32), 1.02)
    assert bounds_of(replace(unset, max_rows=12, snap=(12, 4)), "cuda") == Bounds(12, (4, 12), 1.02)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"min_match": 2}, "worker.draft.lookup.min_match is 2; it must be 3 to 32."),
        ({"min_match": 33}, "worker.draft.lookup.min_match is 33; it must be 3 to 32."),
        ({"min_expected": -0.1}, "worker.draft.lookup.min_expected is -0.1; it must be at least 0"),
        ({"min_expected": 16.0}, "below the 16 rows of worker.speculation.max_rows"),
        ({"min_expected": float("nan")}, "worker.draft.lookup.min_expected is nan"),
    ],
)
def test_a_lookup_that_could_never_copy_is_refused(changes, words: str):
    settings = WorkerSettings(draft=DraftSettings(lookup=LookupSettings(**changes)))
    with pytest.raises(StartFault, match=re.escape(words)):
        drafters_of(settings, most_rows=16, stores=None, new_block=None)
    for right in (LookupSettings(min_match=3, min_expected=0.0), LookupSettings(min_match=32)):
        settings = WorkerSettings(draft=DraftSettings(lookup=right))
        assert drafters_of(settings, most_rows=16, stores=None, new_block=None)()


@pytest.mark.parametrize("age_s", [0.0, -1.0, 3600.1, float("nan"), float("inf")])
def test_an_age_at_which_nothing_is_read_ahead_or_for_ever_is_refused(age_s: float):
    words = f"worker.warm.max_age_s is {age_s}; it must be above 0 and at most 3600."
    with pytest.raises(StartFault, match=re.escape(words)):
        check_warm(WarmSettings(max_age_s=age_s))
    for right in (0.1, 60.0, 3600.0):
        check_warm(WarmSettings(max_age_s=right))


@pytest.mark.parametrize("share", [0.0, 0.04, 0.96, 1.0, -1.0, float("nan")])
def test_a_share_that_would_starve_one_side_is_refused(share: float):
    def launch(value: float) -> Launch:
        settings = WorkerSettings(prefill=PrefillSettings(share=value))
        return Launch(settings, "m", "/m", "ipc:///x", "/x")

    with pytest.raises(
        StartFault, match=r"worker\.prefill\.share is .*; it must be 0\.05 to 0\.95"
    ):
        machine_of(launch(share), has_cuda=False)
    for right in (0.05, 0.5, 0.95):
        machine_of(launch(right), has_cuda=False)
