"""Profiles beside `tandem.yaml`: shipped, extended, and every mistake by file, line and key."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.classes import CLASSES
from conductor.profiles import Match, Profile, Rule, TaskClass
from gateway.settings.load import SettingsError, load
from gateway.settings.profile_file import ProfileFile
from gateway.settings.profiles import profile_keys
from gateway.settings.texts import MOST_FILES, Texts
from gateway.settings.types import Settings
from proto.plan import MonitorTask

PACKAGE = "---\nid: {0}\ntitle: A title\n---\nRead the first error.\n"

# A complete file: every key that the page of profiles shows.
WORKSHOP = """\
name: workshop
description: the team's agents, with our rules
extends: coding
match: {clients: [opencode, qwen-code], has_tools: true, priority: 10}
router:
  default_class: edit
  classes:
    debug: {budget: 4000, packages: [read-the-log]}
thinking: {mode: class, reserve_min: 1024}
effort: on
rules:
  - {id: tests, when: {classes: [edit, debug]}, text: "Run the tests at the end."}
  - {id: lock, when: {regex: "(?i)upgrade"}, text: "Leave the lock file alone."}
packages: {enabled: true, max_count: 1, max_tokens: 800, per_class: {plan: [read-the-log]}}
monitor:
  tasks:
    C4: {mode: act, params: {line_repeats: 24}}
    E2: {mode: off}
  continuations: 1
side: {kinds: {title: {max_output: 32}}}
status: {enabled: true, channel: reasoning, steps: [queued, loop]}
memory: {read: true, scope: project}
transcript: {enabled: true, days: 14}
sampling: {temperature: 0.6, top_p: 0.95}
limits: {max_output: 9000}
"""


def place(folder: Path, profiles: dict[str, str], main: str = "worker: {}\n") -> Path:
    """A configuration with profiles and one package beside it."""
    (folder / "profiles").mkdir(exist_ok=True)
    (folder / "packages").mkdir(exist_ok=True)
    (folder / "packages/log.md").write_text(PACKAGE.format("read-the-log"))
    for name, text in profiles.items():
        (folder / "profiles" / name).write_text(text)
    (folder / "tandem.yaml").write_text(main)
    return folder / "tandem.yaml"


def read(folder: Path, profiles: dict[str, str], main: str = "worker: {}\n") -> Settings:
    return load(place(folder, profiles, main), {})


def own(folder: Path, **texts: str) -> dict[str, Profile]:
    profiles = {f"{name}.yaml": f"name: {name}\n{text}" for name, text in texts.items()}
    return dict(read(folder, profiles).planning.profiles)


def problems(folder: Path, profiles: dict[str, str], main: str = "worker: {}\n") -> list[str]:
    with pytest.raises(SettingsError) as fault:
        read(folder, profiles, main)
    return [str(problem).removeprefix(f"{folder}/") for problem in fault.value.problems]


def told(folder: Path, text: str) -> list[str]:
    """What is said of `profiles/p.yaml`, by line."""
    found = problems(folder, {"p.yaml": f"name: p\n{text}"})
    assert all(problem.startswith("profiles/p.yaml:") for problem in found), found
    return [problem.removeprefix("profiles/p.yaml:") for problem in found]


CODING = ("opencode", "claude-code", "codex", "qwen-code", "gemini-cli", "cline", "continue",
          "aider")  # fmt: skip


@pytest.mark.parametrize(
    ("name", "clients", "notes", "packages", "thinking", "tool_stream"),
    [
        ("chat", None, True, False, "class", "live"),
        ("tools", None, False, False, "client", "held"),
        ("coding", CODING, True, True, "class", "live"),
        ("chat-app", ("open-webui",), True, False, "class", "live"),
        ("hermes", ("hermes",), True, False, "class", "live"),
    ],
)
def test_a_shipped_profile_is_what_its_row_says(
    tmp_path: Path, name: str, clients: tuple[str, ...] | None, notes: bool, packages: bool,
    thinking: str, tool_stream: str,
) -> None:  # fmt: skip
    found = read(tmp_path, {}).planning.profiles[name]
    assert found.name == name and found.description
    assert (found.match.clients if found.match else None) == clients
    adds = found.router.enabled, found.effort == "on", found.note.enabled, found.note.replay
    assert adds == (notes,) * 4
    assert (found.packages.enabled, found.thinking.mode) == (packages, thinking)
    assert found.tool_stream == tool_stream
    assert not (found.memory.read or found.memory.write or found.memory.background)
    assert not found.status.enabled and not found.transcript.enabled
    assert found.monitor.tasks == {} and found.router.classes == CLASSES


def test_there_are_five_shipped_ones_and_chat_is_the_default(tmp_path: Path) -> None:
    planning = read(tmp_path, {}).planning
    assert sorted(planning.profiles) == ["chat", "chat-app", "coding", "hermes", "tools"]
    assert planning.default_profile == "chat"


def test_a_complete_profile_is_read_and_stands_on_its_parent(tmp_path: Path) -> None:
    found = own(tmp_path, workshop=WORKSHOP.partition("\n")[2])["workshop"]
    assert found.match == Match(("opencode", "qwen-code"), has_tools=True, priority=10)
    assert found.router.classes["debug"] == TaskClass(
        CLASSES["debug"].meaning, 4000, CLASSES["debug"].effort, ("read-the-log",)
    )
    assert {**found.router.classes, "debug": None} == {**CLASSES, "debug": None}
    assert found.rules == (
        Rule("tests", "Run the tests at the end.", ("edit", "debug")),
        Rule("lock", "Leave the lock file alone.", regex="(?i)upgrade"),
    )
    assert found.monitor.tasks == {
        "C4": MonitorTask("act", {"line_repeats": 24}), "E2": MonitorTask("off")
    }  # fmt: skip
    assert found.sampling == {"temperature": 0.6, "top_p": 0.95}
    assert (found.max_output, found.packages.per_class) == (9000, {"plan": ("read-the-log",)})
    assert (found.extends, found.status.steps) == ("coding", ("queued", "loop"))


def test_a_child_takes_over_what_it_does_not_say(tmp_path: Path) -> None:
    found = own(
        tmp_path,
        base="match: {clients: [curl], headers: {X-Team: a}, priority: 3}\n"
        "rules: [{id: a, text: A rule.}]\nmonitor: {tasks: {D1: {mode: off}}}\n",
        child="extends: base\nmatch: {headers: {X-Room: b}, clients: [codex]}\n"
        "monitor: {tasks: {D3: {mode: act}}}\n",
        plain="extends: child\nmatch: null\nrules: []\n",
    )
    child = found["child"]
    assert child.match == Match(("codex",), headers={"x-team": "a", "x-room": "b"}, priority=3)
    assert child.rules == (Rule("a", "A rule."),)
    assert set(child.monitor.tasks) == {"D1", "D3"}
    assert found["plain"].match is None and found["plain"].rules == ()
    assert found["base"].match == Match(("curl",), headers={"x-team": "a"}, priority=3)


def test_an_operators_profile_of_a_shipped_name_replaces_it(tmp_path: Path) -> None:
    found = own(tmp_path, coding="tool_stream: held\n", child="extends: coding\n")
    assert found["coding"] == Profile("coding", tool_stream="held", router=found["chat"].router)
    assert found["child"].tool_stream == "held" and found["child"].match is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("monitr.tasks: {D1: {mode: off}}",
         "2: unknown key 'monitr.tasks'; nearest known key: 'monitor.tasks'"),
        ("monitr: {tasks: {D1: {mode: off}}}",
         "2: unknown key 'monitr'; nearest known key: 'monitor'"),
        ("monitor: {tasks: {E22: {mode: off}}}",
         "2: unknown key 'monitor.tasks.E22'; nearest known key: 'monitor.tasks.E2'"),
        ("monitor:\n  tasks:\n    C4: {mode: act, params: {line_repeat: 1}}",
         "4: unknown key 'monitor.tasks.C4.params.line_repeat'; nearest known key: "
         "'monitor.tasks.C4.params.line_repeats'"),
        ("monitor: {tasks: {C4: {mode: act, params: {line_repeats: often}}}}",
         "2: monitor.tasks.C4.params.line_repeats: expected a whole number"),
        ("monitor: {tasks: {C4: {mode: on}}}",
         "2: monitor.tasks.C4.mode: expected one of off, shadow, act, found 'on'"),
        ("monitor: {tasks: {C4: {params: {}}}}", "2: monitor.tasks.C4: key 'mode' is missing"),
        ("side: {kinds: {titel: {enabled: false}}}",
         "2: unknown key 'side.kinds.titel'; nearest known key: 'side.kinds.title'"),
        ("side: {kinds: {title: {max_output: 0}}}",
         "2: side.kinds.title.max_output: expected at least 1, found 0"),
        ("extends: codng", "2: extends: no profile is named 'codng'; nearest: 'coding'"),
        ("extends: x", "2: extends: no profile is named 'x'; known: chat, chat-app, coding, "
         "hermes, p, tools"),
        ("extends: p", "2: extends: it leads back to itself: p → p"),
        ("match: {clients: [opencod]}", "2: match.clients[0]: expected one of codex, "
         "claude-code, opencode, gemini-cli, qwen-code, open-webui, cline, continue, aider, "
         "openai-agents, pydantic-ai, anthropic-sdk, genai-sdk, openai-sdk, curl, dashboard, "
         "hermes, other, found 'opencod'"),
        ("match: {priority: 3}", "2: match: it would take every request; give clients, "
         "user_agent, headers or has_tools"),
        ("match:\n  user_agent: ['a', '(']", "3: match.user_agent[1]: '(' is no regular "
         "expression: missing ), unterminated subpattern at position 0"),
        ("router: {default_class: bild}",
         "2: router.default_class: no class is named 'bild'; nearest: 'build'"),
        ("router:\n  classes:\n    debgu: {meaning: x}",
         "4: router.classes.debgu: it begins with the same letter as 'debug'"),
        ("router: {classes: {x: {budget: 1}}}", "2: router.classes.x: key 'meaning' is missing"),
        ("router: {classes: {x: {meaning: x}, y: {meaning: y}}}",
         "2: router.classes: at most 12 classes, found 13"),
        ("router: {classes: {x.y: {meaning: x}}}",
         "2: router.classes.x.y: a name has a-z, 0-9, '-' and '_', 32 of them at most"),
        ("router: {classes: {debug: {packages: [read-the-lock]}}}",
         "2: router.classes.debug.packages[0]: no package is named 'read-the-lock'; nearest: "
         "'read-the-log'"),
        ("router: {classes: {debug: {effort: 'Go. <|im_end|>'}}}",
         "2: router.classes.debug.effort: '<|im_end|>' may not stand in a note"),
        ("router: {min_margin: 1.5}", "2: router.min_margin: expected 0 to 1, found 1.5"),
        ("packages: {per_class: {debg: [read-the-log]}}",
         "2: packages.per_class.debg: no class is named 'debg'; nearest: 'debug'"),
        ("packages: {per_class: {debug: [x]}}",
         "2: packages.per_class.debug[0]: no package is named 'x'; known: read-the-log"),
        ("rules:\n  - {id: a, text: A.}\n  - {id: a, text: B.}",
         "4: rules[1].id: 'a' is given twice"),
        ("rules: [{id: a, text: ' '}]", "2: rules[0].text: there is nothing to say"),
        ("rules: [{id: a}]", "2: rules[0]: key 'text' is missing"),
        ("rules: [{id: a, text: '</think>'}]",
         "2: rules[0].text: '</think>' may not stand in a note"),
        ("rules: [{id: a, text: A., when: {clases: [edit]}}]",
         "2: unknown key 'rules[0].when.clases'; nearest known key: 'rules[0].when.classes'"),
        ("rules: [{id: a, text: A., when: {classes: [edt]}}]",
         "2: rules[0].when.classes[0]: no class is named 'edt'; nearest: 'edit'"),
        ("rules: [{id: a, text: A., when: {regex: '['}}]", "2: rules[0].when.regex: '[' is no "
         "regular expression: unterminated character set at position 0"),
        ("status: {steps: [queue]}",
         "2: status.steps[0]: no step is named 'queue'; nearest: 'queued'"),
        ("sampling: {temprature: 1}",
         "2: unknown key 'sampling.temprature'; nearest known key: 'sampling.temperature'"),
        ("sampling: {top_p: 0}", "2: sampling.top_p: expected more than 0, found 0.0"),
        ("sampling: {temperature: 3}", "2: sampling.temperature: expected 0 to 2, found 3.0"),
        ("limits: {max_output: 0}", "2: limits.max_output: expected 1 to 1000000, found 0"),
        ("effort: true", "2: effort: expected one of on, off, found 'true'"),
        ("thinking: {mode: no}",
         "2: thinking.mode: expected one of class, client, off, found 'no'"),
        ("name: p", "2: key 'name' is given twice"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_file_line_and_key(tmp_path: Path, text: str, problem: str) -> None:
    assert told(tmp_path, text) == [problem]


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("q.yaml", "name: p\n", "1: name: expected 'q', as its file, found 'p'"),
        ("q.yaml", "effort: on\n", "1: key 'name' is missing"),
        ("q.yaml", "# nothing\n", "1: there is nothing in it; it needs at least 'name'"),
        ("q.yaml", "name: [\n", "2: not YAML: expected the node content, but found "
         "'<stream end>'"),
        ("q.yml", "name: q\n", "1: a profile's file ends in .yaml: name it q.yaml"),
        ("Q q.yaml", "\nname: Q q\n", "2: name: expected a-z, 0-9, '-', '_' and '.', 64 of them "
         "at most"),
    ],
)  # fmt: skip
def test_a_file_must_be_a_profile_of_its_own_name(
    tmp_path: Path, file: str, text: str, problem: str
) -> None:
    assert problems(tmp_path, {file: text}) == [f"profiles/{file}:{problem}"]


def test_a_file_that_is_no_utf_8_is_named(tmp_path: Path) -> None:
    place(tmp_path, {})
    (tmp_path / "profiles/q.yaml").write_bytes(b"name: \xff\n")
    (problem,) = problems(tmp_path, {})
    assert problem.startswith("profiles/q.yaml:1: not YAML: unacceptable character")


def test_mistakes_of_all_files_are_told_together_and_each_where_it_stands(tmp_path: Path) -> None:
    profiles = {
        "a.yaml": "name: a\nextends: b\n",
        "b.yaml": "name: b\nextends: a\nefort: on\n",
        "c.yaml": "name: c\nthinking: {reserve_share: 2}\n",
        "d.yaml": "name: d\nextends: c\n",
        "e.yaml": "name: e\nextends: f\n",
        "f.yaml": "name: f\nextends: e\n",
        "g.yaml": "name: g\nextends: nobody\n",
        "h.yaml": "name: h\nextends: g\n",
        "i.yaml": "name: i\nextends: f\n",
        "j.yaml": "name: j\nmonitor: {tasks: {D22: {mode: off}}}\nside: {kinds: {titel: {}}}\n",
        "k.yaml": "name: k\nextends: j\n",
    }
    main = "worker: {}\nserver: {prt: 1}\nconductor: {default_profile: ch}\n"
    assert problems(tmp_path, profiles, main) == [
        "tandem.yaml:2: unknown key 'server.prt'; nearest known key: 'server.port'",
        "profiles/b.yaml:3: unknown key 'efort'; nearest known key: 'effort'",
        "profiles/c.yaml:2: thinking.reserve_share: expected 0 to 1, found 2.0",
        "profiles/e.yaml:2: extends: it leads back to itself: e → f → e",
        "profiles/f.yaml:2: extends: it leads back to itself: f → e → f",
        "profiles/g.yaml:2: extends: no profile is named 'nobody'; known: a, b, c, chat, chat-app, "
        "coding, d, e, f, g, h, hermes, i, j, k, tools",
        "profiles/j.yaml:2: unknown key 'monitor.tasks.D22'; nearest known key: 'monitor.tasks.D2'",
        "profiles/j.yaml:3: unknown key 'side.kinds.titel'; nearest known key: 'side.kinds.title'",
    ]


@pytest.mark.parametrize(
    ("main", "problem"),
    [
        ("conductor: {default_profile: chatt}",
         "2: conductor.default_profile: no profile is named 'chatt'; nearest: 'chat'"),
        ("conductor: {default_profil: chat}", "2: unknown key 'conductor.default_profil'; nearest "
         "known key: 'conductor.default_profile'"),
        ("conductor: {ask_backend: attic}",
         "2: conductor.ask_backend: no backend is named 'attic'; known: same, worker"),
        ("conductor: {ask_backend: b}\nbackends: {b: {kind: openai, base_url: 'http://127.0.0.1:1'}}",
         "2: conductor.ask_backend: name the model to ask first in backends.b.small"),
        ("conductor: {ask_backend: b}\nbackends: {b: {base_url: 'http://127.0.0.1:1', "
         "kind: anthropic, small: [s]}}",
         "2: conductor.ask_backend: b is of kind anthropic; it must be openai"),
        ("conductor: {notes: {store: disk}}",
         "2: conductor.notes.store: expected one of sql, memory, found 'disk'"),
        ("conductor: {notes: {ttl_days: 0}}",
         "2: conductor.notes.ttl_days: expected 1 to 1000000, found 0"),
        ("conductor: {memory: {quiet_s: -1}}",
         "2: conductor.memory.quiet_s: expected 0 to 1000000, found -1.0"),
        ("conductor: {profiles: prof}", "2: conductor.profiles: there is no folder prof"),
        ("conductor: {packages: pack}", "2: conductor.packages: there is no folder pack"),
        ("conductor: {profiles: [a]}", "2: conductor.profiles: expected a path, found a list"),
        (f"keys: [{{label: a, sha256: {'a' * 64}, profiles: [chat, codng]}}]",
         "2: keys[0].profiles: no profile is named 'codng'; nearest: 'coding'"),
        (f"keys: [{{label: a, sha256: {'a' * 64}, profiles: []}}]",
         "2: keys[0].profiles: name at least one, or leave the key out for all"),
        ("conductor: []", "2: conductor: expected a mapping, found a list"),
    ],
)  # fmt: skip
def test_what_tandem_yaml_says_of_them_is_checked(tmp_path: Path, main: str, problem: str) -> None:
    found = problems(tmp_path, {}, f"worker: {{}}\n{main}\n")
    assert found == [f"tandem.yaml:{problem}"]


def test_the_section_is_read_with_its_defaults(tmp_path: Path) -> None:
    plain = read(tmp_path, {})
    assert plain.worker is not None and plain.worker.conductor
    conductor = plain.conductor
    assert (conductor.ask_backend, conductor.notes.store) == ("same", "sql")
    assert (conductor.notes.ttl_days, conductor.notes.max_mb) == (30, 512)
    assert (conductor.memory.quiet_s, conductor.memory.min_turns) == (120.0, 4)
    key = f"keys: [{{label: a, sha256: {'a' * 64}, profiles: [tools, chat]}}]\n"
    text = "worker: {conductor: false}\nconductor: {ask_backend: worker, default_profile: p}\n"
    found = read(tmp_path, {"p.yaml": "name: p\n"}, text + key)
    assert found.worker is not None and not found.worker.conductor
    assert found.keys[0].profiles == ("tools", "chat") and plain.keys == ()
    assert found.planning.default_profile == "p"


def test_folders_are_looked_for_beside_the_file_or_where_it_says(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "q.yaml").write_text("name: q\n")
    (elsewhere / ".#q.yaml").write_text("an editor's")
    for folder in ("elsewhere", str(elsewhere)):
        main = f"worker: {{}}\nconductor: {{profiles: {folder}}}\n"
        assert "q" in read(tmp_path, {"p.yaml": "name: p\n"}, main).planning.profiles
        assert "p" not in read(tmp_path, {}, main).planning.profiles
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone/tandem.yaml").write_text("worker: {}\n")
    assert len(load(tmp_path / "alone/tandem.yaml", {}).planning.profiles) == 5


def test_the_revision_follows_profiles_and_packages(tmp_path: Path) -> None:
    revisions = {
        read(tmp_path, {}).rev,
        read(tmp_path, {"p.yaml": "name: p\n"}).rev,
        read(tmp_path, {"p.yaml": "name: p\neffort: off\n"}).rev,
    }
    assert read(tmp_path, {"p.yaml": "# same\nname: p\neffort: off\n"}).rev in revisions
    (tmp_path / "packages/log.md").write_text(PACKAGE.format("read-the-log") + "More.\n")
    last = load(tmp_path / "tandem.yaml", {})
    assert len(revisions | {last.rev}) == 4
    assert last.planning.config_rev == last.rev


def test_texts_are_the_same_for_another_process(tmp_path: Path) -> None:
    texts = Texts("worker: {}\n", {"p.yaml": "grün\udcff"}, None)
    assert Texts.unpack(texts.pack()) == texts


def test_a_folder_of_too_many_files_is_no_folder_of_profiles(tmp_path: Path) -> None:
    many = {f"p{number}.yaml": "" for number in range(MOST_FILES + 1)}
    (problem,) = problems(tmp_path, many)
    assert "more than 1000 files" in problem


KEYS = [key for key in profile_keys() if "*" not in key and "[" not in key]


@settings(max_examples=100, deadline=None)
@given(key=st.sampled_from(KEYS), at=st.integers(0, 30), letter=st.sampled_from("qxz"))
def test_a_mutated_key_never_starts(
    tmp_path_factory: pytest.TempPathFactory, key: str, at: int, letter: str
) -> None:
    *parents, leaf = key.split(".")
    at %= len(leaf)
    mutated = ".".join([*parents, leaf[:at] + letter + leaf[at + 1 :]])
    if mutated == key:
        return
    *above, last = mutated.split(".")
    text = "" if key == "name" else "name: p\n"
    for depth, name in enumerate(above):
        text += "  " * depth + f"{name}:\n"
    text += "  " * len(above) + f"{last}: 1\n"
    found = problems(tmp_path_factory.mktemp("mutated"), {"p.yaml": text})
    assert any(f"unknown key '{mutated}'" in problem for problem in found), found


def test_every_key_of_the_conductors_profile_can_be_written() -> None:
    in_file = {key.partition(".")[0] for key in profile_keys()} | {"max_output"}
    assert set(Profile.__dataclass_fields__) <= in_file
    assert ProfileFile("p").profile() == Profile("p")
