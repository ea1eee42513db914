"""Finds and reads `tandem.yaml` into `Settings`. The only reader of files and environment here.

All problems are collected and raised together, so that one run of `tandem check` shows them all.
"""

import hashlib
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from gateway.settings.planning import check_conductor, read_planning
from gateway.settings.texts import Texts, TooMuch, read_all
from gateway.settings.types import (
    BackendSettings,
    BudgetSettings,
    ClientKey,
    ConductorSettings,
    JournalSettings,
    LedgerSettings,
    PriceSettings,
    RouteSettings,
    ServerSettings,
    Settings,
    StoreSettings,
    TokenPrices,
    WorkerHostSettings,
)
from gateway.settings.yaml import Problem, Reader, known_keys
from proto.worker_settings import WorkerSettings

LEAST_RETENTION_DAYS = 400  # a year and a month: yearly reports stay possible
SHA256_HEX_CHARS = 64
LARGEST_BUDGET = Decimal(10**12)  # so that it, too, is a whole number of 64 bits in micros
MOST_WORKERS = 64  # processes that share a state folder
LARGEST_PRICE = Decimal(10**9)  # of a million tokens; the ledger's columns hold a little more


class SettingsError(Exception):
    """The configuration cannot be used. `problems` holds every reason, one line each."""

    def __init__(self, problems: list[Problem] | list[str]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class _File:
    """The top level of `tandem.yaml`."""

    server: ServerSettings = ServerSettings()
    backends: dict[str, BackendSettings] = field(default_factory=dict)
    routes: dict[str, RouteSettings] = field(default_factory=dict)
    prices: tuple[PriceSettings, ...] = ()
    keys: tuple[ClientKey, ...] = ()
    ledger: LedgerSettings = LedgerSettings()
    store: StoreSettings = StoreSettings()
    journal: JournalSettings = JournalSettings()
    conductor: ConductorSettings = ConductorSettings()


def find_file(path: str | None, environ: Mapping[str, str]) -> Path:
    """The configuration file: `path`, `$TANDEM_CONFIG`, `./tandem.yaml`, then the user's.

    Raises: SettingsError that names the places.
    """
    if named := path or environ.get("TANDEM_CONFIG"):
        if not Path(named).is_file():
            raise SettingsError([f"{named}: no such file"])
        return Path(named)
    places = [Path("tandem.yaml"), Path("~/.config/tandem/tandem.yaml").expanduser()]
    for place in places:
        if place.is_file():
            return place
    raise SettingsError(
        ["no configuration found; looked at --config, $TANDEM_CONFIG, "
         + ", ".join(map(str, places))]
    )  # fmt: skip


def load(path: Path, environ: Mapping[str, str]) -> Settings:
    """Reads and checks one file, and the profiles and packages beside it.

    Raises: SettingsError with every problem.
    """
    return parse(path, read_texts(path), environ)


def read_texts(path: Path) -> Texts:
    """What the file says, and what lies beside it. Raises: SettingsError."""
    try:
        return read_all(path)
    except (OSError, UnicodeDecodeError) as fault:
        raise SettingsError([f"{path}: {fault}"]) from fault
    except TooMuch as fault:
        raise SettingsError([str(fault)]) from fault


def parse(path: Path, texts: Texts, environ: Mapping[str, str]) -> Settings:
    """Checks the texts of the file at `path` and of what lies beside it.

    Raises: SettingsError with every problem, those of one file together.
    """
    reader = Reader(str(path), environ, all_keys())
    settings = _read(reader, texts.main)
    beside = read_planning(texts)
    if settings is not None:
        _check(reader, settings)
        check_conductor(reader, settings, beside, texts)
    problems = [*sorted(reader.problems, key=lambda problem: problem.line), *beside.problems]
    if problems or settings is None:
        raise SettingsError(problems)
    planning = beside.planning(settings.conductor.default_profile)
    return _with_revision(replace(settings, planning=planning))


def _with_revision(settings: Settings) -> Settings:
    rev = hashlib.sha256(repr(settings).encode()).hexdigest()[:12]
    return replace(settings, planning=replace(settings.planning, config_rev=rev), rev=rev)


def all_keys() -> list[str]:
    """Every dotted key of `tandem.yaml`."""
    worker = known_keys(WorkerHostSettings, "worker.") + known_keys(WorkerSettings, "worker.")
    return [*known_keys(_File), "worker", *worker]


def _read(reader: Reader, text: str) -> Settings | None:
    root = reader.compose(text)
    if root is None:
        return None if reader.problems else Settings()
    worker_node: yaml.Node | None = None
    if isinstance(root, yaml.MappingNode):
        worker_node = _take(root, "worker", reader)
    top = reader.read_fields(root, "", _File)
    host, engine = None, WorkerSettings()
    if worker_node is not None:
        pair = reader.read_fields(worker_node, "worker", WorkerHostSettings, WorkerSettings)
        host, engine = pair or (None, engine)
    if top is None or reader.problems:
        return None
    values = {key.name: getattr(top[0], key.name) for key in fields(_File)}
    settings = Settings(**values, worker=host, engine=engine)
    return replace(settings, keys=_with_currencies(reader, settings))


def _with_currencies(reader: Reader, settings: Settings) -> tuple[ClientKey, ...]:
    """The keys; a budget that names no currency is in that of the prices."""
    if not settings.prices:
        return settings.keys
    currency = settings.prices[0].currency
    return tuple(
        key
        if key.budget is None or f"keys[{index}].budget.currency" in reader.lines
        else replace(key, budget=replace(key.budget, currency=currency))
        for index, key in enumerate(settings.keys)
    )


def _take(root: yaml.MappingNode, key: str, reader: Reader) -> yaml.Node | None:
    """Removes one key from the root; an empty section is an empty mapping."""
    entries = [entry for entry in root.value if entry[0].value == key]
    for again in entries[1:]:
        reader.lines[key] = again[0].start_mark.line + 1
        reader.note(key, f"key {key!r} is given twice")
    if not entries:
        return None
    root.value = [entry for entry in root.value if entry not in entries]
    name, node = entries[0]
    reader.lines[key] = name.start_mark.line + 1
    if node.tag.endswith(":null"):
        return yaml.MappingNode("tag:yaml.org,2002:map", [], node.start_mark, node.end_mark)
    assert isinstance(node, yaml.Node)
    return node


def _check(reader: Reader, settings: Settings) -> None:
    """What no single key shows: references, ranges, names given twice."""
    _check_server(reader, settings)
    for name, backend in settings.backends.items():
        _check_backend(reader, f"backends.{name}", backend)
    _check_default(reader, settings)
    _check_routes(reader, settings)
    _check_keys(reader, settings)
    _check_prices(reader, settings)
    if settings.ledger.retention_days < LEAST_RETENTION_DAYS:
        reader.note(
            "ledger.retention_days",
            f"ledger.retention_days: at least {LEAST_RETENTION_DAYS}, "
            f"found {settings.ledger.retention_days}",
        )
    if settings.ledger.path and settings.ledger.url:
        reader.note("ledger.url", "ledger: give 'path' or 'url', not both")
    for key in ("rotate_mb", "days"):
        if getattr(settings.journal, key) < 1:
            reader.note(f"journal.{key}", f"journal.{key}: expected at least 1")
    if not settings.backends and settings.worker is None:
        reader.note("", "nothing to serve: add a 'worker' section or a backend under 'backends'")


def _check_server(reader: Reader, settings: Settings) -> None:
    server = settings.server
    if not 0 <= server.port <= 65_535:
        reader.note("server.port", f"server.port: expected 0 to 65535, found {server.port}")
    if server.max_body_mb < 1:
        reader.note("server.max_body_mb", "server.max_body_mb: expected at least 1")
    if not 1 <= server.workers <= MOST_WORKERS:
        expected = f"expected 1 to {MOST_WORKERS}"
        reader.note("server.workers", f"server.workers: {expected}, found {server.workers}")
    if server.otel_endpoint is not None:
        where = "server.otel_endpoint"
        if not _is_web_address(server.otel_endpoint):
            reader.note(where, f"{where}: expected an http or https address")
        elif "@" in server.otel_endpoint or "?" in server.otel_endpoint:
            reader.note(where, f"{where}: credentials belong in $OTEL_EXPORTER_OTLP_HEADERS")
    if server.auth == "keys" and not settings.keys:
        reader.note("server.auth", "server.auth is 'keys' but there are no entries under 'keys'")
    if (exposure := open_to_everybody(settings)) is not None:
        reader.note("server.host", f"server.host: {exposure}")


def _check_backend(reader: Reader, where: str, backend: BackendSettings) -> None:
    if not _is_web_address(backend.base_url):
        reader.note(f"{where}.base_url", f"{where}.base_url: expected an http or https address")
    elif "@" in backend.base_url or "?" in backend.base_url:
        reader.note(f"{where}.base_url", f"{where}.base_url: credentials belong under 'keys'")
    if len(backend.keys) > 1:
        reader.note(f"{where}.keys", f"{where}.keys: one key can be used today, give one")
    if backend.conductor and backend.kind != "openai":
        where_conductor = f"{where}.conductor"
        reader.note(
            where_conductor, f"{where_conductor}: only a backend of kind 'openai' can have it today"
        )
    for clock in ("connect_s", "first_event_s", "idle_s", "total_s", "heartbeat_s"):
        if getattr(backend, clock) < 0:
            reader.note(f"{where}.{clock}", f"{where}.{clock}: expected at least 0")
    for name, value in backend.headers.items():
        if not name.replace("-", "").isalnum() or not value.isprintable() or not value.isascii():
            reader.note(f"{where}.headers.{name}", f"{where}.headers: {name!r} is no valid header")


def _check_default(reader: Reader, settings: Settings) -> None:
    first, *others = [name for name, backend in settings.backends.items() if backend.default] or [
        ""
    ]
    for name in others:
        where = f"backends.{name}.default"
        reader.note(where, f"{where}: backends.{first} is the default already, and there is one")


def _check_routes(reader: Reader, settings: Settings) -> None:
    model_name = settings.worker.model_name if settings.worker else None
    owners: dict[str, str] = {}
    for name, route in settings.routes.items():
        where = f"routes.{name}"
        if len(route.targets) != 1:
            reader.note(
                f"{where}.targets",
                f"{where}.targets: a route has one target today, found {len(route.targets)}",
            )
        for target in route.targets:
            if target.backend not in settings.backends:
                reader.note(f"{where}.targets", f"{where}: no backend is named {target.backend!r}")
        for alias in (name, *route.aliases):
            if alias == model_name:
                reader.note(where, f"{where}: {alias!r} is the name of the worker's model")
            if alias in owners:
                reader.note(where, f"{where}: {alias!r} belongs to routes.{owners[alias]} already")
            owners[alias] = name


def _check_keys(reader: Reader, settings: Settings) -> None:
    labels: set[str] = set()
    for index, key in enumerate(settings.keys):
        where = f"keys[{index}]"
        if (key.sha256 is None) == (key.secret is None):
            reader.note(where, f"{where}: give exactly one of 'sha256' and 'secret'")
        if key.sha256 is not None and not _is_sha256(key.sha256):
            reader.note(f"{where}.sha256", f"{where}.sha256: expected 64 hex digits")
        if key.label in labels:
            reader.note(where, f"{where}.label: {key.label!r} is given twice")
        labels.add(key.label)
        if key.budget is not None:
            _check_budget(reader, f"{where}.budget", key.budget, settings.prices)


def _check_budget(
    reader: Reader, where: str, budget: BudgetSettings, prices: tuple[PriceSettings, ...]
) -> None:
    """A budget adds up one currency: what a price in another one costs would pass it by."""
    if budget.limit > LARGEST_BUDGET:
        reader.note(f"{where}.limit", f"{where}.limit: a budget is at most {LARGEST_BUDGET}")
    if not re.fullmatch("[A-Z]{3}", budget.currency):
        reader.note(where, f"{where}.currency: expected three letters such as USD")
        return
    for index, price in enumerate(prices):
        if price.currency != budget.currency:
            reader.note(
                f"{where}.currency",
                f"{where}.currency: it is {budget.currency}, but prices[{index}] is in "
                f"{price.currency}; a budget counts one currency",
            )
            return


def _check_prices(reader: Reader, settings: Settings) -> None:
    for index, price in enumerate(settings.prices):
        where = f"prices[{index}]"
        if not re.fullmatch("[A-Z]{3}", price.currency):
            reader.note(where, f"{where}.currency: expected three letters such as USD")
        if price.backend not in ("*", "worker", *settings.backends) and not _is_glob(price.backend):
            reader.note(where, f"{where}.backend: no backend is named {price.backend!r}")
        tokens = price.per_mtok or TokenPrices()
        amounts = [getattr(tokens, key.name) for key in fields(TokenPrices)]
        if any(amount > LARGEST_PRICE for amount in (*amounts, price.per_request) if amount):
            reader.note(where, f"{where}: a price is at most {LARGEST_PRICE}")
        if price.energy and any([*amounts, price.per_request]):
            reader.note(where, f"{where}: give prices or 'energy', not both")


def open_to_everybody(settings: Settings) -> str | None:
    """Why these settings would serve other machines without a key, where nobody said so."""
    host = settings.server.host
    if settings.server.auth != "auto" or settings.keys or is_loopback(host):
        return None
    return (
        f"{host} is reachable from other machines and there are no 'keys'; "
        "add keys, or write 'auth: none' to serve everybody"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address we bind."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        parts.netloc.encode("idna")
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets, ports and labels that no address has
        return False


def _is_sha256(text: str) -> bool:
    return len(text) == SHA256_HEX_CHARS and all(c in "0123456789abcdef" for c in text.lower())


def _is_glob(text: str) -> bool:
    return any(c in text for c in "*?[")
