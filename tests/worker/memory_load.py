"""Random requests near the declared peak, in a process of its own under a limit of the system.

    python memory_load.py FOLDER COUNT SEED

Prints one line of JSON: how the runs ended, and the most that was resident.
"""

import json
import logging
import random
import resource
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import structlog
import torch

sys.path.insert(0, str(Path(__file__).parent))

from scripted import END, TOKENIZER, Bench, submit

from proto.messages import Cancel, Credit, Delta, Done, Refused
from proto.worker_settings import CacheSettings, Launch, MemorySettings, WorkerSettings
from worker.build import build_engine
from worker.loading.locate import open_checkpoint
from worker.memory import MIB
from worker.memory_gate import gate_of
from worker.settings import Machine, resident_bytes
from worker.text.sources import masked_ids

ROOM_MB = 200  # for everything but the weights
SLACK_MB = 400  # of the system's limit above that: it counts the gaps of a heap, which nobody holds
LONGEST = 1_800  # tokens of a prompt


def main(folder: Path, count: int, seed: int) -> None:
    """Serves them all, some with clients that leave or do not read."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    torch.set_num_threads(1)
    cache = CacheSettings(store_mb=120, entry_share=1.0, guest_mb=64)
    settings = WorkerSettings(
        model=str(folder), weights="fp32", threads=1, max_len=4_096, cache=cache
    )
    machine = Machine("cpu", threads=1, chunk=128, lanes=3, slots=4)
    launch = Launch(settings, "m", str(folder), "ipc:///x", str(folder))
    engine = build_engine(
        launch, machine, open_checkpoint(folder), masked_ids=masked_ids(TOKENIZER, 512),
        end_ids=(END,),
    )  # fmt: skip
    engine.check()
    peak_mb = resident_bytes() // MIB + ROOM_MB
    engine.use_gate(partial(gate_of, "cpu", MemorySettings(peak_mb=peak_mb, floor_mb=1)))
    data_bytes = _status_bytes("VmData") + (ROOM_MB + SLACK_MB) * MIB
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    bench = Bench(engine=engine, lanes=3, max_len=4_096, queue_size=8, queue_timeout_s=1e6)
    bench.hello()
    source, said = random.Random(seed), Counter[str]()
    living: list[str] = []
    texts = ["".join(source.choices("abcdefgh ,.", k=LONGEST)) for _ in range(6)]
    for number in range(count):
        while len(bench.loop._queue) >= 7:
            _turn(bench, living, source)
        run_id, text = f"r{number}", source.choice(texts)
        params = {"temperature": 0.0, "max_tokens": source.choice((4, 20, 300))}
        params["cache_prompt"] = source.random() < 0.9
        text = text[: source.randint(20, LONGEST)]
        salt, credit = source.choice("abc"), source.choice((5, 10_000))
        bench.say(submit(run_id, text, params=params, cache_salt=salt, credit=credit))
        living.append(run_id)
        _turn(bench, living, source)
    while living:
        _turn(bench, living, source)
    said.update(done.finish + "/" + str(done.detail) for done in bench.messages(Done))
    said.update(refused.detail for refused in bench.messages(Refused))
    lanes = bench.loop._lanes
    print(
        json.dumps(
            {
                "ended": said,
                "tokens": sum(len(delta.ids) for delta in bench.messages(Delta)),
                "left": [len(lanes.running), lanes.memory_waiting, len(bench.loop._waiting)],
                "free_slots": engine.free_slots,
                "most_bytes": _status_bytes("VmHWM"),
                "peak_bytes": peak_mb * MIB,
                "reclaimed": engine._gate.reclaimed,
                "baseline_bytes": engine._gate.baseline_bytes,
            }
        )
    )


def _turn(bench: Bench, living: list[str], source: random.Random) -> None:
    bench.clock.now += 0.2
    bench.turn(3)
    over = {m.run_id for kind in (Done, Refused) for m in bench.messages(kind)}
    living[:] = [run_id for run_id in living if run_id not in over]
    if living and source.random() < 0.05:
        bench.say(Cancel(source.choice(living), 1, "gone"))
    if living and source.random() < 0.2:
        bench.say(Credit(source.choice(living), 10_000))


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
