"""The table of tasks, and what profiles may change of it."""

import pytest

from conductor.monitor.tasks import TASKS, Params, monitor_plan, override_faults
from proto.plan import MonitorTask


def test_without_overrides_every_task_is_as_the_table_says() -> None:
    plan = monitor_plan({})
    assert {name: task.mode for name, task in plan.tasks.items()} == {
        "D1": "act", "D1b": "act", "D2": "act", "D3": "shadow", "E1": "act", "E2": "shadow",
        "C1": "act", "C2": "shadow", "C3": "act", "C4": "shadow", "C5": "shadow",
        "C6": "shadow", "M1": "shadow",
    }  # fmt: skip
    assert (plan.continuations, plan.regenerations, plan.hidden_tokens) == (2, 1, 2048)


def test_an_override_changes_its_mode_and_its_parameters_alone() -> None:
    plan = monitor_plan({"C4": MonitorTask("act", {"line_repeats": 24})}, continuations=1)
    assert plan.tasks["C4"].mode == "act" and plan.continuations == 1
    params = Params("C4", plan.tasks["C4"])
    assert params.count("line_repeats") == 24
    assert params.count("min_tokens") == TASKS["C4"].params["min_tokens"]
    assert plan.tasks["D1"] == monitor_plan({}).tasks["D1"]


@pytest.mark.parametrize(
    ("name", "task", "sentence"),
    [
        ("D9", MonitorTask("act"), "unknown task 'D9'; known: D1, D1b"),
        ("D1", MonitorTask("on"), "mode 'on' is none of off, shadow, act"),  # type: ignore[arg-type]
        ("E2", MonitorTask("act"), "task E2 has no act yet; known modes: off, shadow"),
        ("C1", MonitorTask("act", {"x": 1}), "unknown parameter 'C1.params.x'; known: none"),
        ("D1", MonitorTask("act", {"times": "4"}), "D1.params.times: expected a whole number"),
        ("D1", MonitorTask("act", {"times": True}), "D1.params.times: expected a whole number"),
        ("D1", MonitorTask("act", {"times": -1}), "expected a number from 0 to 1,000,000"),
        ("D1", MonitorTask("act", {"new_share": "a"}), "expected a number"),
        ("D1", MonitorTask("act", {"bridge": 5}), "expected text"),
        ("C5", MonitorTask("act", {"verbs": ["a", 5]}), "expected a list of texts"),
        ("C5", MonitorTask("act", {"verbs": "a"}), "expected a list of texts"),
    ],
)
def test_what_is_wrong_with_an_override_is_told(
    name: str, task: MonitorTask, sentence: str
) -> None:
    (fault,) = override_faults({name: task})
    assert sentence in fault.sentence and fault.path[0] == name


def test_good_overrides_have_no_fault() -> None:
    good = {
        "D1": MonitorTask("off", {"new_share": 1, "bridge": "Enough."}),
        "C5": MonitorTask("act", {"verbs": ["post"]}),
        "E2": MonitorTask("off"),
    }
    assert override_faults(good) == ()


def test_parameters_come_in_their_types() -> None:
    plan = monitor_plan({})
    assert Params("D1", plan.tasks["D1"]).share("new_share") == 0.25
    assert Params("C5", plan.tasks["C5"]).names("verbs")[0] == "send"
    assert Params("D1", MonitorTask("act")).text("bridge")
