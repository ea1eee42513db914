"""Rotary position tables in every variant that families use. Knows no attention.

Half-split form: of d dims that turn, dim i turns together with dim i + d/2.
"""

import math

import torch
from torch import Tensor

from worker.models.config import RopeConfig


class RopeTable:
    """Cosines and signed sines of every position, fp32, (positions, 1, rotary_dim)."""

    def __init__(self, rope: RopeConfig, *, rotary_dim: int, positions: int) -> None:
        frequencies = inverse_frequencies(rope, rotary_dim)  # (rotary_dim / 2,)
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies
        scale = magnitude(rope)
        cos, sin = angles.cos() * scale, angles.sin() * scale
        self._dim = rotary_dim
        self._cos = torch.cat((cos, cos), dim=-1)[:, None]
        # The sign of the half-split rotation is in the table, so that a rotation is one roll.
        self._sin = torch.cat((-sin, sin), dim=-1)[:, None]

    def rotate(self, x: Tensor, positions: slice | Tensor) -> Tensor:
        """Rotates rows by where they stand. x: (rows, heads, head_dim) float32, as is out.

        positions: of each row, (rows,) int64 where it is no slice.
        """
        cos, sin, dim = self._cos[positions], self._sin[positions], self._dim
        if dim == x.shape[-1]:
            return torch.addcmul(x * cos, torch.roll(x, dim // 2, -1), sin)
        turning, passing = x[..., :dim], x[..., dim:]
        turned = torch.addcmul(turning * cos, torch.roll(turning, dim // 2, -1), sin)
        return torch.cat((turned, passing), dim=-1)

    def to(self, device: torch.device) -> "RopeTable":
        """Moves the tables; returns itself."""
        self._cos, self._sin = self._cos.to(device), self._sin.to(device)
        return self


def inverse_frequencies(rope: RopeConfig, dim: int) -> Tensor:
    """Radians a position for each pair of dims: (dim / 2,) float32.

    Source: transformers `modeling_rope_utils`; Llama 3.1 and YaRN (arXiv 2309.00071) rules.
    """
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).to(torch.float32) / dim
    plain = 1.0 / (rope.base**exponents)
    if rope.divisors is not None:
        return plain / torch.tensor(rope.divisors, dtype=torch.float32)
    match rope.kind:
        case "linear":
            return plain / rope.factor
        case "llama3":
            return _llama3(plain, rope)
        case "yarn":
            return _yarn(plain, rope, dim)
        case "default":
            return plain


def magnitude(rope: RopeConfig) -> float:
    """What cosines and sines are multiplied with; 1 except for yarn."""
    if rope.kind != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1.0 else 1.0


def _llama3(plain: Tensor, rope: RopeConfig) -> Tensor:
    wavelengths = 2 * math.pi / plain
    turns = rope.original_len / wavelengths
    share = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - share) * plain / rope.factor + share * plain
    is_low = wavelengths > rope.original_len / rope.low_freq_factor
    is_high = wavelengths < rope.original_len / rope.high_freq_factor
    return torch.where(is_high, plain, torch.where(is_low, plain / rope.factor, blended))


def _yarn(plain: Tensor, rope: RopeConfig, dim: int) -> Tensor:
    def dim_of(rotations: float) -> float:
        ratio = rope.original_len / (rotations * 2 * math.pi)
        return dim * math.log(ratio) / (2 * math.log(rope.base))

    low = max(math.floor(dim_of(rope.beta_fast)), 0)
    high = min(math.ceil(dim_of(rope.beta_slow)), dim - 1)
    width = high - low or 0.001  # equal ends would divide by zero
    steps = torch.arange(dim // 2, dtype=torch.float32)
    interpolated = ((steps - low) / width).clamp(0, 1)
    return plain / rope.factor * interpolated + plain * (1 - interpolated)
