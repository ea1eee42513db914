"""The engine's settings, shared because the gateway reads the file and the worker obeys it.

Knows nothing of YAML: the gateway parses `worker:` of `tandem.yaml` into this and hands it over
as JSON when it starts the worker.
"""

from dataclasses import dataclass, field
from typing import Literal

WeightLayout = Literal["bf16", "fp32", "int8", "q4", "mixed"]
StoreMode = Literal["off", "readonly", "outputs", "all"]


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Waiting: how many requests, how long, and when a streamed answer opens meanwhile."""

    size: int = 8
    timeout_s: float = 240.0
    open_after_s: float = 10.0


@dataclass(frozen=True, slots=True)
class PrefillSettings:
    """`chunk`: prompt tokens forwarded together; 0 = 256 on a CPU, 1,024 on CUDA, less where that
    takes more than about a second. `share`: of the device's time, while others write."""

    chunk: int = 0
    share: float = 0.5


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """What the worker may hold, in MiB. `peak_mb`: at most, 0 = 80 % of the device, or of what the
    container may take; `floor_mb`: stays free there for others, 0 = 10 % of it."""

    peak_mb: int = 0
    floor_mb: int = 0


@dataclass(frozen=True, slots=True)
class SideSettings:
    """Short requests are served beside long ones: up to `prompt` and `output` tokens, without
    thinking. `waiting`: how many wait for that lane; `share`: of the time, while others run."""

    enabled: bool = True
    prompt: int = 2_048
    output: int = 64
    waiting: int = 4
    share: float = 0.5


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """Guessed tokens are verified several at a time, where that is worth its price.

    `max_rows`: rows of one verify, 0 = 64 on a CPU, 32 on CUDA. `snap`: the only row counts that
    are verified, none = all on a CPU and 8, 16, 24, 32 on CUDA. `margin`: how many times as much
    as a plain step a draft must promise.
    """

    enabled: bool = True
    max_rows: int = 0
    snap: tuple[int, ...] = ()
    margin: float = 1.02


@dataclass(frozen=True, slots=True)
class LookupSettings:
    """Guesses that are copied from what was written before. `min_match`: tokens that must be the
    same before a place to copy from; `min_expected`: tokens that a guess must promise. `store`:
    what of a tenant's texts is kept on disk to copy from, as token ids; `readonly` adds nothing.
    `corpus`: a folder of text that everybody's answers may be copied from."""

    enabled: bool = True
    min_match: int = 3
    min_expected: float = 0.6
    store: StoreMode = "off"
    corpus: str | None = None


@dataclass(frozen=True, slots=True)
class BlockSettings:
    """Guesses of a small model that reads the large one's thoughts. `path`: its folder."""

    path: str = ""


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """Where guesses come from."""

    lookup: LookupSettings = field(default_factory=LookupSettings)
    block: BlockSettings = field(default_factory=BlockSettings)


@dataclass(frozen=True, slots=True)
class DiskSettings:
    """Beginnings of prompts that are resumed from at least `min_hits` times are kept on disk, for
    `ttl_d` days after their last use. `dir`: None = off; `max_gb`: 10^9 bytes."""

    dir: str | None = None
    max_gb: float = 60.0
    ttl_d: float = 7.0
    min_hits: int = 2


@dataclass(frozen=True, slots=True)
class SpillSettings:
    """Conversations outlive a planned stop, for `ttl_h` hours. `max_gb`: 10^9 bytes; `time_s`: for
    writing them."""

    enabled: bool = True
    max_gb: float = 8.0
    ttl_h: float = 24.0
    time_s: float = 10.0


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """What is kept so that no turn is read twice; MiB, 0 = what fits the device.

    `anchors_mb`, `anchor_tail`: copies of recurrent state, and how many of the newest are never
    given up. `store_mb`: copies of whole conversations in host memory, of which one takes at most
    `entry_share`. `guest_mb`: short requests beside a long conversation. `exact_resume`: only
    states that give the same bits are used. `shared_prefixes`: tenants share system prompts.
    """

    anchors_mb: int = 0
    anchor_tail: int = 4
    store_mb: int = 0
    entry_share: float = 0.25
    guest_mb: int = 0
    exact_resume: bool = False
    shared_prefixes: bool = False
    disk: DiskSettings = field(default_factory=DiskSettings)
    spill: SpillSettings = field(default_factory=SpillSettings)


@dataclass(frozen=True, slots=True)
class WarmSettings:
    """While nothing else is to do, the next prompt of a conversation is read as far as it is known.

    `first_turn_reasoning`: whether a client is expected to send reasoning back before it is known;
    `max_age_s`: how long after a reply it is given up.
    """

    enabled: bool = True
    first_turn_reasoning: Literal["omit", "keep"] = "omit"
    max_age_s: float = 60.0


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What one worker loads and how it runs.

    `model`: a registry name, a folder with safetensors, or a `.gguf` file. `threads`: 0 = physical
    cores. `max_len`: tokens of prompt and output together; 0 = the model's, at most 8,192 on a CPU.
    `parallel`: runs that decode in turn; `slots`: sequences kept, 0 = one more than that, so that a
    run which waits for its client does not hold up the next.
    """

    model: str = "smollm2"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = 0
    weights: WeightLayout = "bf16"
    max_len: int = 0
    parallel: int = 1
    slots: int = 0
    wall_clock_s: float = 3600.0
    default_max_tokens: int = 32_768
    queue: QueueSettings = field(default_factory=QueueSettings)
    prefill: PrefillSettings = field(default_factory=PrefillSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    side: SideSettings = field(default_factory=SideSettings)
    speculation: SpeculationSettings = field(default_factory=SpeculationSettings)
    draft: DraftSettings = field(default_factory=DraftSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    warm: WarmSettings = field(default_factory=WarmSettings)


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything `python -m worker` is told: its settings, where the model lies, where to listen.

    `model_path` is absolute; `endpoint` is a ZeroMQ address to bind; `state_dir` may be written to.
    """

    settings: WorkerSettings
    model_name: str
    model_path: str
    endpoint: str
    state_dir: str
    drain_s: float = 600.0
