"""How one run samples: the client's wishes over the model's defaults. Knows no logits."""

from collections.abc import Mapping
from dataclasses import dataclass

from proto.chat import Params
from proto.faults import Refusal
from proto.limits import LOGIT_BIASES, TOP_LOGPROBS
from worker.models.config import SamplingDefaults


@dataclass(frozen=True, slots=True)
class Sampling:
    """Resolved parameters. `temperature` 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0 are off.

    `logit_bias`: value by token id. `top_logprobs`: None for no log-probabilities at all.
    `seed`, `choice` and `retry` key the noise, with the number of the token.
    """

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    choice: int = 0
    retry: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    top_logprobs: int | None = None

    @property
    def has_cuts(self) -> bool:
        """Whether unlikely tokens are never drawn."""
        return (self.top_p, self.top_k, self.min_p) != (1.0, 0, 0.0)

    @property
    def has_penalties(self) -> bool:
        """Whether what was written changes what is likely next."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0, 0, 1)


def resolve(
    params: Params, defaults: SamplingDefaults, *, seed: int, choice: int, vocab_size: int
) -> Sampling:
    """Fills what the client left open.

    Raises: Refusal (`bad_request`) naming the field that is out of range.
    """
    sampling = Sampling(
        temperature=_or(params.temperature, defaults.temperature),
        top_p=_or(params.top_p, defaults.top_p),
        top_k=defaults.top_k if params.top_k is None else params.top_k,
        min_p=_or(params.min_p, 0.0),
        seed=seed,
        choice=choice,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias=_logit_bias(params.logit_bias, vocab_size),
        top_logprobs=params.top_logprobs,
    )
    most = TOP_LOGPROBS
    ranges = {
        "temperature": (0.0 <= sampling.temperature <= 2.0, "between 0 and 2"),
        "top_p": (0.0 < sampling.top_p <= 1.0, "above 0 and at most 1"),
        "top_k": (sampling.top_k >= 0, "0 or more"),
        "min_p": (0.0 <= sampling.min_p <= 1.0, "between 0 and 1"),
        "presence_penalty": (-2.0 <= sampling.presence_penalty <= 2.0, "between -2 and 2"),
        "frequency_penalty": (-2.0 <= sampling.frequency_penalty <= 2.0, "between -2 and 2"),
        "repetition_penalty": (0.0 < sampling.repetition_penalty <= 2.0, "above 0 and at most 2"),
        "top_logprobs": (0 <= (sampling.top_logprobs or 0) <= most, f"between 0 and {most}"),
    }
    for name, (is_inside, wanted) in ranges.items():
        if not is_inside:
            raise Refusal("bad_request", f"{name} must be {wanted}", param=name)
    return sampling


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _logit_bias(wanted: Mapping[str, float] | None, vocab_size: int) -> dict[int, float] | None:
    if not wanted:
        return None
    if len(wanted) > LOGIT_BIASES:
        raise _bad_bias(f"logit_bias holds more than {LOGIT_BIASES} tokens")
    bias: dict[int, float] = {}
    for name, value in wanted.items():
        if not (name.isascii() and name.isdigit() and len(name) < 10 and int(name) < vocab_size):
            raise _bad_bias(f"logit_bias names {name[:20]!r}; ids go from 0 to {vocab_size - 1}")
        if not -100.0 <= value <= 100.0:
            raise _bad_bias("the values of logit_bias must be between -100 and 100")
        bias[int(name)] = float(value)
    return bias


def _bad_bias(sentence: str) -> Refusal:
    return Refusal("bad_request", sentence, param="logit_bias")
