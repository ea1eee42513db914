"""Reading `tandem.yaml`: every mistake is named by file, line and key, and nothing is guessed."""

import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.settings.load import SettingsError, all_keys, find_file, load
from gateway.settings.types import BudgetSettings, Settings
from gateway.settings.yaml import edit_distance
from proto.codec import from_wire, to_wire
from proto.worker_settings import LookupSettings, WarmSettings, WorkerSettings

GOOD = """
server: {host: 127.0.0.1, port: 8701, admin_token: "env:ADMIN"}
worker: {model_name: TandemLLM, queue: {size: 4}}
backends:
  attic:
    kind: openai
    flavor: vllm
    base_url: http://10.0.7.20:8000/v1
    models: auto
  skyline:
    kind: openai
    speaks: [chat, responses, embeddings]
    base_url: https://api.skyline.invalid/v1
    keys: [{label: team, secret: "env:SKYLINE_KEY"}]
    models: [kestrel-large, kestrel-mini]
    first_event_s: 120
routes:
  quick: {aliases: [mini], targets: [{backend: skyline, model: kestrel-mini}]}
prices:
  - {backend: skyline, model: kestrel-large, currency: EUR, valid_from: 2026-01-01,
     per_mtok: {input: 5, cached_input: 0.5, cache_write: 6.25, output: 20}}
  - {backend: worker, model: "*", currency: EUR, energy: {watts: 350, per_kwh: 0.31}}
keys:
  - {label: ci, secret: "env:KEY_CI", models: [quick, TandemLLM]}
ledger: {retention_days: 730}
"""
ENVIRON = {"ADMIN": "a", "SKYLINE_KEY": "sk", "KEY_CI": "ci"}


def read(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> Settings:
    file = tmp_path / "tandem.yaml"
    file.write_text(text)
    return load(file, ENVIRON if environ is None else environ)


def problems(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as fault:
        read(tmp_path, text, environ)
    return [str(p).removeprefix(f"{tmp_path}/tandem.yaml:") for p in fault.value.problems]


def test_a_complete_file_is_read_with_its_types(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD)
    assert (found.server.port, found.engine.queue.size) == (8701, 4)
    assert found.engine.queue.timeout_s == 240.0
    assert found.backends["skyline"].models == ("kestrel-large", "kestrel-mini")
    assert found.backends["skyline"].keys[0].secret.value == "sk"
    assert found.prices[0].per_mtok is not None
    assert found.prices[0].per_mtok.cached_input == Decimal("0.5")
    assert len(found.rev) == 12


def test_an_empty_worker_section_is_a_worker_with_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, "worker:\n").engine.model == "smollm2"


def test_what_is_read_ahead_is_read_and_reaches_the_worker(tmp_path: Path) -> None:
    assert read(tmp_path, "worker: {}").engine.warm == WarmSettings(True, "omit", 60.0)
    text = "{enabled: false, first_turn_reasoning: keep, max_age_s: 5}"
    found = read(tmp_path, f"worker: {{warm: {text}}}").engine
    assert found.warm == WarmSettings(False, "keep", 5.0)
    assert from_wire(WorkerSettings, json.loads(json.dumps(to_wire(found)))) == found
    wrong = problems(tmp_path, "worker: {warm: {first_turn_reasoning: yes}}")
    assert wrong == ["1: worker.warm.first_turn_reasoning: expected one of omit, keep, found 'yes'"]


def test_how_drafts_are_looked_up_is_read_and_reaches_the_worker(tmp_path: Path) -> None:
    plain = read(tmp_path, "worker: {}").engine.draft.lookup
    assert plain == LookupSettings(True, 3, 0.6, "off", None)
    text = "{enabled: false, min_match: 4, min_expected: 1, store: off, corpus: /texts}"
    found = read(tmp_path, f"worker: {{draft: {{lookup: {text}}}}}").engine
    assert found.draft.lookup == LookupSettings(False, 4, 1.0, "off", "/texts")
    assert from_wire(WorkerSettings, json.loads(json.dumps(to_wire(found)))) == found
    wrong = problems(tmp_path, "worker: {draft: {lookup: {store: on}}}")
    assert wrong == [
        "1: worker.draft.lookup.store: expected one of off, readonly, outputs, all, found 'on'"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("worker: {model_nam: x}", "1: unknown key 'worker.model_nam'; nearest known key: "
         "'worker.model_name'"),
        ("worker: {}\nserver:\n  prt: 1", "3: unknown key 'server.prt'; nearest known key: "
         "'server.port'"),
        ("worker: {}\nport: 1", "2: unknown key 'port'; it belongs at 'server.port'"),
        ("worker: {}\nserver: {port: yes}",
         "2: server.port: expected a whole number, found 'yes'"),
        ("worker: {}\nserver: {port: 010x}",
         "2: server.port: expected a whole number, found '010x'"),
        ("worker: {spawn: yes}", "1: worker.spawn: expected true or false, found 'yes'"),
        ("worker: {model_name: 5}",
         "1: worker.model_name: expected text, found '5' (quote it to make it text)"),
        ("worker: {device: gpu}",
         "1: worker.device: expected one of auto, cpu, cuda, found 'gpu'"),
        ("worker: []", "1: worker: expected a mapping, found a list"),
        ("worker: {}\nworker: {}", "2: key 'worker' is given twice"),
        ("worker: {}\nserver: {port: 1, port: 2}", "2: key 'server.port' is given twice"),
        ("worker: !thing {}", "1: worker: tag '!thing' is not allowed"),
        ("backends: {b: {kind: openai}}", "1: backends.b: key 'base_url' is missing"),
        ("backends: {b: {kind: openai, base_url: ftp://x}}",
         "1: backends.b.base_url: expected an http or https address"),
        ("backends: {b: {kind: openai, base_url: http://x, keys: [{label: k, secret: sk-abc}]}}",
         "1: backends.b.keys[0].secret: a secret is given by reference: env:NAME or file:/path, "
         "never as it is"),
        ("worker: {}\nroutes: {r: {targets: [{backend: nowhere, model: m}]}}",
         "2: routes.r: no backend is named 'nowhere'"),
        ("worker: {}\nserver: {host: 0.0.0.0}",
         "2: server.host: 0.0.0.0 is reachable from other machines and there are no 'keys'; add "
         "keys, or write 'auth: none' to serve everybody"),
        ("worker: {}\nserver: {workers: 0}", "2: server.workers: expected 1 to 64, found 0"),
        ("worker: {}\nserver: {workers: 65}", "2: server.workers: expected 1 to 64, found 65"),
        ("worker: {}\nserver: {otel_endpoint: collector:4318}",
         "2: server.otel_endpoint: expected an http or https address"),
        ("worker: {}\nserver: {otel_endpoint: 'https://u:p@collector'}",
         "2: server.otel_endpoint: credentials belong in $OTEL_EXPORTER_OTLP_HEADERS"),
        ("worker: {}\nledger: {retention_days: 30}",
         "2: ledger.retention_days: at least 400, found 30"),
        ("worker: {}\nprices: [{model: m, per_mtok: {input: -1}}]",
         "2: prices[0].per_mtok.input: expected a number of at least 0, found '-1'"),
        ("worker: {}\nprices: [{model: m, currency: euro, per_mtok: {input: 1}}]",
         "2: prices[0].currency: expected three letters such as USD"),
        ("backends: {b: {kind: openai, base_url: 'http://h:99999/v1'}}",
         "1: backends.b.base_url: expected an http or https address"),
        ("backends: {b: {kind: openai, base_url: 'http://a..b/v1'}}",
         "1: backends.b.base_url: expected an http or https address"),
        ("backends: {b: {kind: openai, base_url: 'http://[::1/v1'}}",
         "1: backends.b.base_url: expected an http or https address"),
        ("backends: {b: {kind: openai, base_url: 'http://u:p@h/v1'}}",
         "1: backends.b.base_url: credentials belong under 'keys'"),
        ("backends: {b: {kind: openai, base_url: http://x, idle_s: 1e999}}",
         "1: backends.b.idle_s: expected a number, found '1e999'"),
        ("worker: {}\nserver: {port: " + "9" * 5000 + "}",
         "2: server.port: expected a whole number, found '" + "9" * 64 + "'"),
        ("worker: {}\nkeys: [{label: a}]", "2: keys[0]: give exactly one of 'sha256' and 'secret'"),
        ("backends:\n  a: {kind: openai, base_url: http://x, default: true}\n"
         "  b: {kind: openai, base_url: http://y, default: true}",
         "3: backends.b.default: backends.a is the default already, and there is one"),
        ("backends: {b: {kind: openai, base_url: http://x, heartbeat_s: -1}}",
         "1: backends.b.heartbeat_s: expected at least 0"),
        ("backends: {b: {kind: openai, base_url: http://x, speaks: [files]}}",
         "1: backends.b.speaks[0]: expected one of chat, completions, responses, embeddings, "
         "audio, images, moderations, messages, count_tokens, gemini, found 'files'"),
        *[(f"worker: {{}}\nprices: [{{model: m, currency: USD, per_request: 1}}]\nkeys:\n"
           f"  - {{label: a, sha256: {'a' * 64}, budget: {budget}}}", problem)
          for budget, problem in (
              ("{limt: 1, window: day}", "4: unknown key 'keys[0].budget.limt'; nearest known key: "
               "'keys[0].budget.limit'"),
              ("{window: day}", "4: keys[0].budget: key 'limit' is missing"),
              ("{limit: 1}", "4: keys[0].budget: key 'window' is missing"),
              ("{limit: 1, window: week}", "4: keys[0].budget.window: expected one of day, month, "
               "1h, 1d, 30d, found text"),
              ("{limit: -1, window: day}", "4: keys[0].budget.limit: expected a number of at least "
               "0, found '-1'"),
              ("{limit: 1e13, window: day}", "4: keys[0].budget.limit: a budget is at most "
               "1000000000000"),
              ("{limit: 1, window: day, currency: usd}", "4: keys[0].budget.currency: expected "
               "three letters such as USD"),
              ("{limit: 1, window: day, currency: EUR}", "4: keys[0].budget.currency: it is EUR, "
               "but prices[0] is in USD; a budget counts one currency"),
          )],
        ("server: {port: 1}",
         "1: nothing to serve: add a 'worker' section or a backend under 'backends'"),
        ("a: [", "1: not YAML: expected the node content, but found '<stream end>'"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_line_and_key(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in problems(tmp_path, text)


def test_a_budget_is_an_exact_amount(tmp_path: Path) -> None:
    key = f"{{label: a, sha256: {'a' * 64}, budget: {{limit: 0.1, window: 30d}}}}"
    (found,) = read(tmp_path, f"worker: {{}}\nkeys: [{key}]").keys
    assert found.budget == BudgetSettings(Decimal("0.1"), "30d", "USD")


def test_a_budget_without_a_currency_is_in_that_of_the_prices(tmp_path: Path) -> None:
    budget = "budget: {limit: 20, window: month}"
    text = GOOD.replace("models: [quick, TandemLLM]", f"models: [quick, TandemLLM], {budget}")
    (found,) = read(tmp_path, text).keys
    assert found.budget == BudgetSettings(Decimal(20), "month", "EUR")


def test_all_mistakes_are_told_together(tmp_path: Path) -> None:
    text = "worker: {spawn: 1}\nserver: {prt: 1}\nledger: {queue: x}\n"
    assert [p.split(":")[0] for p in problems(tmp_path, text)] == ["1", "2", "3"]


def test_words_that_yaml_1_1_takes_for_booleans_and_numbers_stay_words(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "backends: {on: {kind: openai, base_url: http://x, models: [off, no, 1e, 0x1f, 12:30]}}",
    )
    assert found.backends["on"].models == ("off", "no", "1e", "0x1f", "12:30")


def test_a_secret_never_shows_in_words(tmp_path: Path) -> None:
    assert "sk-canary" not in repr(read(tmp_path, GOOD, {**ENVIRON, "SKYLINE_KEY": "sk-canary"}))


@pytest.mark.parametrize(
    "text",
    [
        "backends: {b: {kind: openai, base_url: http://x, keys: [sk-canary]}}",
        "backends: {b: {kind: openai, base_url: http://x, keys: sk-canary}}",
        "backends: {b: {kind: openai, base_url: http://x, keys: [{label: a, secret: 4711}]}}",
        "worker: {}\nkeys: sk-canary",
        "worker: {}\nserver: {admin_token: {a: sk-canary}}",
        "worker: {}\nledger: {url: [sk-canary]}",
    ],
)
def test_a_mistake_where_a_secret_stands_never_quotes_it(tmp_path: Path, text: str) -> None:
    told = "\n".join(problems(tmp_path, text))
    assert told and "canary" not in told and "4711" not in told


def test_a_missing_secret_is_named_by_its_variable(tmp_path: Path) -> None:
    assert any("SKYLINE_KEY is not set" in p for p in problems(tmp_path, GOOD, {"ADMIN": "a"}))


def test_a_secret_file_must_be_closed_to_others(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("s3cret\n")
    secret.chmod(0o644)
    text = f"worker: {{}}\nserver: {{admin_token: 'file:{secret}'}}"
    assert any("mode 0644" in p for p in problems(tmp_path, text))
    secret.chmod(0o600)
    token = read(tmp_path, text).server.admin_token
    assert token is not None and token.value == "s3cret"


def test_a_database_url_may_stand_open_only_without_a_password(tmp_path: Path) -> None:
    url = read(tmp_path, "worker: {}\nledger: {url: postgresql://me@host/db}").ledger.url
    assert url is not None and url.value == "postgresql://me@host/db"
    text = "worker: {}\nledger: {url: postgresql://me:pw@host/db}"
    assert any("by reference" in p for p in problems(tmp_path, text))


def test_the_store_is_a_file_of_the_state_folder_or_where_its_url_says(tmp_path: Path) -> None:
    usual = read(tmp_path, "worker: {}\nserver: {state_dir: /var/tandem}")
    assert usual.store_target == Path("/var/tandem/tandem.sqlite")
    for url in ("sqlite:////var/notes.sqlite", "postgresql://me@host/db"):
        assert read(tmp_path, f"worker: {{}}\nstore: {{url: '{url}'}}").store_target == url
    text = "worker: {}\nstore: {url: postgresql://me:pw@host/db}"
    assert any("by reference" in p for p in problems(tmp_path, text))
    secret = read(tmp_path, "worker: {}\nstore: {url: 'env:DB'}", {"DB": "postgresql://a:b@h/d"})
    assert secret.store_target == "postgresql://a:b@h/d" and "a:b" not in repr(secret)


def test_places_are_looked_at_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(SettingsError, match=r"\$TANDEM_CONFIG, tandem.yaml"):
        find_file(None, {})
    (tmp_path / "tandem.yaml").write_text("")
    (tmp_path / "other.yaml").write_text("")
    assert find_file(None, {}) == Path("tandem.yaml")
    assert find_file(None, {"TANDEM_CONFIG": "other.yaml"}) == Path("other.yaml")
    assert find_file("tandem.yaml", {"TANDEM_CONFIG": "other.yaml"}) == Path("tandem.yaml")


def test_the_revision_follows_the_content_not_the_layout(tmp_path: Path) -> None:
    assert (
        read(tmp_path, "worker: {}").rev == read(tmp_path, "# note\nworker:\n  spawn: true\n").rev
    )
    assert read(tmp_path, "worker: {}").rev != read(tmp_path, "worker: {spawn: false}").rev


LEAVES = [key for key in all_keys() if "*" not in key and "[" not in key and "." in key]


@settings(max_examples=60, deadline=None)
@given(key=st.sampled_from(LEAVES), at=st.integers(0, 30), letter=st.sampled_from("qxz"))
def test_a_mutated_key_never_starts(
    tmp_path_factory: pytest.TempPathFactory, key: str, at: int, letter: str
) -> None:
    *parents, leaf = key.split(".")
    at %= len(leaf)
    mutated = leaf[:at] + letter + leaf[at + 1 :]
    if mutated in LEAVES or mutated == leaf:
        return
    text = "worker: {}\n" if parents[0] != "worker" else ""
    for depth, name in enumerate(parents):
        text += "  " * depth + f"{name}:\n"
    text += "  " * len(parents) + f"{mutated}: 1\n"
    found = problems(tmp_path_factory.mktemp("mutated"), text)
    assert any(f"unknown key '{'.'.join([*parents, mutated])}'" in p for p in found)


@pytest.mark.parametrize(
    ("one", "other", "distance"), [("", "", 0), ("a", "", 1), ("kitten", "sitting", 3)]
)
def test_edit_distance(one: str, other: str, distance: int) -> None:
    assert edit_distance(one, other) == edit_distance(other, one) == distance


def test_the_journal_has_a_place_of_its_own(tmp_path: Path) -> None:
    found = read(tmp_path, f"{GOOD}journal: {{dir: ~/j, rotate_mb: 1, days: 7}}\n")
    assert (found.journal_dir, found.journal.days) == (Path("~/j").expanduser(), 7)
    usual = read(tmp_path, f"{GOOD}journal: {{}}\n")
    assert usual.journal_dir == usual.state_dir / "journal"
    assert not usual.journal.log_content


def test_a_journal_of_no_size_or_no_days_is_a_mistake(tmp_path: Path) -> None:
    assert problems(tmp_path, "worker: {}\njournal:\n  rotate_mb: 0\n  days: 0\n") == [
        "3: journal.rotate_mb: expected at least 1",
        "4: journal.days: expected at least 1",
    ]
