"""`python -m worker.draft.train`: from a model and an hour to a drafter for it.

Knows the arguments, and nothing of how it is done.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

import torch

from proto.codec import from_wire
from proto.faults import CodecFault
from proto.worker_settings import Launch
from worker.draft.train.prompts import read_prompts
from worker.draft.train.session import Plan, Session
from worker.draft.train.target import drafter_config, load_target
from worker.draft.train.training import Recipe
from worker.faults import StartFault
from worker.kernels.precision import compute_fp32_in_full
from worker.settings import machine_of

START_FAILED_STATUS, STOPPED_STATUS = 2, 130


def main(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    options = _parser().parse_args(arguments)
    os.umask(0o077)  # what a model wrote is nobody else's business
    try:
        return _train(options)
    except StartFault as fault:
        print(fault, file=sys.stderr)
        return START_FAILED_STATUS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tandem train-drafter")
    parser.add_argument("--launch", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="folder (drafters/MODEL below server.state_dir)")
    parser.add_argument("--prompts", type=Path, help="file, or folder of .txt: one prompt a line")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all of it (60)")
    parser.add_argument("--share", type=float, default=0.4, help="of them for writing text (0.4)")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="of text at most (1000000)")
    parser.add_argument("--steps", type=int, help="of learning, whatever time they take")
    parser.add_argument("--layers", type=int, default=2, help="of the drafter (2)")
    parser.add_argument("--block", type=int, default=8, help="tokens of a block, with its root (8)")
    parser.add_argument("--taps", type=int, default=5, help="layers of the model it reads (5)")
    parser.add_argument("--answer", type=int, default=256, help="tokens of a text at most (256)")
    parser.add_argument("--lanes", type=int, default=32, help="texts written side by side (32)")
    parser.add_argument("--rate", type=float, default=1e-3, help="of learning (0.001)")
    parser.add_argument("--max-rows", type=int, default=64, help="of a tree, for the trial (64)")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _train(options: argparse.Namespace) -> int:
    prompts = read_prompts(options.prompts)
    launch = _read_launch(options.launch)
    out = options.out or Path(launch.state_dir) / "drafters" / Path(launch.settings.model).stem
    machine = machine_of(launch, has_cuda=False)
    torch.set_num_threads(machine.threads)
    compute_fp32_in_full()
    target = load_target(launch, machine)
    config = drafter_config(
        target.model.config,
        target.origin,
        mask_id=target.mask_id,
        layers=options.layers,
        block=options.block,
        taps=options.taps,
    )
    plan = Plan(
        record_s=60 * options.minutes * options.share,
        learn_s=60 * options.minutes * (1 - options.share),
        tokens=options.tokens,
        steps=options.steps,
        answer=options.answer,
        lanes=options.lanes,
        max_rows=options.max_rows,
        recipe=Recipe(rate=options.rate, seed=options.seed),
    )
    stops: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda caught, _: stops.append(caught))
    is_over = Session(out, target, config, plan, lambda: bool(stops)).run(prompts)
    print(f"{'done' if is_over else 'stopped; the same command goes on'}: {out}", file=sys.stderr)
    return 0 if is_over else STOPPED_STATUS


def _read_launch(text: str) -> Launch:
    try:
        return from_wire(Launch, json.loads(text))
    except (ValueError, CodecFault) as fault:
        raise StartFault(f"--launch cannot be read: {fault}.") from fault


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
