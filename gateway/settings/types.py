"""Every setting of `tandem.yaml`, with its default. Knows nothing of YAML, files or environment.

`docs/configuration.md` explains each key; a test compares the two.
"""

from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Literal

from conductor.types import Settings as Planning
from proto.worker_settings import WorkerSettings

# What a request that names a model may be, and a backend may speak.
Spoken = Literal[
    "chat", "completions", "responses", "embeddings", "audio", "images", "moderations",
    "messages", "count_tokens", "gemini",
]  # fmt: skip
Surface = Literal[Spoken, "files", "batches"]  # the last two name no model
BackendKind = Literal["openai", "anthropic", "gemini"]
Window = Literal["day", "month", "1h", "1d", "30d"]
Flavor = Literal["none", "vllm", "sglang", "llamacpp", "openrouter"]


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret by reference (`env:NAME`, `file:/path`). Its value never appears in a repr."""

    reference: str
    value: str = field(repr=False, default="")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The gateway process, or `workers` of them on one port. Sizes in MiB, times in seconds."""

    host: str = "127.0.0.1"
    port: int = 8700
    auth: Literal["auto", "keys", "none"] = "auto"
    admin_token: Secret | None = None
    metrics_token: Secret | None = None
    state_dir: Path = Path("~/.local/state/tandem")
    max_body_mb: int = 64
    drain_s: float = 600.0
    models_cache_s: float = 30.0
    workers: int = 1
    otel_endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class BackendKey:
    """A credential of ours at a backend."""

    label: str
    secret: Secret


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """A service that serves models for us. Clocks in seconds, 0 = off.

    `conductor`: its chat requests are planned and watched. `small`: its models for side requests.
    """

    kind: BackendKind
    base_url: str
    flavor: Flavor = "none"
    speaks: tuple[Spoken, ...] | None = None
    keys: tuple[BackendKey, ...] = ()
    models: Literal["auto"] | tuple[str, ...] = "auto"
    prefix: str | None = None
    default: bool = False
    conductor: bool = False
    small: tuple[str, ...] = ()
    stream_usage: Literal["client", "inject"] = "client"
    tokens_per_delta: Literal["one", "unknown"] = "unknown"
    tokenize: bool = True
    connect_s: float = 5.0
    first_event_s: float = 300.0
    idle_s: float = 120.0
    total_s: float = 0.0
    heartbeat_s: float = 0.0
    max_in_flight: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    tls_verify: bool = True


@dataclass(frozen=True, slots=True)
class RouteTarget:
    """Where a route leads."""

    backend: str
    model: str


@dataclass(frozen=True, slots=True)
class RouteSettings:
    """A model name of our own for one backend's model."""

    targets: tuple[RouteTarget, ...]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """Prices of a million tokens, in the entry's currency."""

    input: Decimal | None = None
    cached_input: Decimal | None = None
    cache_write: Decimal | None = None
    output: Decimal | None = None
    reasoning: Decimal | None = None


@dataclass(frozen=True, slots=True)
class EnergyPrice:
    """What a busy machine costs: its draw and the price of a kWh."""

    watts: Decimal
    per_kwh: Decimal


@dataclass(frozen=True, slots=True)
class PriceSettings:
    """One entry of the price list. `backend` and `model` are globs."""

    model: str
    backend: str = "*"
    currency: str = "USD"
    per_mtok: TokenPrices | None = None
    per_request: Decimal | None = None
    energy: EnergyPrice | None = None
    valid_from: date | None = None


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """What a key may spend in a window: a calendar day or month (UTC), or a rolling time."""

    limit: Decimal
    window: Window
    currency: str = "USD"


@dataclass(frozen=True, slots=True)
class ClientKey:
    """A key that clients show us: its SHA-256, or a secret to take that of."""

    label: str
    sha256: str | None = None
    secret: Secret | None = None
    user: str | None = None
    models: tuple[str, ...] = ("*",)
    profiles: tuple[str, ...] | None = None
    budget: BudgetSettings | None = None
    disabled: bool = False


@dataclass(frozen=True, slots=True)
class WorkerHostSettings:
    """How the gateway reaches the engine, beside what the engine is told (`engine`)."""

    model_name: str = "TandemLLM"
    endpoint: str | None = None
    spawn: bool = True
    conductor: bool = True


@dataclass(frozen=True, slots=True)
class NotesSettings:
    """Where placed notes and the states of conversations are kept, how long, and how many MiB."""

    store: Literal["sql", "memory"] = "sql"
    ttl_days: int = 30
    max_mb: int = 512


@dataclass(frozen=True, slots=True)
class MemoryWriterSettings:
    """When memory notes are written in the background: after so much silence, and so many turns."""

    quiet_s: float = 120.0
    min_turns: int = 4


@dataclass(frozen=True, slots=True)
class ConductorSettings:
    """How turns are planned. Folders are looked for beside the file.

    `ask_backend`: who answers the conductor's own questions: the backend of the request, or one.
    """

    profiles: Path = Path("profiles")
    packages: Path = Path("packages")
    default_profile: str = "chat"
    ask_backend: str = "same"
    notes: NotesSettings = NotesSettings()
    memory: MemoryWriterSettings = MemoryWriterSettings()


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """Where requests are booked: a SQLite file, or a PostgreSQL URL."""

    path: Path | None = None
    url: Secret | None = None
    retention_days: int = 400
    backup_weeks: int = 8
    queue: int = 10_000


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where every table but the ledger is: a SQLite or a PostgreSQL URL."""

    url: Secret | None = None


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Where the conductor's journal is. `rotate_mb`: MiB of one file; `days`: it is kept."""

    dir: Path | None = None
    rotate_mb: int = 64
    days: int = 30
    log_content: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole file, and the profiles and packages beside it (`planning`).

    `rev`: 12 hex of the SHA-256 of its normalised content.
    """

    server: ServerSettings = field(default_factory=ServerSettings)
    backends: dict[str, BackendSettings] = field(default_factory=dict)
    routes: dict[str, RouteSettings] = field(default_factory=dict)
    prices: tuple[PriceSettings, ...] = ()
    keys: tuple[ClientKey, ...] = ()
    worker: WorkerHostSettings | None = None
    engine: WorkerSettings = field(default_factory=WorkerSettings)
    ledger: LedgerSettings = field(default_factory=LedgerSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    journal: JournalSettings = field(default_factory=JournalSettings)
    conductor: ConductorSettings = field(default_factory=ConductorSettings)
    planning: Planning = Planning(profiles={}, default_profile="chat", packages={}, config_rev="")
    rev: str = ""

    @property
    def state_dir(self) -> Path:
        """The folder of everything that outlives a process."""
        return self.server.state_dir.expanduser()

    @property
    def store_target(self) -> str | Path:
        """The database of every table but the ledger: a URL, or a file."""
        url = self.store.url
        return self.state_dir / "tandem.sqlite" if url is None else url.value

    @property
    def journal_dir(self) -> Path:
        """The folder of the journal."""
        return (self.journal.dir or self.state_dir / "journal").expanduser()

    @property
    def worker_endpoint(self) -> str:
        """The ZeroMQ address of the engine worker."""
        configured = self.worker.endpoint if self.worker else None
        return configured or f"ipc://{self.state_dir}/worker.sock"
