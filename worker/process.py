"""The worker's process: builds everything once, runs the loop, ends. Knows no policy.

The only place where the engine's parts are put together.
"""

import argparse
import hashlib
import json
import os
import platform
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog
import torch

from conductor.monitor.policy import Monitor
from proto.codec import VERSION, from_wire
from proto.faults import CodecFault
from proto.limits import LINK_LEASE_S, PREPARING
from proto.messages import Caps, Ready
from proto.worker_settings import Launch, MemorySettings
from worker.admission import Queue
from worker.build import build_engine, device_name, settled
from worker.draft.corpus import read_corpus
from worker.draft.suffix_store import SuffixStores
from worker.embedding.lane import EmbedLane
from worker.engine import Engine, EngineFacts
from worker.faults import StartFault
from worker.grammar.compiler import GrammarCompiler
from worker.hosting import Hosting, NewWatch
from worker.link import Endpoint, Link
from worker.loading.locate import Checkpoint, open_checkpoint
from worker.logs import configure_logging
from worker.loop import Loop
from worker.mailbox import Board, Inbox, Outbox
from worker.memory_gate import gate_of
from worker.prepare import Preparer
from worker.price_file import Fingerprint, PriceFile
from worker.pricing import Pricing
from worker.run import RunLimits
from worker.sampling.sampler import NEAR_TIE_ULPS
from worker.settings import Machine, bounds_of, check_warm, machine_of
from worker.side import SideLane
from worker.speculation.calibration import scope_of
from worker.speculation.table import table_lines
from worker.state_folders import kept_files_of
from worker.text.call_syntax import CallForm
from worker.text.prompt import PromptWriter
from worker.text.sent_back import SentBack
from worker.text.sources import masked_ids, template_of, tokenizer_of
from worker.text.template import ChatTemplate
from worker.text.tokenizer import TextTokenizer
from worker.turns import Turns
from worker.types import StartDrain, ThreadDied, ToLoop, ToPreparer
from worker.warm import WarmPass

log = structlog.get_logger()

WORKER_STARTED = "worker.started"
WORKER_STOPPED = "worker.stopped"
THREAD_DIED = "thread.died"

START_FAILED_STATUS = 2
SUFFIXES_FOLDER = "suffixes"  # below the state folder
KV_BLOCK_TOKENS = 64  # of the prefix hashes that routers compare
CALIBRATION_CPU_S, CALIBRATION_CUDA_S = 20.0, 60.0  # at most, before the worker serves
SAMPLES_CPU, SAMPLES_CUDA = 5, 20  # of each price


def run(arguments: list[str]) -> int:
    """Runs a worker; returns the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m worker")
    parser.add_argument("--launch", required=True, help="proto.worker_settings.Launch as JSON")
    parser.add_argument("--exit-with-parent", action="store_true")
    parser.add_argument("--calibrate", action="store_true", help="measure prices, print them, end")
    options = parser.parse_args(arguments)
    configure_logging()
    if options.exit_with_parent:
        threading.Thread(target=_exit_at_end_of_input, daemon=True).start()
    try:
        launch = _read_launch(options.launch)
        if options.calibrate:
            return calibrate(launch)
        worker = Worker(launch, new_watch=Monitor)
    except StartFault as fault:
        print(fault, file=sys.stderr)
        return START_FAILED_STATUS
    except Exception as fault:  # noqa: BLE001 - files can be odd in more ways than have a name
        print(f"The model cannot be loaded: {type(fault).__name__}: {fault}.", file=sys.stderr)
        return START_FAILED_STATUS
    return worker.serve()


class Worker:
    """All parts of a worker, put together. Raises: StartFault; then nothing is bound.

    `new_watch`: makes the monitor of a run whose plan has one; nobody watches where None.
    """

    def __init__(self, launch: Launch, new_watch: NewWatch | None = None) -> None:
        began = time.monotonic()
        # First the lock: a second worker on the same address fails before it loads anything.
        endpoint = Endpoint(launch.endpoint)
        machine = machine_of(launch, has_cuda=torch.cuda.is_available())
        check_warm(launch.settings.warm)
        torch.set_num_threads(machine.threads)
        checkpoint = open_checkpoint(Path(launch.model_path))
        tokenizer = tokenizer_of(checkpoint.text)
        template = template_of(checkpoint.text, launch.settings.model)
        end_ids = _end_ids(checkpoint, tokenizer)
        self._engine = engine = build_engine(
            launch,
            machine,
            checkpoint,
            masked_ids=masked_ids(tokenizer, checkpoint.config.vocab_size),
            end_ids=end_ids,
            stores=_stores(launch, tokenizer),
            tokenizer_hash=tokenizer.hash,
            fits_chunk=True,
        )
        engine.check()
        facts = engine.facts
        engine.kept.files = kept_files_of(launch, machine, checkpoint, facts, tokenizer.hash)
        _use_gate(engine, launch, machine)
        pricing = _pricing(launch, machine, engine, checkpoint)
        if engine.is_drafting:
            pricing.start()
        self._endpoint = endpoint
        self._to_preparer: Inbox[ToPreparer] = Inbox(PREPARING)
        self._to_loop: Inbox[ToLoop] = Inbox()
        self._outbox, self._board = Outbox(), Board(time.monotonic())
        width = checkpoint.config.vocab_size
        compiler = GrammarCompiler(tokenizer.serialized, width=width, end_ids=end_ids)
        hosting = _hosting(new_watch, tokenizer, template, compiler)
        self._loop = self._build_loop(launch, machine, pricing, checkpoint, tokenizer, hosting)
        self._preparer = Preparer(
            PromptWriter(tokenizer, template),
            facts.defaults,
            compiler,
            SentBack(launch.settings.warm.first_turn_reasoning),
            max_len=facts.max_len,
            vocab_size=width,
            inbox=self._to_preparer,
            loop=self._to_loop,
            outbox=self._outbox,
        )
        ready = _ready(launch, engine, checkpoint, tokenizer, template)
        self._link = Link(
            endpoint,
            ready,
            preparer=self._to_preparer,
            loop=self._to_loop,
            outbox=self._outbox,
            board=self._board,
            clock=time.monotonic,
        )
        log.info(
            WORKER_STARTED,
            model=launch.model_name,
            endpoint=launch.endpoint,
            layout=ready.layout,
            device=ready.device,
            attention=engine.facts.attention,
            threads=machine.threads,
            max_len=ready.max_len,
            chunk=engine.facts.chunk,
            row_invariant=ready.row_invariant,
            start_ms=round((time.monotonic() - began) * 1000),
        )

    def _build_loop(
        self, launch: Launch, machine: Machine, pricing: Pricing,
        checkpoint: Checkpoint, tokenizer: TextTokenizer, hosting: Hosting | None,
    ) -> Loop:  # fmt: skip
        settings, engine = launch.settings, self._engine
        facts = engine.facts
        pooling, side = checkpoint.pooling, SideLane(settings.side)
        # A CUDA device is told what to do and does it later: steps are timed when they are done.
        clock = settled(time.monotonic, torch.device(machine.device))
        embedder = None if pooling is None else engine.embedder(pooling)
        return Loop(
            engine,
            pricing,
            end_ids=facts.end_ids,
            token_bytes=tokenizer.token_bytes,
            tokenizer_hash=tokenizer.hash,
            limits=RunLimits(facts.max_len, settings.default_max_tokens, settings.wall_clock_s),
            queue=Queue(settings.queue.size, settings.queue.timeout_s),
            side=side,
            embeds=EmbedLane(embedder, settings.queue, side, self._outbox, clock),
            warm=WarmPass(engine, settings.warm, clock),
            turns=Turns(settings.prefill.share),
            lanes=machine.lanes,
            drain_s=launch.drain_s,
            inbox=self._to_loop,
            preparer=self._to_preparer,
            outbox=self._outbox,
            board=self._board,
            hosting=hosting,
            clock=clock,
        )

    def serve(self) -> int:
        """Serves until SIGTERM or SIGINT and the end of the drain; returns the exit status."""
        stop_preparer, stop_link = threading.Event(), threading.Event()
        preparer = self._start("preparer", lambda: self._preparer.run(stop_preparer))
        link = self._start("link", lambda: self._link.run(stop_link))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._to_loop.put(StartDrain()))
        self._loop.run()
        stop_preparer.set()
        preparer.join()
        self._link.loop_has_ended()
        self._loop.refuse_late()
        stop_link.set()
        link.join()
        self._engine.stop()
        self._endpoint.release()
        log.info(WORKER_STOPPED)
        return 0

    def _start(self, name: str, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except Exception as fault:
                log.exception(THREAD_DIED, thread=name)
                self._to_loop.put(ThreadDied(name, type(fault).__name__))

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread


def calibrate(launch: Launch) -> int:
    """Measures the prices of rounds, stores and prints them. Raises: StartFault.

    Not beside a worker on the same address: each would disturb the other.
    """
    endpoint = Endpoint(launch.endpoint)
    machine = machine_of(launch, has_cuda=torch.cuda.is_available())
    torch.set_num_threads(machine.threads)
    checkpoint = open_checkpoint(Path(launch.model_path))
    engine = build_engine(launch, machine, checkpoint, masked_ids=(), end_ids=checkpoint.end_ids)
    if not engine.is_drafting:
        raise StartFault("Nothing guesses tokens with these settings, so there are no prices.")
    engine.check()
    _use_gate(engine, launch, machine)
    pricing = _pricing(launch, machine, engine, checkpoint)
    prices = pricing.measure()
    endpoint.release()
    if prices is None:
        raise StartFault("The prices could not be measured.")
    print("\n".join(table_lines(prices)))
    print(f"\nStored as {pricing.path}.")
    return 0


def _pricing(launch: Launch, machine: Machine, engine: Engine, checkpoint: Checkpoint) -> Pricing:
    is_cuda, facts = machine.device == "cuda", engine.facts
    most_rows = bounds_of(launch.settings.speculation, machine.device).most_rows
    fingerprint = Fingerprint(
        weights_hash=checkpoint.weights_hash,
        layout=facts.layout,
        device=device_name(machine),
        attention=facts.attention,
        threads=machine.threads,
        max_rows=most_rows,
        max_len=facts.max_len,
        torch=torch.__version__,
    )
    return Pricing(
        engine,
        scope_of(
            max_len=facts.max_len,
            most_rows=most_rows,
            vocab_size=checkpoint.config.vocab_size,
            samples=SAMPLES_CUDA if is_cuda else SAMPLES_CPU,
            limit_s=CALIBRATION_CUDA_S if is_cuda else CALIBRATION_CPU_S,
        ),
        PriceFile(Path(launch.state_dir) / "prices", fingerprint),
        has_room=engine.has_room,
        clock=time.perf_counter,
    )


def _end_ids(checkpoint: Checkpoint, tokenizer: TextTokenizer) -> tuple[int, ...]:
    found = checkpoint.end_ids or tokenizer.ids_of(checkpoint.config.family.end_tokens)
    if not found:
        raise StartFault("The model's files do not say which token ends an answer.")
    return found


def _use_gate(engine: Engine, launch: Launch, machine: Machine) -> None:
    """Raises: StartFault, when the model leaves no memory to serve with."""
    settings = launch.settings.memory
    host = gate_of("cpu", MemorySettings(), ()).has_room if machine.device == "cuda" else None
    side = launch.settings.side
    side_tokens = side.prompt + side.output if side.enabled else 0
    make = partial(gate_of, machine.device, settings)
    engine.use_gate(make, host, side_tokens=side_tokens)


def _read_launch(text: str) -> Launch:
    try:
        return from_wire(Launch, json.loads(text))
    except (ValueError, CodecFault) as fault:
        raise StartFault(f"--launch cannot be read: {fault}.") from fault


def _stores(launch: Launch, tokenizer: TextTokenizer) -> SuffixStores | None:
    """Texts to copy from beside a sequence's own, where the settings name any.

    Raises: StartFault.
    """
    lookup = launch.settings.draft.lookup
    is_used = launch.settings.speculation.enabled and lookup.enabled
    if not is_used or (lookup.store == "off" and not lookup.corpus):
        return None
    folder = Path(lookup.corpus).expanduser() if lookup.corpus else None
    corpus = None if folder is None else read_corpus(folder, tokenizer.encode_literal)
    return SuffixStores(
        Path(launch.state_dir) / SUFFIXES_FOLDER, lookup.store, tokenizer.hash, corpus=corpus
    )


def _hosting(
    new_watch: NewWatch | None, tokenizer: TextTokenizer, template: ChatTemplate | None,
    compiler: GrammarCompiler,
) -> Hosting | None:  # fmt: skip
    syntax: CallForm = template.call_form if template else "hermes"
    if new_watch is None:
        return None
    return Hosting(new_watch, tokenizer.encode_literal, compiler, syntax)


def _ready(
    launch: Launch,
    engine: Engine,
    checkpoint: Checkpoint,
    tokenizer: TextTokenizer,
    template: ChatTemplate | None,
) -> Ready:
    facts: EngineFacts = engine.facts
    place = f"{platform.node()} {launch.endpoint}"
    return Ready(
        worker_id=hashlib.sha256(place.encode()).hexdigest()[:16],
        incarnation=uuid.uuid4().hex,
        proto=VERSION,
        model=launch.model_name,
        weights_hash=checkpoint.weights_hash,
        tokenizer_hash=tokenizer.hash,
        template_hash=template.hash if template else "",
        block_size=KV_BLOCK_TOKENS,
        hash_seed=0,
        slots=facts.slots,
        parallel=facts.lanes,
        max_len=facts.max_len,
        max_rows=1,
        families=(facts.family,),
        layout=facts.layout,
        device=facts.device,
        row_invariant=engine.is_row_invariant(),
        near_tie_ulps=NEAR_TIE_ULPS,
        lease_ms=int(LINK_LEASE_S * 1000),
        caps=Caps(
            grammar=True,
            logprobs=True,
            embed=checkpoint.pooling is not None,
            reasoning=template is not None and template.reasoning.opens != "none",
        ),
    )


def _exit_at_end_of_input() -> None:
    # The parent holds the other end of our input; its end means the parent is gone.
    while os.read(sys.stdin.fileno(), 4096):
        continue
    os._exit(0)
