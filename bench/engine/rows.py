"""What rows cost in each weight layout, and how fast it decodes: `python -m bench.engine.rows`.

The embedded model, or a `.gguf` file or folder named as the argument. Layouts take turns within
each round; the table has medians of the rounds, with the least time beside it. A verify of N rows
is a forward of N rows behind 256 tokens, with the logits of all of them; of one row, a plain step.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from proto.worker_settings import Launch, WeightLayout, WorkerSettings
from worker.build import build_engine
from worker.engine import Engine
from worker.kernels.attention import Prefill, Step
from worker.kernels.sdpa import SdpaAttention
from worker.loading.locate import open_checkpoint
from worker.models.decoder import Decoder
from worker.models.layouts import Layout
from worker.sampling.chooser import Chooser
from worker.sampling.params import Sampling
from worker.settings import Machine, physical_cores
from worker.state.ask import Ask

EMBEDDED = Path(".local/state/tandem/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
LAYOUTS: tuple[WeightLayout, ...] = ("bf16", "int8", "q4", "mixed")
ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXT = 256  # tokens before the rows
ROUNDS = 7
DECODED = 48  # tokens of each decoding
MAX_LEN = 1024
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.engine.rows")
    parser.add_argument("model", nargs="?", type=Path, default=Path.home() / EMBEDDED)
    parser.add_argument("--layouts", nargs="+", choices=("fp32", *LAYOUTS), default=LAYOUTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=physical_cores())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    load = os.getloadavg()[0]
    print(f"{options.model.name}, torch {torch.__version__}, {options.threads} threads, ", end="")
    print(f"load {load:.1f}, {options.rounds} rounds: median (least)\n")
    for line in table(options.model, options.layouts, options.rounds):
        print(line)
    _print_decoding(options.model, options.layouts, options.rounds)


def table(path: Path, layouts: Sequence[WeightLayout], rounds: int) -> list[str]:
    """The lines of the table."""
    verifies = {layout: _verify(path, layout) for layout in layouts}
    times = {layout: {rows: [] for rows in ROWS} for layout in verifies}
    for _ in range(rounds + 1):  # the first warms up
        for rows in ROWS:
            for layout, verify in verifies.items():
                times[layout][rows].append(_timed_ms(lambda v=verify, r=rows: v(r)))
    lines = [
        f"| verify at {CONTEXT}, ms | {' | '.join(map(str, ROWS))} |",
        "|---" * (len(ROWS) + 1) + "|",
    ]
    for layout, of_rows in times.items():
        cells = [f"{statistics.median(t[1:]):.1f} ({min(t[1:]):.1f})" for t in of_rows.values()]
        lines.append(f"| {layout} | {' | '.join(cells)} |")
    return lines


def _print_decoding(path: Path, layouts: tuple[WeightLayout, ...], rounds: int) -> None:
    engines = {layout: _engine(path, layout) for layout in layouts}
    speeds: dict[str, list[float]] = {layout: [] for layout in engines}
    for _ in range(rounds + 1):
        for layout, engine in engines.items():
            speeds[layout].append(_tokens_per_s(engine))
    print("\n| decoding | tokens/s, median (most) |\n|---|---|")
    for layout, rates in speeds.items():
        print(f"| {layout} | {statistics.median(rates[1:]):.1f} ({max(rates[1:]):.1f}) |")


def _verify(path: Path, layout: WeightLayout) -> Callable[[int], None]:
    """A forward of so many rows behind the context, written over by the next one."""
    checkpoint = open_checkpoint(path)
    model = Decoder(
        checkpoint.config, checkpoint.tensors, SdpaAttention(),
        layout=Layout(layout, torch.device("cpu")), max_len=MAX_LEN,
    )  # fmt: skip
    cache = model.new_cache(MAX_LEN)
    cache.reserve(CONTEXT + max(ROWS))
    ids = torch.arange(CONTEXT + max(ROWS)) + 100
    with torch.inference_mode():
        model.forward(ids[:CONTEXT], cache, Prefill(0, CONTEXT))

    @torch.inference_mode()
    def verify(rows: int) -> None:
        some = ids[CONTEXT : CONTEXT + rows]
        kind = Step(CONTEXT) if rows == 1 else Prefill(CONTEXT, rows)
        model.logits(model.forward(some, cache, kind))

    return verify


def _engine(path: Path, layout: WeightLayout) -> Engine:
    settings = WorkerSettings(model=str(path), weights=layout, max_len=MAX_LEN)
    launch = Launch(settings, "bench", str(path), "", "")
    machine = Machine("cpu", threads=0, chunk=CONTEXT, lanes=1, slots=1)
    return build_engine(launch, machine, open_checkpoint(path), masked_ids=(), end_ids=())


def _tokens_per_s(engine: Engine) -> float:
    """Of plain rounds behind the context, after the first token."""
    prompt = tuple(range(100, 100 + CONTEXT))
    slot = engine.open(Ask(prompt, Chooser(GREEDY, prompt), is_side=True))  # where nobody drafts
    engine.read_chunk(slot, CONTEXT)
    began_s = time.perf_counter()
    for left in range(DECODED, 0, -1):
        engine.round(slot, left, lambda _: True)
    spent_s = time.perf_counter() - began_s
    engine.close(slot)
    return DECODED / spent_s


def _timed_ms(work: Callable[[], None]) -> float:
    began_s = time.perf_counter()
    work()
    return (time.perf_counter() - began_s) * 1000


if __name__ == "__main__":
    main()
