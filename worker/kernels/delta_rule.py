"""The gated delta rule as pure functions: one token, rows after each other, rows of a tree.

Everything is float32, a value head at a time: q, k (heads, rows, key_dim), v (heads, rows,
value_dim), beta and g (heads, rows). q and k are of unit length, q also times key_dim^-0.5;
0 < beta < 1; g <= 0 is the logarithm of the decay. The state is (heads, key_dim, value_dim).
Source: Gated Delta Networks (arXiv 2412.06464), in the form that solves for the updates at once.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """What the rule reads of each row."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    g: Tensor

    def part(self, start: int, end: int) -> "DeltaInputs":
        """Some rows of them."""
        rows = slice(start, end)
        return DeltaInputs(
            self.q[:, rows], self.k[:, rows], self.v[:, rows], self.beta[:, rows], self.g[:, rows]
        )


@dataclass(frozen=True, slots=True)
class DeltaFactors:
    """What is kept of rows to make the state behind any of them: keys, updates, summed decays.

    k: (heads, rows, key_dim); u: (heads, rows, value_dim); c: (heads, rows), along each row's path.
    """

    k: Tensor
    u: Tensor
    c: Tensor


def step(state: Tensor, row: DeltaInputs) -> tuple[Tensor, Tensor]:
    """One token: its output (heads, 1, value_dim) and the state after it."""
    decayed = state * row.g.exp()[..., None]
    k = row.k.transpose(1, 2)  # (heads, key_dim, 1)
    update = row.beta[..., None] * (row.v - row.k @ decayed)
    after = decayed + k * update
    return row.q @ after, after


def rows(state: Tensor, inputs: DeltaInputs, reach: Tensor) -> tuple[Tensor, DeltaFactors]:
    """Rows that start from one state, which stays as it is: (heads, rows, value_dim) and factors.

    reach: (rows, rows) bool, whether row i comes after or is row j: `line_reach` for rows after
    each other, ancestors and self for a tree, whose parents stand before their children.
    """
    c = inputs.g @ reach.T.to(inputs.g.dtype)
    # Masked before exp: rows that are not on one path may be apart by more than a float holds.
    apart = (c[:, :, None] - c[:, None, :]).masked_fill(~reach, -torch.inf)
    decay = apart.exp()
    reached = c.exp()[..., None]
    weighted = inputs.k * inputs.beta[..., None]
    mixing = (weighted @ inputs.k.transpose(1, 2) * decay).tril(-1)
    known = inputs.v * inputs.beta[..., None] - weighted * reached @ state
    u = torch.linalg.solve_triangular(mixing, known, upper=False, unitriangular=True)
    seen = inputs.q @ inputs.k.transpose(1, 2) * decay
    out = inputs.q * reached @ state + seen @ u
    return out, DeltaFactors(inputs.k, u, c)


def state_behind(state: Tensor, factors: DeltaFactors, path: Tensor) -> Tensor:
    """The state after the rows of a path, in order, down to the last of them.

    path: (length,) int64, row numbers from the first on.
    """
    k, u, c = factors.k[:, path], factors.u[:, path], factors.c[:, path]
    end = c[:, -1:]
    kept = k * (end - c).exp()[..., None]
    return state * end.exp()[..., None] + kept.transpose(1, 2) @ u


def line_reach(count: int, device: torch.device) -> Tensor:
    """The `reach` of rows after each other."""
    return torch.ones(count, count, dtype=torch.bool, device=device).tril()
