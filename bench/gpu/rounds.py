"""G3: what is guessed, verified and committed, against plain decoding. Knows no speed."""

import torch

from bench.gpu.engines import GREEDY, SEEDED, Following, engine_of, write
from bench.gpu.guesses import Scripted, half_right, random_trees
from bench.gpu.models import ONE_B, RandomTensors, build, random_ids, small
from bench.gpu.near_ties import Flips, flips_of, sum_of
from bench.gpu.notes import Notes, Stage, worst
from bench.gpu.verify import check_verify, states_apart
from worker.kernels.choice import Heads, choose
from worker.kernels.precision import compute_fp32_in_full
from worker.models.decoder import Decoder

KINDS = ("qwen3_5_text", "qwen3")  # a hybrid and a dense one
# Relative. A row of the path in the wrong place is worth more than a tenth.
STATE_LIMITS = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
WAYS = {"greedy": GREEDY, "seeded": SEEDED}
GUESSES = {"random trees": random_trees, "half right": half_right}
PROMPT, TINY_PROMPT = 100, 20
COUNT, TINY_COUNT = 160, 40
CHUNK = 64
LEAST_TOKENS_A_ROUND = 1.5  # what is guessed must have been right at times, or nothing was tried


def run(stage: Stage, notes: Notes) -> None:
    """One verify, then whole texts: two models in fp32 and bf16."""
    compute_fp32_in_full()
    for dtype in (torch.float32, torch.bfloat16):
        for kind in KINDS:
            check_model(kind, dtype, stage, notes)


def check_model(kind: str, dtype: torch.dtype, stage: Stage, notes: Notes) -> None:
    """A model with random weights, which are gone afterwards."""
    model = _model(kind, dtype, stage)
    name = f"{kind} in {str(dtype).removeprefix('torch.')}"
    check_verify(name, model, STATE_LIMITS[dtype], stage, notes)
    _texts(name, model, stage, notes)


def _texts(name: str, model: Decoder, stage: Stage, notes: Notes) -> None:
    """The target chooses at each place what it chose in plain decoding, and is left the same."""
    drafter, vocab_size = Scripted(), model.config.vocab_size
    engine = engine_of(model, [drafter], stage, chunk=CHUNK)
    length, count = (TINY_PROMPT, TINY_COUNT) if stage.is_tiny else (PROMPT, COUNT)
    prompt = random_ids(length, vocab_size, torch.device("cpu")).tolist()
    for way, sampling in WAYS.items():
        drafter.guess = None
        plain = Following(sampling, prompt)
        left = write(engine, prompt, plain, count)
        flips: list[Flips] = []
        for guess, make in GUESSES.items():
            drafter.guess = make([*prompt, *plain.chosen], vocab_size)
            other = Following(sampling, prompt, plain.chosen)
            written = write(engine, prompt, other, count)
            what = f"{name}, {way}, {guess}"
            texts = torch.tensor(plain.chosen), torch.tensor(other.chosen)
            flips.append(flips_of(torch.tensor(plain.gaps), *texts, model.dtype))
            apart = worst(states_apart(written.state, left.state, length))
            notes.check(f"{what}, state at the end", apart, STATE_LIMITS[model.dtype])
            short = max(0.0, LEAST_TOKENS_A_ROUND - count / written.rounds)
            notes.check(f"{what}, tokens a round short of {LEAST_TOKENS_A_ROUND}", short, 0)
        sum_of(flips).tell(f"{name}, {way} texts", model.dtype, notes)


def _model(kind: str, dtype: torch.dtype, stage: Stage) -> Decoder:
    config = small(kind, stage, **({} if stage.is_tiny else ONE_B))
    heads = config.head_count, config.kv_head_count, config.head_dim
    attention = choose(Heads(*heads, dtype, stage.device))
    # As models are trained, what a layer adds is small.
    scale = (2 * len(config.layers)) ** -0.5
    tensors = RandomTensors(config, stage.device, dtype, scale)
    return build(config, tensors, attention, dtype=dtype, device=stage.device)
