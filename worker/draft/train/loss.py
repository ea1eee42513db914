"""How wrong a drafter is about what the target would write. Knows no network and no file."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

SLOT_DECAY = 0.8  # a slot counts so much less than the one before: it is reached less often
DIVERGENCE_WEIGHT = 0.5
OTHERS = 2048  # tokens that stand for the rest of the vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """What the target makes likely behind some rows, best first; ids, log-probabilities: (rows, n).

    weights: (rows,) float32, how much each row counts.
    """

    ids: Tensor
    logprobs: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The tokens that logits are computed of: those wanted, and some that stand for all others.

    ids: (tokens,), of which the first `named` are wanted and in order. offsets: (tokens,) float32,
    added to logits where they are summed up, so that the sum is, on average, that over all tokens.
    """

    ids: Tensor
    named: int
    offsets: Tensor


def slot_weights(slots: int) -> Tensor:
    """(slots,) float32, 1 for the first."""
    return SLOT_DECAY ** torch.arange(slots, dtype=torch.float32)


def vocabulary_of(wanted: Wanted, size: int, source: torch.Generator) -> Vocabulary:
    """All tokens that any row wants, and a draw of the others; all there are where they are few.

    The head is four fifths of the work of a step, and most of its rows would only say that a token
    nobody expects is not expected.
    """
    named = torch.unique(wanted.ids)
    is_other = torch.ones(size, dtype=torch.bool)
    is_other[named] = False
    others = is_other.nonzero()[:, 0]
    drawn = others[torch.randperm(len(others), generator=source)[:OTHERS]]
    offsets = torch.zeros(len(named) + len(drawn))
    if len(drawn):
        offsets[len(named) :] = torch.log(torch.tensor(len(others) / len(drawn)))
    return Vocabulary(torch.cat((named, drawn)), len(named), offsets)


def loss_of(
    states: Tensor, head: Tensor, wanted: Wanted, vocabulary: Vocabulary
) -> tuple[Tensor, Tensor]:
    """Cross-entropy on the target's choice, and a part of the divergence from what it makes likely.

    states: (rows, hidden) float32 behind the final norm. head: the target's rows of the
    vocabulary, (tokens, hidden). Out: the loss, and which rows guess the target's choice, (rows,).
    """
    logits = linear(states.to(head.dtype), head).float()  # (rows, tokens)
    total = (logits + vocabulary.offsets).logsumexp(-1, keepdim=True)
    place = torch.searchsorted(vocabulary.ids[: vocabulary.named], wanted.ids)
    guessed = logits.gather(1, place) - total  # log-probabilities of what is wanted
    chances = wanted.logprobs.exp()
    divergence = (chances * (wanted.logprobs - guessed)).sum(-1)
    each = -guessed[:, 0] + DIVERGENCE_WEIGHT * divergence
    loss = (each * wanted.weights).sum() / wanted.weights.sum()
    return loss, logits.argmax(-1) == place[:, 0]
