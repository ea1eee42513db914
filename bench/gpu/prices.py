"""G4's price table, made by the calibration that serves. Knows no right or wrong."""

import time
from dataclasses import replace

import torch

from bench.gpu.engines import engine_of
from bench.gpu.notes import Notes, Stage
from worker.engine import Engine
from worker.models.decoder import Decoder
from worker.settings import MOST_ROWS
from worker.speculation.calibration import Calibration, Scope, scope_of
from worker.speculation.prices import SHAPES, Prices

SAMPLES, TINY_SAMPLES = 20, 1  # of each price; on CUDA a worker takes as many
LIMIT_S = 60.0  # of measuring, at most, as in a worker
TINY_MAX_LEN = 320
FREE_SHARE = 0.5  # of the free memory that measuring may take; a worker asks its memory gate


def measure(model: Decoder, stage: Stage, notes: Notes) -> None:
    """The table as ratios to the plain step, as far as it goes in the time."""
    engine = engine_of(model, [], stage, chunk=MOST_ROWS)
    scope = scope_of(
        max_len=TINY_MAX_LEN if stage.is_tiny else model.config.max_len,
        most_rows=MOST_ROWS,
        vocab_size=model.config.vocab_size,
        samples=TINY_SAMPLES if stage.is_tiny else SAMPLES,
        limit_s=LIMIT_S,
    )
    calibration = Calibration(_fitting(scope, engine, stage), time.perf_counter)
    trial = engine.trials(calibration.length)
    while calibration.step(trial):
        continue
    prices = calibration.prices()
    if prices is None:
        notes.remark("the device is too slow for a price table")
        return
    notes.number("prices", prices.to_fields())
    notes.number("prices_seconds", calibration.spent_s)
    _tell(prices, notes)


def _fitting(scope: Scope, engine: Engine, stage: Stage) -> Scope:
    """Without the contexts that would take too much memory."""
    if not stage.is_cuda:
        return scope
    room = FREE_SHARE * torch.cuda.mem_get_info(stage.device)[0]
    contexts = [at for at in scope.contexts if engine.cache_bytes(at + MOST_ROWS) <= room]
    return replace(scope, contexts=tuple(contexts) or scope.contexts[:1])


def _tell(prices: Prices, notes: Notes) -> None:
    """Rounds in plain steps of the same context, commit included; one row is a plain step."""
    ratios = {
        str(context): {
            shape: {
                str(rows): (ms + prices.commit[shape]) / prices.plain[context]
                for rows, ms in sorted(of_shape[shape].items())
                if rows > (1 if shape == "chain" else 2)  # fewer do not fork
            }
            for shape in SHAPES
        }
        for context, of_shape in sorted(prices.verify.items())
    }
    notes.number("in_plain_steps", ratios)
    for context, of_shape in ratios.items():
        for shape, column in of_shape.items():
            cells = ", ".join(f"{rows} {ratio:.2f}" for rows, ratio in column.items())
            plain_ms = prices.plain[int(context)]
            notes.remark(f"at {context} a step {plain_ms:.2f} ms, {shape}s by rows: {cells}")
