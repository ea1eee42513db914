"""The plan of the house: who may import whom, how large a thing may grow."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("proto", "conductor", "gateway", "worker")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
FILE_LINES, FUNCTION_LINES, LINE_CHARS = 400, 70, 100

MAY_IMPORT = {
    "proto": {"proto"},
    "conductor": {"conductor", "proto"},
    "gateway": {"gateway", "conductor", "proto"},
    "worker": {"worker", "conductor", "proto"},
}
MAY_NOT_IMPORT = {
    "gateway": {"torch", "transformers", "tokenizers", "gguf", "safetensors"},
    "worker": {"starlette", "uvicorn", "httpx", "sqlalchemy", "transformers", "flash_attn"},
}
PROTO_MAY_IMPORT = {"msgpack", "cython_runtime", *sys.stdlib_module_names, "proto"}
# Nothing that reads a file, a socket, a clock or chance.
CONDUCTOR_MAY_IMPORT = {
    "collections", "conductor", "dataclasses", "datetime", "functools", "hashlib", "itertools",
    "json", "math", "proto", "re", "typing", "zlib",
}  # fmt: skip
FILES_OF = {"flash_attn": {"worker/kernels/flash.py"}}
VAGUE_NAMES = {"utils", "util", "helpers", "common", "misc", "manager", "handler"}


def imports_of(path: Path) -> Iterator[str]:
    """Top-level names of everything a file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    found = set(imports_of(path))
    ours = found & set(PACKAGES)
    assert ours <= MAY_IMPORT[package], f"{name_of(path)} imports {ours - MAY_IMPORT[package]}"
    forbidden = {
        name
        for name in found & MAY_NOT_IMPORT.get(package, set())
        if name_of(path) not in FILES_OF.get(name, set())
    }
    assert not forbidden, f"{name_of(path)} imports {forbidden}"
    if package == "proto":
        assert found <= PROTO_MAY_IMPORT
    if package == "conductor":
        assert found <= CONDUCTOR_MAY_IMPORT, f"{name_of(path)} imports {found}"


def test_worker_uses_nothing_of_the_conductor_but_its_monitor() -> None:
    for path in (ROOT / "worker").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("conductor"):
                assert (node.module or "").startswith("conductor.monitor"), name_of(path)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_grows_too_large(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= FILE_LINES, f"{name_of(path)} has {len(lines)} lines"
    assert all(len(line) <= LINE_CHARS for line in lines)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            size = node.end_lineno - node.lineno + 1
            assert size <= FUNCTION_LINES, f"{name_of(path)}: {node.name} has {size} lines"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_module_says_what_it_is(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert path.stem not in VAGUE_NAMES
    if path.name == "__init__.py":
        assert not tree.body, f"{name_of(path)} is not empty"
        return
    assert ast.get_docstring(tree), f"{name_of(path)} has no docstring"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_fault_is_swallowed(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ExceptHandler):
            assert not all(isinstance(line, ast.Pass) for line in node.body), (
                f"{name_of(path)}:{node.lineno}"
            )


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        (
            "gateway.app",
            (
                "torch",
                "worker",
                "numpy",
                "tokenizers",
                "transformers",
                "sqlalchemy",
                "alembic",
                "zmq",
                "msgpack",
                "httpx",
                "prometheus_client",
                "brotli",
                "zstandard",
                "email",
                "opentelemetry",
                "typing_extensions",
            ),
        ),
        (
            "gateway.serve",
            ("gateway.processes", "gateway.observe.shared", "gateway.door.shared", "opentelemetry"),
        ),
        ("gateway.cli", ("torch", "worker", "starlette", "sqlalchemy", "uvicorn")),
        ("conductor.client", ("starlette", "msgpack", "torch")),
    ],
)
def test_importing_a_package_loads_nothing_it_must_not_know(
    module: str, absent: tuple[str, ...]
) -> None:
    code = f"import sys, {module}; print([m for m in {absent!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_every_file_that_is_no_code_is_installed_too() -> None:
    """What a package reads beside its code is named in `pyproject.toml`."""
    globs = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "package-data"
    ]
    for package in PACKAGES:
        folder = ROOT / package
        installed = {path for glob in globs.get(package, []) for path in folder.glob(glob)}
        for path in folder.rglob("*"):
            if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts:
                assert path in installed, name_of(path)


def test_proto_loads_only_msgpack_beside_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import proto.codec, proto.worker_settings;"
        "print({m.partition('.')[0] for m in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    loaded = {name for name in ast.literal_eval(done.stdout) if not name.startswith("_")}
    assert loaded <= PROTO_MAY_IMPORT
