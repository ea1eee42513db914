"""The delta rule's forms against its recurrence, written out here token by token."""

import pytest
import torch
from torch import Tensor

from worker.kernels import delta_rule
from worker.kernels.delta_rule import DeltaInputs, line_reach

HEADS, KEY, VALUE = 3, 16, 8
OUTPUT_TOLERANCE, STATE_TOLERANCE = 1e-6, 1e-5


def _inputs(count: int, seed: int = 0, gate: float | None = None) -> DeltaInputs:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def unit(x: Tensor) -> Tensor:
        return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()

    g = -torch.nn.functional.softplus(draw(HEADS, count)) if gate is None else None
    return DeltaInputs(
        q=unit(draw(HEADS, count, KEY)) * KEY**-0.5,
        k=unit(draw(HEADS, count, KEY)),
        v=draw(HEADS, count, VALUE),
        beta=draw(HEADS, count).sigmoid(),
        g=torch.full((HEADS, count), gate) if g is None else g,
    )


def _state(seed: int = 9) -> Tensor:
    return torch.randn((HEADS, KEY, VALUE), generator=torch.Generator().manual_seed(seed))


def _at(inputs: DeltaInputs, rows: list[int]) -> DeltaInputs:
    return DeltaInputs(
        inputs.q[:, rows], inputs.k[:, rows], inputs.v[:, rows],
        inputs.beta[:, rows], inputs.g[:, rows],
    )  # fmt: skip


def _recurrence(state: Tensor, inputs: DeltaInputs) -> tuple[Tensor, Tensor]:
    """Each row's output and the last state, in double precision, head by head."""
    state, outs = state.double(), []
    for t in range(inputs.q.shape[1]):
        heads = []
        for h in range(HEADS):
            q, k, v = (x[h, t].double() for x in (inputs.q, inputs.k, inputs.v))
            s = state[h] * inputs.g[h, t].double().exp()
            s = s + torch.outer(k, inputs.beta[h, t].double() * (v - s.T @ k))
            heads.append((s.T @ q, s))
        outs.append(torch.stack([out for out, _ in heads]))
        state = torch.stack([s for _, s in heads])
    return torch.stack(outs, dim=1), state


def _path(parents: list[int], node: int) -> list[int]:
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def _tree_reach(parents: list[int]) -> Tensor:
    reach = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for node in range(len(parents)):
        reach[node, _path(parents, node)] = True
    return reach


def _is_near(ours: Tensor, exact: Tensor, tolerance: float) -> bool:
    return (ours.double() - exact).abs().max().item() <= tolerance


@pytest.mark.parametrize("count", [1, 2, 17, 64])
def test_rows_after_each_other_give_what_the_recurrence_gives(count: int):
    state, inputs = _state(), _inputs(count)
    exact, after = _recurrence(state, inputs)
    out, factors = delta_rule.rows(state, inputs, line_reach(count, state.device))
    assert _is_near(out, exact, OUTPUT_TOLERANCE)
    behind = delta_rule.state_behind(state, factors, torch.arange(count))
    assert _is_near(behind, after, STATE_TOLERANCE)


def test_steps_give_what_the_recurrence_gives():
    state, inputs = _state(), _inputs(50)
    exact, after = _recurrence(state, inputs)
    for t in range(50):
        out, state = delta_rule.step(state, _at(inputs, [t]))
        assert _is_near(out, exact[:, t : t + 1], OUTPUT_TOLERANCE)
    assert _is_near(state, after, STATE_TOLERANCE)


PARENTS = [-1, 0, 1, 2, 1, 0, 5, 6, 5, 0]  # depth-first, as drafts come


def test_b4_each_node_of_a_tree_gives_what_its_own_path_gives():
    state, inputs = _state(), _inputs(len(PARENTS))
    before = state.clone()
    out, factors = delta_rule.rows(state, inputs, _tree_reach(PARENTS))
    assert torch.equal(state, before)  # a verify changes nothing
    for node in range(len(PARENTS)):
        path = _path(PARENTS, node)
        exact, after = _recurrence(state, _at(inputs, path))
        assert _is_near(out[:, node], exact[:, -1], OUTPUT_TOLERANCE)
        behind = delta_rule.state_behind(state, factors, torch.tensor(path))
        assert _is_near(behind, after, STATE_TOLERANCE)


def test_fifty_tokens_after_a_committed_path_are_those_of_the_recurrence():
    state, inputs, later = _state(), _inputs(len(PARENTS)), _inputs(50, seed=3)
    path = _path(PARENTS, 7)
    _, factors = delta_rule.rows(state, inputs, _tree_reach(PARENTS))
    ours = delta_rule.state_behind(state, factors, torch.tensor(path))
    exact, _ = _recurrence(_recurrence(state, _at(inputs, path))[1].float(), later)
    for t in range(50):
        out, ours = delta_rule.step(ours, _at(later, [t]))
        assert _is_near(out, exact[:, t : t + 1], STATE_TOLERANCE)


def test_b5_gates_of_minus_eighty_stay_finite():
    inputs = _inputs(len(PARENTS), gate=-80.0)
    out, factors = delta_rule.rows(_state(), inputs, _tree_reach(PARENTS))
    behind = delta_rule.state_behind(_state(), factors, torch.tensor(_path(PARENTS, 7)))
    assert out.isfinite().all() and behind.isfinite().all()
    exact, _ = _recurrence(_state(), _at(inputs, _path(PARENTS, 9)))
    assert _is_near(out[:, 9], exact[:, -1], OUTPUT_TOLERANCE)
