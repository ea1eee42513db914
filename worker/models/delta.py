"""A gated delta layer: convolution, delta rule, gated norm. Knows no file format and no run.

Everything from queries, keys and values on is float32.
"""

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu, softplus

from worker.kernels import delta_rule
from worker.kernels.attention import Prefill, Rows, Step
from worker.kernels.delta_rule import DeltaInputs, line_reach
from worker.kernels.product import Product
from worker.kernels.tree import Tree
from worker.kernels.weight import Arrange, Weight
from worker.models.config import DeltaConfig, ModelConfig
from worker.models.placement import Placement
from worker.state.cache import DeltaCache, SequenceCache

INNER_CHUNK = 64  # rows solved together; cut at absolute multiples, so that positions alone decide
UNIT_EPS = 1e-6


class DeltaLayer:
    """`index`: its number among the delta layers."""

    def __init__(self, config: ModelConfig, place: Placement, index: int) -> None:
        assert config.delta is not None
        self._shape = shape = config.delta
        self._index = index
        self._eps = config.rms_norm_eps
        self._in = _in_product(config, shape, place)
        self._out = place.product("out_proj.weight", config.hidden_size, shape.values_width)
        kernel = place.fp32("conv1d.weight", shape.conv_channels, 1, shape.conv_width)
        self._kernel = kernel[:, 0].T.contiguous()  # (width, channels)
        self._rate = _rate(place, shape.value_heads)
        self._rate_bias = place.fp32("dt_bias", shape.value_heads)
        self._norm = place.fp32("norm.weight", shape.value_dim)  # never stored minus 1

    def __call__(self, normed: Tensor, cache: SequenceCache, rows: Rows) -> Tensor:
        """normed: (rows, hidden) float32; out: (rows, hidden) in the layout's dtype."""
        assert cache.delta is not None
        shape, count = self._shape, rows.count
        widths = [shape.conv_channels, shape.values_width, shape.value_heads, shape.value_heads]
        raw, gate, beta, decay = torch.split(self._in(normed.to(self._out.dtype)), widths, dim=-1)
        inputs = self._inputs(self._convolved(raw, cache.delta, rows), beta.float(), decay.float())
        seen = self._attend(inputs, cache.delta, rows)  # (heads, rows, value_dim)
        seen = rms_norm(seen, (shape.value_dim,), self._norm, self._eps).transpose(0, 1)
        out = seen * silu(gate.float().view(count, shape.value_heads, shape.value_dim))
        return self._out(out.reshape(count, -1).to(self._out.dtype))

    def _convolved(self, raw: Tensor, cache: DeltaCache, rows: Rows) -> Tensor:
        """Each row's channels mixed with those of the rows before it: (rows, channels) float32."""
        tail, count = cache.conv[self._index], raw.shape[0]
        seen = torch.cat((tail, raw))
        if isinstance(rows, Tree):
            cache.raw[self._index] = raw  # the tail moves on when a path is committed
            windows = seen.float()[rows.windows]  # (rows, width, channels)
            return silu((windows * self._kernel).sum(1))
        tail.copy_(seen[-len(tail) :])
        seen = seen.float()
        mixed = sum(seen[at : at + count] * tap for at, tap in enumerate(self._kernel))
        assert isinstance(mixed, Tensor)
        return silu(mixed)

    def _inputs(self, mixed: Tensor, beta: Tensor, decay: Tensor) -> DeltaInputs:
        shape, count = self._shape, mixed.shape[0]
        widths = [shape.keys_width, shape.keys_width, shape.values_width]
        q, k, v = torch.split(mixed, widths, dim=-1)
        q, k = (self._unit(x.reshape(count, shape.key_heads, shape.key_dim)) for x in (q, k))
        return DeltaInputs(
            q=(q * shape.key_dim**-0.5).transpose(0, 1),
            k=k.transpose(0, 1),
            v=v.reshape(count, shape.value_heads, shape.value_dim).transpose(0, 1),
            beta=beta.sigmoid().T,
            g=(self._rate * softplus(decay + self._rate_bias)).T,
        )

    def _unit(self, x: Tensor) -> Tensor:
        """Of unit length, and once for each value head that reads it."""
        x = x * (x.square().sum(-1, keepdim=True) + UNIT_EPS).rsqrt()
        return x.repeat_interleave(self._shape.value_heads // self._shape.key_heads, dim=1)

    def _attend(self, inputs: DeltaInputs, cache: DeltaCache, rows: Rows) -> Tensor:
        state = cache.recurrent[self._index]
        match rows:
            case Step():
                out, after = delta_rule.step(state, inputs)
                state.copy_(after)
                return out
            case Tree():
                out, cache.factors[self._index] = delta_rule.rows(state, inputs, rows.reach)
                return out
            case Prefill():
                return torch.cat(
                    [
                        _read_on(state, inputs.part(start - rows.start, end - rows.start))
                        for start, end in inner_chunks(rows.start, rows.count)
                    ],
                    dim=1,
                )


def inner_chunks(start: int, count: int) -> list[tuple[int, int]]:
    """Where rows at positions `start` on are cut: at multiples of `INNER_CHUNK`."""
    end = start + count
    first = start - start % INNER_CHUNK + INNER_CHUNK
    bounds = [start, *range(first, end, INNER_CHUNK), end]
    return list(pairwise(bounds))


def _read_on(state: Tensor, inputs: DeltaInputs) -> Tensor:
    """The outputs of rows after each other; the state becomes the one behind them."""
    count = inputs.q.shape[1]
    out, factors = delta_rule.rows(state, inputs, line_reach(count, state.device))
    path = torch.arange(count, device=state.device)
    state.copy_(delta_rule.state_behind(state, factors, path))
    return out


def _rate(place: Placement, heads: int) -> Tensor:
    """How fast each head forgets, times what a token says: below 0."""
    return place.fp32("rate", heads) if place.has("rate") else -place.fp32("A_log", heads).exp()


def _in_product(config: ModelConfig, shape: DeltaConfig, place: Placement) -> Product:
    """Queries, keys, values, gates, betas and decays in one product.

    Some are stored key head by key head, in one tensor.
    """
    hidden, group = config.hidden_size, shape.value_heads // shape.key_heads
    if place.has("in_proj_qkvz.weight"):
        dims = [shape.key_dim, shape.key_dim, *[group * shape.value_dim] * 2]
        parts = _ungrouped(place, "in_proj_qkvz.weight", dims, shape.key_heads, hidden)
    else:
        parts = [
            place.linear("in_proj_qkv.weight", shape.conv_channels, hidden),
            place.linear("in_proj_z.weight", shape.values_width, hidden),
        ]
    if place.has("in_proj_ba.weight"):
        gates = _ungrouped(place, "in_proj_ba.weight", [group, group], shape.key_heads, hidden)
    else:
        names = ("in_proj_b.weight", "in_proj_a.weight")
        gates = [place.linear(name, shape.value_heads, hidden) for name in names]
    return place.layout.product_with_gates(parts, gates)


def _ungrouped(
    place: Placement, name: str, dims: list[int], heads: int, hidden: int
) -> list[Weight]:
    """The rows of each part from a tensor that holds `dims` rows of them for each key head."""
    stored = place.linear(name, heads * sum(dims), hidden)

    def part(index: int) -> Arrange:
        def rows_of(stored: Tensor) -> Tensor:
            grouped = stored.view(heads, -1, stored.shape[-1])
            return torch.split(grouped, dims, dim=1)[index].flatten(0, 1)

        return rows_of

    return [stored.arranged(part(index)) for index in range(len(dims))]
