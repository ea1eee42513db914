"""Attention kernels: one interface, and one test for every kernel behind it.

Without a GPU flash-attn cannot run. What stands in for it here does what its documentation
says, so these tests show that we ask for the right thing and not that the package does it: that is
what the tests marked `gpu`, `make gpu-check` and the trial at each start of a worker are for.
"""

import builtins
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from worker.kernels import choice, flash
from worker.kernels.attention import Attention, Prefill, Rows, Step
from worker.kernels.choice import Heads, choose, trial_error
from worker.kernels.flash import FlashAttention
from worker.kernels.sdpa import SdpaAttention
from worker.kernels.tree import merged, tree_rows

FP32_TOLERANCE = 1e-5
BF16_TOLERANCE = 1e-2
SHAPES = {"grouped": (8, 2, 32), "one key head": (4, 1, 64), "no groups": (4, 4, 16)}
ROWS: tuple[Rows, ...] = (
    Prefill(0, 1), Prefill(0, 2), Prefill(0, 40), Prefill(1, 17), Prefill(150, 64), Step(0),
    Step(1), Step(150),
)  # fmt: skip
WINDOWS = (0, 1, 2, 24, 1000)
CPU = torch.device("cpu")


def documented_kernel(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    return_softmax_lse: bool = False,
) -> Any:
    """What flash_attn_with_kvcache says that it does: masks aligned to the lower right corner."""
    (_, rows, heads, dim), (batch, length, kv_heads, kv_dim) = q.shape, k_cache.shape
    assert (batch, kv_dim, v_cache.shape) == (1, dim, k_cache.shape)
    assert q.stride(-1) == k_cache.stride(-1) == v_cache.stride(-1) == 1
    assert dim % 8 == 0 and heads % kv_heads == 0 and length > 0
    assert all(stride % 8 == 0 for part in (q, k_cache, v_cache) for stride in part.stride()[1:3])
    keys, values = (
        part[0].repeat_interleave(heads // kv_heads, dim=1).float() for part in (k_cache, v_cache)
    )
    scores = torch.einsum("ihd,jhd->hij", q[0].float(), keys) * softmax_scale
    left, right = window_size
    right = 0 if causal else right
    at = torch.arange(rows)[:, None] + length - rows
    other = torch.arange(length)[None]
    hidden = torch.zeros(rows, length, dtype=torch.bool)
    if left >= 0:
        hidden |= other < at - left
    if right >= 0:
        hidden |= other > at + right
    scores = scores.masked_fill(hidden, -torch.inf)
    out = torch.einsum("hij,jhd->ihd", scores.softmax(-1), values)[None].to(q.dtype)
    return (out, scores.logsumexp(-1)[None]) if return_softmax_lse else out


def _heads(shape: str, dtype: torch.dtype = torch.float32, device: torch.device = CPU) -> Heads:
    return Heads(*SHAPES[shape], dtype, device)


def _naive(q: Tensor, keys: Tensor, values: Tensor, start: int, window: int) -> Tensor:
    """Row by row and head by head, as the words say."""
    out = torch.empty_like(q)
    group = q.shape[1] // keys.shape[1]
    for row, head in ((r, h) for r in range(q.shape[0]) for h in range(q.shape[1])):
        position = start + row
        first = max(0, position - window + 1) if window else 0
        seen = slice(first, position + 1)
        scores = keys[seen, head // group] @ q[row, head] * q.shape[2] ** -0.5
        out[row, head] = scores.softmax(0) @ values[seen, head // group]
    return out


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_sdpa_and_what_is_asked_of_flash_are_attention_by_its_definition(rows: Rows, window: int):
    shape = _heads("grouped")
    source = torch.Generator().manual_seed(1)
    length = rows.start + rows.count

    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=source)

    q = random(rows.count, shape.heads, shape.head_dim)
    keys, values = (random(length, shape.kv_heads, shape.head_dim) for _ in range(2))
    naive = _naive(q, keys, values, rows.start, window)
    cache = choice._cache(keys, values, 1)
    sight = choice.Sight(1, shape.head_dim**-0.5, window)
    kernels: tuple[Attention, ...] = (SdpaAttention(), FlashAttention(documented_kernel))
    for kernel in kernels:
        out = kernel.attend(q, sight, cache, rows)
        assert out.shape == q.shape
        assert (out - naive).abs().max() <= FP32_TOLERANCE, kernel.name


BUSH = (-1, 0, 1, 2, 1, 4, 0, 6, 6, 0, 9, 10, 11, 12, 13)


def _naive_tree(q: Tensor, keys: Tensor, values: Tensor, start: int, window: int) -> Tensor:
    """Each node alone, behind the prefix and its own ancestors."""
    out = torch.empty_like(q)
    for node in range(len(BUSH)):
        path = [node]
        while BUSH[path[0]] >= 0:
            path.insert(0, BUSH[path[0]])
        seen = [*range(start), *(start + at for at in path)]
        last = start + len(path) - 1
        out[node] = _naive(q[node : node + 1], keys[seen], values[seen], last, window)[0]
    return out


@pytest.mark.parametrize("window", [0, 1, 3, 24, 1000])
@pytest.mark.parametrize("start", [0, 1, 150])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_node_of_a_tree_sees_the_prefix_and_its_own_ancestors(
    shape: str, start: int, window: int
):
    heads, kv_heads, dim = SHAPES[shape]
    source = torch.Generator().manual_seed(start + window)
    length = start + len(BUSH)
    q = torch.randn(len(BUSH), heads, dim, generator=source)
    keys, values = (torch.randn(length, kv_heads, dim, generator=source) for _ in range(2))
    naive = _naive_tree(q, keys, values, start, window)
    cache, rows = choice._cache(keys, values, 1), tree_rows(BUSH, start=start)
    sight = choice.Sight(1, dim**-0.5, window)
    masked = SdpaAttention().attend(q, sight, cache, rows)
    found = FlashAttention(documented_kernel).attend(q, sight, cache, rows)
    assert (masked - naive).abs().max() <= FP32_TOLERANCE
    assert (found - masked).abs().max() <= 1e-6


def test_a_mask_is_made_once_for_all_layers_of_a_tree_and_anew_for_the_next():
    q, cache = (
        torch.randn(15, 4, 16),
        choice._cache(torch.randn(40, 4, 16), torch.randn(40, 4, 16), 1),
    )
    kernel, sight = SdpaAttention(), choice.Sight(1, 0.25)
    one, other = tree_rows(BUSH, start=20), tree_rows([-1, *range(14)], start=20)
    kernel.attend(q, sight, cache, one)
    mask = kernel._masks[0][1]
    kernel.attend(q, sight, cache, one)
    assert kernel._masks[0][1] is mask
    for rows in (other, Prefill(20, 15), one):
        for window in (0, 3):
            seen = choice.Sight(1, 0.25, window)
            alone = SdpaAttention().attend(q, seen, cache, rows)
            assert torch.equal(kernel.attend(q, seen, cache, rows), alone)


def test_attention_over_two_sets_is_merged_whatever_the_size_of_its_weights():
    one, other = torch.full((1, 1, 2), 1.0), torch.full((1, 1, 2), 3.0)
    for size in (-500.0, 0.0, 500.0):
        sums = torch.tensor([[size]]), torch.tensor([[size + math.log(3.0)]])
        found = merged(one, sums[0], other, sums[1])
        assert torch.allclose(found, torch.full((1, 1, 2), 2.5), atol=1e-4)


@pytest.mark.parametrize("window", [0, 24])
def test_a_row_that_is_read_alone_costs_and_gives_what_a_step_does(window: int):
    shape = _heads("grouped", torch.bfloat16)
    source = torch.Generator().manual_seed(1)
    q = torch.randn(1, 8, 32, generator=source).bfloat16()
    keys, values = (torch.randn(151, 2, 32, generator=source).bfloat16() for _ in range(2))
    cache = choice._cache(keys, values, 1)
    sight, kernel = choice.Sight(1, shape.head_dim**-0.5, window), SdpaAttention()
    alone, step = (kernel.attend(q, sight, cache, rows) for rows in (Prefill(150, 1), Step(150)))
    assert torch.equal(alone, step)
    assert not kernel._masks  # torch takes three times as long with one


@pytest.mark.parametrize("shape", SHAPES)
def test_heads_may_be_grouped_in_any_way(shape: str):
    for rows, window in ((Prefill(150, 64), 24), (Step(150), 0)):
        error = trial_error(FlashAttention(documented_kernel), _heads(shape), rows, window)
        assert error <= FP32_TOLERANCE


def test_flash_is_handed_views_of_the_cache_and_nothing_to_append():
    seen: list[dict[str, Any]] = []

    def recording(q: Tensor, k_cache: Tensor, v_cache: Tensor, **options: Any) -> Tensor:
        seen.append({"keys": k_cache, "values": v_cache, **options})
        return documented_kernel(q, k_cache, v_cache, **options)

    cache = choice._cache(torch.randn(60, 2, 32), torch.randn(60, 2, 32), 1)
    q, sight = torch.randn(20, 8, 32), choice.Sight(1, 0.5, 30)
    kernel = FlashAttention(recording)
    kernel.attend(q, sight, cache, Prefill(40, 20))
    kernel.attend(q[:1], sight, cache, Step(59))
    many, one = seen
    held = {part.untyped_storage().data_ptr() for part in cache.read(1, 60)}
    for call in seen:
        assert {call["keys"].untyped_storage().data_ptr()} <= held
        assert {call["values"].untyped_storage().data_ptr()} <= held
        assert set(call) == {"keys", "values", "softmax_scale", "causal", "window_size"}
    assert (many["causal"], many["window_size"], many["keys"].shape[1]) == (True, (29, 0), 49)
    assert (one["causal"], one["window_size"], one["keys"].shape[1]) == (False, (-1, -1), 30)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"dtype": torch.float32}, False),
        ({"device": CPU}, False),
        ({"head_dim": 20}, False),
        ({"head_dim": 256}, True),
        ({"head_dim": 264}, False),
    ],
)
def test_flash_takes_half_precision_on_cuda(changes: dict[str, Any], expected: bool):
    usual = {"dtype": torch.bfloat16, "device": torch.device("cuda"), "head_dim": 128}
    assert flash.takes(**{**usual, **changes}) is expected


def _chosen(monkeypatch: pytest.MonkeyPatch, load: Any) -> tuple[str, list[dict[str, Any]]]:
    """The kernel chosen, and what was logged, on a machine whose flash-attn is what `load` says."""
    monkeypatch.setattr(flash, "takes", lambda **_: True)
    monkeypatch.setattr(flash, "load", load)
    with capture_logs() as lines:
        kernel = choose(_heads("grouped", torch.bfloat16))
    return kernel.name, [dict(line) for line in lines]


def test_flash_serves_where_its_trial_is_right(monkeypatch: pytest.MonkeyPatch):
    found = _chosen(monkeypatch, lambda: FlashAttention(documented_kernel))
    assert found == ("flash", [])


def test_absence_is_normal_and_says_nothing(monkeypatch: pytest.MonkeyPatch):
    assert _chosen(monkeypatch, lambda: None) == ("sdpa", [])
    monkeypatch.undo()
    assert choose(_heads("grouped")).name == "sdpa"


def _ignores_windows(q: Tensor, k_cache: Tensor, v_cache: Tensor, **options: Any) -> Tensor:
    return documented_kernel(q, k_cache, v_cache, **{**options, "window_size": (-1, -1)})


def _sees_one_more(q: Tensor, k_cache: Tensor, v_cache: Tensor, **options: Any) -> Tensor:
    left, right = options["window_size"]
    wider = (left + 1, right) if left >= 0 else (left, right)
    return documented_kernel(q, k_cache, v_cache, **{**options, "window_size": wider})


def _upper_left(q: Tensor, k_cache: Tensor, v_cache: Tensor, **options: Any) -> Tensor:
    if not options["causal"]:
        return documented_kernel(q, k_cache, v_cache, **options)
    rows = q.shape[1]
    return documented_kernel(q, k_cache[:, :rows], v_cache[:, :rows], **options)


def _sums_in_another_base(q: Tensor, k_cache: Tensor, v_cache: Tensor, **options: Any) -> Any:
    found = documented_kernel(q, k_cache, v_cache, **options)
    return (found[0], found[1] * 1.4427) if options.get("return_softmax_lse") else found


def _not_a_number(q: Tensor, k_cache: Tensor, v_cache: Tensor, **options: Any) -> Any:
    found = documented_kernel(q, k_cache, v_cache, **options)
    if options.get("return_softmax_lse"):
        return tuple(part * torch.nan for part in found)
    return found * torch.nan


@pytest.mark.parametrize(
    "kernel",
    [_ignores_windows, _sees_one_more, _upper_left, _sums_in_another_base, _not_a_number],
)
def test_a_kernel_that_is_wrong_does_not_serve(kernel: Any, monkeypatch: pytest.MonkeyPatch):
    name, lines = _chosen(monkeypatch, lambda: FlashAttention(kernel))
    assert name == "sdpa"
    assert [(line["event"], line["reason"]) for line in lines] == [
        ("attention.unavailable", "wrong result")
    ]


def _for_another_card(q: Tensor, k_cache: Tensor, v_cache: Tensor, **options: Any) -> Tensor:
    raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")


def _with_other_arguments(q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
    return q


def _without_sums(q: Tensor, k_cache: Tensor, v_cache: Tensor, **options: Any) -> Tensor:
    options.pop("return_softmax_lse", None)
    return documented_kernel(q, k_cache, v_cache, **options)


@pytest.mark.parametrize("kernel", [_for_another_card, _with_other_arguments, _without_sums])
def test_a_kernel_that_fails_does_not_serve_and_says_why(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
):
    name, lines = _chosen(monkeypatch, lambda: FlashAttention(kernel))
    assert name == "sdpa"
    assert lines[0]["event"] == "attention.unavailable" and lines[0]["reason"]


@pytest.mark.parametrize(
    "fault",
    [
        ImportError("undefined symbol: _ZN3c10"),
        ModuleNotFoundError("No module named 'flash_attn_2_cuda'", name="flash_attn_2_cuda"),
    ],
)
def test_an_installed_package_that_cannot_be_imported_is_named(
    fault: ImportError, monkeypatch: pytest.MonkeyPatch
):
    real = builtins.__import__

    def importing(name: str, *rest: Any) -> Any:
        if name == "flash_attn":
            raise fault
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(flash.BrokenPackage, match=str(fault)):
        flash.load()
    name, lines = _chosen(monkeypatch, flash.load)
    assert (name, lines[0]["reason"]) == ("sdpa", str(fault))
    monkeypatch.setattr(fault, "name", "flash_attn", raising=False)
    if isinstance(fault, ModuleNotFoundError):
        assert flash.load() is None


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, "gemma"])
@pytest.mark.parametrize("kernel", ["sdpa", "flash"])
def test_on_a_gpu_every_kernel_gives_exact_attention_to_the_precision_of_bf16(
    kernel: str, shape: str
):
    heads = (8, 4, 256) if shape == "gemma" else SHAPES[shape]
    found = SdpaAttention() if kernel == "sdpa" else flash.load()
    if found is None:
        pytest.skip("flash-attn is not installed: pip install --no-build-isolation flash-attn")
    on_gpu = Heads(*heads, torch.bfloat16, torch.device("cuda"))
    trees = (tree_rows(BUSH, start=1), tree_rows(BUSH, start=5000))
    for rows in (*ROWS, Prefill(4000, 1000), Step(5000), *trees):
        for window in WINDOWS:
            assert trial_error(found, on_gpu, rows, window) <= BF16_TOLERANCE, (rows, window)


@pytest.mark.gpu
def test_on_a_gpu_flash_is_chosen_for_bf16_and_sdpa_for_fp32():
    shape = Heads(8, 2, 128, torch.bfloat16, torch.device("cuda"))
    assert choose(shape).name == ("sdpa" if flash.load() is None else "flash")
    assert choose(replace(shape, dtype=torch.float32)).name == "sdpa"
