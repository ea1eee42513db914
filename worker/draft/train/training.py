"""Steps of learning from recorded text, and what is kept so that they can go on later.

A step depends on the recipe, its number and the weights alone: training that was stopped and
resumed gives the weights of training that was not. Knows no prompt and no serving.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from worker.draft.block_config import BlockConfig
from worker.draft.train.loss import Wanted, loss_of, slot_weights, vocabulary_of
from worker.draft.train.network import Blocks, Network, Weights
from worker.draft.train.recording import Recorded, Recording, Sample

BETAS = (0.9, 0.95)
DECAY = 0.01
CLIP = 1.0
WARMING_STEPS = 50
LAST_RATE = 0.05  # of the learning rate, at the end
SCALED_SAMPLES = 64  # that channels' sizes are measured on
LEAST_LOGPROB = -60.0  # a token that may not be written has none at all


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to learn. `sequences` a step, each with so many `blocks`; `rate`: of AdamW."""

    sequences: int = 4
    blocks: int = 32
    rate: float = 1e-3
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TargetTensors:
    """What a drafter borrows: `embed` of ids, and the head, (vocab, hidden)."""

    embed: Callable[[Tensor], Tensor]
    head: Tensor


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a step showed before it learnt. `first_right`: share of right guesses in slot 1."""

    loss: float
    first_right: float


class Trainer:
    """Learns step by step. `scale`: of the taps' channels, (taps x hidden,), divided out first."""

    def __init__(
        self,
        config: BlockConfig,
        weights: Weights,
        scale: Tensor,
        target: TargetTensors,
        recipe: Recipe,
    ) -> None:
        self.step = 0
        self.scale = scale
        self.weights = {name: value.requires_grad_() for name, value in weights.items()}
        self._config = config
        self._network = Network(config, self.weights)
        self._target = target
        self._recipe = recipe
        self._optimizer = torch.optim.AdamW(
            self.weights.values(), lr=recipe.rate, betas=BETAS, weight_decay=DECAY
        )

    def learn(self, recording: Recording, samples: Sequence[Recorded], done: float) -> Lesson:
        """One step. `done`: how much of the whole training is behind, 0 to 1."""
        source = torch.Generator().manual_seed(self._recipe.seed * 1_000_003 + self.step)
        batch = self._batch(recording, samples, source)
        rate = self._recipe.rate * _share_of_rate(self.step, done)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad(set_to_none=True)
        is_half = self._target.head.dtype == torch.bfloat16
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_half):
            states = self._network.states(batch.blocks).flatten(0, -2)[batch.kept]
            vocabulary = vocabulary_of(batch.wanted, len(self._target.head), source)
            head = self._target.head[vocabulary.ids]
            loss, is_right = loss_of(states, head, batch.wanted, vocabulary)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.weights.values(), CLIP)
        self._optimizer.step()
        self.step += 1
        slots = self._config.block_size - 1
        first = (batch.kept % slots) == 0
        return Lesson(float(loss.detach()), float(is_right[first].float().mean()))

    def _batch(
        self, recording: Recording, samples: Sequence[Recorded], source: torch.Generator
    ) -> "_Batch":
        lengths = torch.tensor([float(at.tokens - at.prompt) for at in samples])
        picked = torch.multinomial(
            lengths, self._recipe.sequences, replacement=True, generator=source
        )
        loaded = [recording.load(samples[index]) for index in picked.tolist()]
        return _batch_of(
            loaded, self._config, self._target, self._recipe.blocks, self.scale, source
        )

    def save(self, path: Path, seconds: float) -> None:
        """Writes all that is needed to go on. `seconds` of training so far."""
        tensors = {"scale": self.scale}
        for name, weight in self.weights.items():
            tensors[f"weights/{name}"] = weight.detach()
            state = self._optimizer.state.get(weight)
            if state:
                tensors[f"first/{name}"] = state["exp_avg"]
                tensors[f"second/{name}"] = state["exp_avg_sq"]
        unfinished = path.with_suffix(".tmp")
        facts = json.dumps({"step": self.step, "seconds": seconds})
        save_file(tensors, unfinished, metadata={"progress": facts})
        unfinished.rename(path)

    def restore(self, path: Path) -> float:
        """Becomes what was saved; returns the seconds of training so far."""
        with safe_open(path, framework="pt") as file:
            progress = json.loads(file.metadata()["progress"])
            names = set(file.keys())
            self.scale = file.get_tensor("scale")
            self.step = progress["step"]
            with torch.no_grad():
                for name, weight in self.weights.items():
                    weight.copy_(file.get_tensor(f"weights/{name}"))
                    if f"first/{name}" in names:
                        self._optimizer.state[weight] = {
                            "step": torch.tensor(float(self.step)),
                            "exp_avg": file.get_tensor(f"first/{name}").clone(),
                            "exp_avg_sq": file.get_tensor(f"second/{name}").clone(),
                        }
        return float(progress["seconds"])


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """`kept`: which of all slots have something to learn, (rows,) of sequences x blocks x slots."""

    blocks: Blocks
    kept: Tensor
    wanted: Wanted


def _batch_of(
    samples: Sequence[Sample],
    config: BlockConfig,
    target: TargetTensors,
    blocks: int,
    scale: Tensor,
    source: torch.Generator,
) -> _Batch:
    """Blocks at random places of what the target wrote."""
    slots = config.block_size - 1
    longest = max(len(sample.taps) for sample in samples)
    taps = torch.zeros(len(samples), longest, len(scale))
    anchors = torch.zeros(len(samples), blocks, dtype=torch.int64)
    rows, is_kept, ids = [], [], []
    for index, sample in enumerate(samples):
        taps[index, : len(sample.taps)] = sample.taps.float() / scale
        # The root is a written token; what is behind it is known of all but the last.
        written = len(sample.likeliest.ids)
        begins = torch.randint(written, (blocks,), generator=source)
        anchors[index] = begins + sample.prompt
        places = begins[:, None] + torch.arange(slots)  # (blocks, slots)
        is_kept.append(places < written)
        rows.append(places[places < written])
        ids.append(sample.ids[anchors[index]])
    kept = torch.stack(is_kept)
    likeliest = [sample.likeliest for sample in samples]
    wanted = Wanted(
        torch.cat([part.ids[at] for part, at in zip(likeliest, rows, strict=True)]),
        torch.cat([part.logprobs[at] for part, at in zip(likeliest, rows, strict=True)]).clamp_min(
            LEAST_LOGPROB
        ),
        slot_weights(slots).expand(kept.shape)[kept],
    )
    with torch.no_grad():
        roots = target.embed(torch.stack(ids).flatten()).view(len(samples), blocks, -1)
        mask = target.embed(torch.tensor([config.mask_id]))[0]
    return _Batch(Blocks(taps, anchors, roots, mask), kept.flatten().nonzero()[:, 0], wanted)


def channel_scale(recording: Recording, samples: Sequence[Recorded]) -> Tensor:
    """The usual size of each channel of the taps, (taps x hidden,) float32.

    Some channels are a hundred times larger than others, and the first token's a thousand times;
    weights of one size cannot read both.
    """
    squares = [
        recording.load(at).taps[1:].float().square().mean(0) for at in samples[:SCALED_SAMPLES]
    ]
    return torch.stack(squares).mean(0).sqrt().clamp_min(1e-3)


def _share_of_rate(step: int, done: float) -> float:
    """Up over the first steps, then down as a cosine."""
    warm = min(1.0, (step + 1) / WARMING_STEPS)
    cosine = 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))
    return warm * (LAST_RATE + (1.0 - LAST_RATE) * cosine)
