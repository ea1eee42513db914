"""How one run samples: the client's wishes over the model's defaults. Knows no logits."""

from dataclasses import dataclass

from proto.chat import Params
from proto.faults import Refusal
from worker.models.config import SamplingDefaults


@dataclass(frozen=True, slots=True)
class Sampling:
    """Resolved parameters. `temperature` 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0 are off.

    `seed`, `choice` and `retry` key the noise, with the number of the token.
    """

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    choice: int = 0
    retry: int = 0


def resolve(params: Params, defaults: SamplingDefaults, *, seed: int, choice: int) -> Sampling:
    """Fills what the client left open.

    Raises: Refusal (`bad_request`) naming the field that is out of range or not supported.
    """
    _refuse_unsupported(params)
    sampling = Sampling(
        temperature=_or(params.temperature, defaults.temperature),
        top_p=_or(params.top_p, defaults.top_p),
        top_k=defaults.top_k if params.top_k is None else params.top_k,
        min_p=_or(params.min_p, 0.0),
        seed=seed,
        choice=choice,
    )
    ranges = {
        "temperature": (0.0 <= sampling.temperature <= 2.0, "between 0 and 2"),
        "top_p": (0.0 < sampling.top_p <= 1.0, "above 0 and at most 1"),
        "top_k": (sampling.top_k >= 0, "0 or more"),
        "min_p": (0.0 <= sampling.min_p <= 1.0, "between 0 and 1"),
    }
    for name, (is_inside, wanted) in ranges.items():
        if not is_inside:
            raise Refusal("bad_request", f"{name} must be {wanted}", param=name)
    return sampling


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _refuse_unsupported(params: Params) -> None:
    asked = {
        "logit_bias": bool(params.logit_bias),
        "presence_penalty": params.presence_penalty != 0.0,
        "frequency_penalty": params.frequency_penalty != 0.0,
        "repetition_penalty": params.repetition_penalty != 1.0,
        "top_logprobs": params.top_logprobs is not None,
    }
    for name, is_asked in asked.items():
        if is_asked:
            sentence = f"{name} is not supported by this engine yet"
            raise Refusal("bad_request", sentence, param=name)
