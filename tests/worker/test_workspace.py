"""What a forward takes, computed from the shape alone, against what it takes in truth."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs
from tiny_checkpoints import build, write_tiny

from worker import workspace as workspace_room
from worker.kernels.attention import Prefill
from worker.kernels.tree import tree_rows
from worker.memory import MIB
from worker.models.decoder import Decoder
from worker.models.sizes import kv_bytes, state_bytes, workspace_bytes
from worker.workspace import Workspace, _host_bytes, check, measured_bytes

CPU = torch.device("cpu")
# Wide enough for the activations of a row to outweigh the few bytes of everything else.
WIDE = {"hidden_size": 256, "intermediate_size": 768, "head_dim": 64}
WIDE_DELTA = WIDE | {"linear_key_head_dim": 64, "linear_value_head_dim": 64}
MODELS = {
    "llama": WIDE,
    "gemma3": WIDE | {"vocab_size": 8192},
    "qwen3_5": WIDE_DELTA,
    "qwen3_5_moe": WIDE_DELTA,
}
CHUNK, ROWS = 256, 64


@pytest.fixture(scope="module", params=MODELS)
def folder(request, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    write_tiny(request.param, path, **MODELS[request.param])
    return path


def counted_bytes(work: Callable[[], object]) -> int:
    """The most that is allocated at a time, to the byte."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        work()
    held = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


@torch.inference_mode()
def forward(model: Decoder, start: int, *, rows: int, is_tree: bool) -> int:
    cache = model.new_cache(512)
    ids = torch.arange(rows)
    where = (
        tree_rows(range(-1, rows - 1), start=start, conv_width=model.conv_width)
        if is_tree
        else Prefill(start, rows)
    )

    @torch.inference_mode()
    def work() -> None:
        hidden = model.forward(ids, cache, where)
        model.logits(hidden if is_tree else hidden[-1:])

    return counted_bytes(work)


@pytest.mark.parametrize("layout", ["fp32", "bf16", "int8", "q4", "mixed"])
def test_a_forward_takes_at_most_what_is_computed_and_at_least_half_of_it(folder: Path, layout):
    model = build(folder, layout)
    for start, rows, is_tree in ((0, CHUNK, False), (224, CHUNK, False), (200, ROWS, True)):
        computed = workspace_bytes(
            model.config,
            model.dtype,
            rows=rows,
            logit_rows=rows if is_tree else 1,
            length=start + rows,
        )
        counted = forward(model, start, rows=rows, is_tree=is_tree)
        assert 1.0 <= computed / counted <= 2.2, (start, rows, computed, counted)


def test_a_cache_holds_what_is_computed_for_it(folder: Path):
    model = build(folder, "bf16")
    cache = model.new_cache(96)
    delta = 0 if cache.delta is None else cache.delta.size_bytes
    assert kv_bytes(model.config, model.dtype, 96) == cache.kv.size_bytes
    assert state_bytes(model.config, model.dtype) == delta
    assert model.cache_bytes(96) == cache.kv.size_bytes + delta
    with torch.inference_mode():
        frozen = cache.freeze(40)
    taken = sum(part.numel() * part.element_size() for part in frozen)
    assert model.cache_bytes(40) == taken, "what a copy takes is known before it is made"


def test_a_prompt_needs_its_rows_its_anchors_and_both_workspaces(folder: Path):
    model = build(folder, "bf16")
    config, dtype = model.config, model.dtype
    sizes = Workspace(config, dtype, CHUNK, ROWS, chunk_extra=5, verify_extra=7)
    need = sizes.prompt_bytes(length=400, new=300, anchors=2)
    chunk = workspace_bytes(config, dtype, rows=CHUNK, logit_rows=1, length=400)
    verify = workspace_bytes(config, dtype, rows=ROWS, logit_rows=ROWS, length=400 + ROWS)
    assert need == (
        kv_bytes(config, dtype, 300) + 3 * state_bytes(config, dtype) + chunk + 5 + verify + 7
    )
    assert sizes.chunk_bytes(40) < sizes.chunk_bytes(CHUNK) < sizes.chunk_bytes(400)
    tapped = Workspace(config, dtype, CHUNK, ROWS, tapped=3, chunk_extra=5)
    taps = 3 * 2 * CHUNK * config.hidden_size * 4
    assert tapped.chunk_bytes(400) - sizes.chunk_bytes(400) == taps


# Measured.


ROOT = Path(__file__).resolve().parents[2]
MOMENT = """
import torch
from worker.workspace import measured_bytes

def work():
    torch.zeros(12 << 20)
    torch.zeros(4 << 20)  # not at the same time

cpu = torch.device("cpu")
print(measured_bytes(cpu, work), measured_bytes(cpu, lambda: None))
"""


def test_what_is_taken_for_a_moment_is_measured():
    # In a process of its own: other tests leave a heap in which nothing is given back at once.
    done = subprocess.run([sys.executable, "-c", MOMENT], capture_output=True, text=True, cwd=ROOT)
    took, nothing = map(int, done.stdout.split())
    assert took == pytest.approx(48 * MIB, rel=0.1)
    assert nothing < MIB


def test_what_the_heap_has_free_is_measured_too():
    def work() -> None:
        assert [torch.zeros(2 * MIB // 4) for _ in range(8)]

    torch.zeros(8 * MIB // 4)  # from now on the heap serves what is no larger
    tensors = [torch.zeros(2 * MIB // 4) for _ in range(24)]
    kept = tensors[-1:]  # what lies below it stays in the process
    del tensors
    assert _host_bytes(work) == pytest.approx(16 * MIB, rel=0.2)
    del kept


@pytest.mark.parametrize(
    ("took", "extra"), [(10**9, 10**9), (1, 0), (None, 0)], ids=["more", "less", "unknown"]
)
def test_the_larger_of_computed_and_measured_is_used(folder: Path, monkeypatch, took, extra):
    model = build(folder, "bf16")
    works: list[Callable[[], object]] = []

    def measured(device: torch.device, work: Callable[[], object]) -> int | None:
        work()
        works.append(work)
        return took

    monkeypatch.setattr(workspace_room, "measured_bytes", measured)
    plain = Workspace(model.config, model.dtype, 64, 16, tapped=2)
    with capture_logs() as logs:
        checked = check(plain, model)
    untapped = Workspace(model.config, model.dtype, 64, 16)
    computed = untapped.chunk_bytes(128), untapped.verify_bytes(64)
    assert len(works) == 2
    assert (checked.chunk_extra, checked.verify_extra) == tuple(
        max(0, extra - bytes_computed) for bytes_computed in computed
    )
    (line,) = logs
    assert line["event"] == "memory.workspace_measured"
    assert (line["chunk_computed"], line["verify_computed"]) == computed
    assert line["chunk_measured"] == line["verify_measured"] == took


def test_a_chunk_of_this_machine_is_covered_when_it_is_read_again(folder: Path):
    model = build(folder, "bf16")
    checked = check(Workspace(model.config, model.dtype, CHUNK, ROWS), model)
    assert checked.chunk_bytes(480) >= forward(model, 224, rows=CHUNK, is_tree=False)
    assert checked.verify_bytes(200) >= forward(model, 200, rows=ROWS, is_tree=True)


def test_a_system_that_does_not_say_leaves_what_is_computed(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(workspace_room, "PROC_SELF", tmp_path / "none")
    assert measured_bytes(CPU, lambda: None) is None
