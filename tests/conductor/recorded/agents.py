"""Conversations of three coding agents. Knows no conductor.

Each function is one; its first line says what is odd about it. What is expected of it follows from
what happens.
"""

from tests.conductor.recorded.clients import ClaudeCode, Codex, Opencode, input_text, reminder, user
from tests.conductor.recorded.spellings import (
    in_one_text,
    in_parts,
    with_other_ids,
    without_content,
    without_reasoning,
)
from tests.conductor.recorded.talk import Talk

CONFIG = ("Read", {"file_path": "/srv/a.toml"}), ("Read", {"file_path": "/srv/b.toml"})
LINES = "".join(f"{number}: value\n" for number in range(30))
CLEARED = "[Old tool result content cleared]"

# -- opencode -------------------------------------------------------------------------------------


def _looking(name: str) -> Talk:
    """A person asks, the model looks, answers, and is asked again."""
    talk = Talk(Opencode(name)).says("count the lines of the readme, please")
    talk.hears("", ("bash", {"command": "wc -l README.md"})).results("41 README.md\n")
    return talk.hears("It has 41 lines.").says("and how many has the change log, então?")


def opencode_steps(name: str) -> Talk:
    """Three calls one after the other, text beside one of them."""
    talk = _looking(name).hears("I look.", ("read", {"path": "CHANGELOG.md", "from": 1}))
    talk.results(LINES).hears("", ("bash", {"command": "sort é.txt | uniq"})).results("")
    return talk.hears("Thirty.").says("delete both of them, then commit")


def opencode_parallel(name: str) -> Talk:
    """Three results at once."""
    talk = Talk(Opencode(name)).says("which of the three files is the longest?")
    paths = [("read", {"path": f"{letter}.md"}) for letter in "abc"]
    talk.hears("All three.", *paths).results("one\n", "two\ntwo\n", LINES)
    return talk.hears("c.md is.").says("shorten that one by a half").hears("Done.")


def opencode_title(name: str) -> Talk:
    """A title is asked for beside the first turn, under the same id, and once more later."""
    system = "You are a title generator. One line, no quotes."
    texts = ("Generate a title for this conversation:\n", '"mend the failing parser test"')
    body = {"messages": [{"role": "system", "content": system}, *map(user, texts)]}
    talk = Talk(Opencode(name)).beside("title", {**body, "max_tokens": 32000})
    talk.says("mend the failing parser test").beside("title", body)
    talk.hears("", ("edit", {"path": "p.py", "old": "a", "new": "b"})).results("ok")
    return talk.hears("Mended.").says("does the whole suite pass now?")


def opencode_pruned(name: str) -> Talk:
    """The result of an old call is cleared in place, two turns behind it."""
    talk = _looking(name).hears("", ("read", {"path": "CHANGELOG.md"})).results(LINES)
    talk.hears("Thirty.").says("which of those lines are empty?").hears("None of them.")
    talk.says("then add one at the end").changes(3, CLEARED).hears("Added.")
    return talk.says("show me the end of the file").hears("It is empty.").says("good, and the top?")


def opencode_pruned_twice(name: str) -> Talk:
    """Two results are cleared, one after the other, with a restart between them."""
    talk = _looking(name).hears("", ("read", {"path": "CHANGELOG.md"})).results(LINES)
    talk.hears("Thirty.").says("sum up what changed this year").changes(3, CLEARED)
    talk.hears("Little.").says("and in the year before that?").hears("Less.").after_a("restart")
    talk.changes(7, CLEARED).says("write that into the readme").hears("Written.")
    return talk.says("undo the last step of yours")


def opencode_compacted(name: str) -> Talk:
    """The history is summed up by a call of its own; then the program itself says how to go on."""
    ask = "Provide a detailed but concise summary of our conversation above."
    talk = _looking(name).hears("It has 30.")
    history = [*talk.requests[-1].body["messages"], {"role": "assistant", "content": "It has 30."}]
    talk.beside("compaction", {"messages": [*history, user(ask)], "max_tokens": 8000})
    asked = user("What did we do so far?")
    talk.compacts(asked, {"role": "assistant", "content": "Two files were counted: 41 and 30."})
    talk.writes(user("Continue if you have next steps, or stop and ask."))
    return talk.hears("Nothing is left.").says("count the licence file as well").hears("21.")


def opencode_tomorrow(name: str) -> Talk:
    """The date in the system prompt becomes the next day's."""
    talk = _looking(name).hears("", ("bash", {"command": "wc -l CHANGELOG.md"})).results("30\n")
    talk.changes(0, "You mend code in a terminal.\nToday: Tuesday.").hears("Thirty.")
    talk.says("which of the two grew since yesterday?").hears("Neither.").after_a("reload")
    return talk.says("how would you find that out yourself?")


def opencode_respelled(name: str) -> Talk:
    """Another build of it goes on: parts for text, other ids, arguments with blanks."""
    talk = _looking(name).hears("", ("bash", {"command": "grep -c ü log", "limit": 1000}))
    talk.results("12\n").hears("Twelve.").respells(in_parts).respells(with_other_ids)
    talk.says("and how often does it say nothing at all?").hears("Never.").after_a("restart")
    return talk.respells(in_one_text).respells(without_content).says("thanks, remove the log then")


def opencode_forked(name: str) -> Talk:
    """A session forked behind its first answer, under an id of its own; both go on."""
    talk = _looking(name).hears("It has 30.").says("sort the lines of both files")
    talk.hears("Sorted.").comes_back(1, Opencode(f"{name}-2")).says("join both files into one")
    talk.hears("", ("bash", {"command": "cat *.md > all"})).results("").hears("Joined.")
    return talk.comes_back(3, Opencode(name)).says("now in the other direction")


# -- Claude Code ----------------------------------------------------------------------------------


def _two_configs(client: ClaudeCode) -> Talk:
    talk = Talk(client).says("find the two configs and compare them")
    talk.hears("I look at both.", *CONFIG, thought="Two files, two calls.")
    return talk.results("a = 1\n", "b = 2\n").hears("a is 1, b is 2.", thought="Read them.")


def claude_reminded(name: str) -> Talk:
    """Reminders before the first words and behind results, a system message behind the first."""
    talk = _two_configs(ClaudeCode(name)).says("make the two of them equal")
    talk.hears("", ("Edit", {"file_path": "/srv/a.toml", "new": "a = 2"}), thought="One edit.")
    told = {"role": "user", "content": [{"type": "text", "text": reminder("No tasks are open.")}]}
    return talk.results("ok", behind=[told]).hears("Both are 2.").says("are you sure about b?")


def claude_billed(name: str) -> Talk:
    """A first block that changes with every request."""
    client = ClaudeCode(name)
    client.billing = "cc_version=2.1.197.d49"
    talk = _two_configs(client)
    client.billing = "cc_version=2.1.197.a01"
    talk.says("which of the two is read first?").hears("a.toml is.").after_a("restart")
    client.billing = "cc_version=2.1.198.000"
    return talk.says("and where does the code decide that?")


def claude_titled(name: str) -> Talk:
    """A title under a schema beside the first turn."""
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    words = user("<session>\nfind the two configs and compare them\n</session>\n\nIn that tongue.")
    body = {"messages": [words], "tools": [], "response_format": form, "max_tokens": 32000}
    talk = Talk(ClaudeCode(name)).beside("title", body)
    talk.says("find the two configs and compare them").hears("", *CONFIG, thought="Both.")
    talk.results("a = 1\n", "b = 2\n").hears("They differ.")
    return talk.says("in which of their lines do they differ?")


def claude_other_marks(name: str) -> Talk:
    """The mark for caches wanders, and a build without parts goes on."""
    talk = _two_configs(ClaudeCode(name)).says("write a third one that has both values")
    talk.hears("", ("Edit", {"file_path": "/srv/c.toml", "new": "c = 3"})).results("ok")
    talk.respells(in_one_text).hears("Written.").says("and load all three at the start")
    return talk.hears("Loaded.").after_a("reload").says("what happens where one is missing?")


def claude_thoughtless(name: str) -> Talk:
    """A build that sends no reasoning back."""
    client = ClaudeCode(name)
    talk = _two_configs(client).respells(without_reasoning)
    client.keeps_reasoning = False
    talk.says("who wrote the first of them?").hears("Ada did.", thought="Blame says so.")
    return talk.says("and who reviewed what she wrote?").hears("Ben.").says("when did he do that?")


def claude_rewound(name: str) -> Talk:
    """The second question is taken back and asked otherwise; then the first way goes on."""
    talk = _two_configs(ClaudeCode(name)).says("delete the second config")
    talk.hears("It is gone.").goes_back(2).says("rename the second config instead")
    talk.hears("It is c.toml now.").says("and mend what imported it")
    return talk.comes_back(2).says("restore it from the last commit")


def claude_commanded(name: str) -> Talk:
    """A slash command keeps what the conversation is about; its output is a machine's."""
    talk = _two_configs(ClaudeCode(name))
    ran = "<command-message>tidy is running</command-message>\n<command-name>/tidy</command-name>"
    talk.says(f"{ran}\nLook through every config and sort its keys.", asks=False)
    talk.hears("Sorted.")
    talk.writes(user("<local-command-stdout>2 files changed</local-command-stdout>"))
    return talk.hears("Good.").says("now sort the sections as well")


def claude_tomorrow(name: str) -> Talk:
    """The reminder before the first words has another date in it after midnight."""
    talk = _two_configs(ClaudeCode(name)).says("make the two of them equal")
    talk.hears("", ("Edit", {"file_path": "/srv/a.toml", "new": "a = 2"})).results("ok")
    words = "find the two configs and compare them"
    texts = reminder("It is summer."), words
    talk.changes(1, [{"type": "text", "text": text} for text in texts]).hears("Both are 2.")
    return talk.says("is there a third one of them?").hears("No.").says("then write one, empty")


# -- Codex ----------------------------------------------------------------------------------------


def _renaming(name: str) -> Talk:
    talk = Talk(Codex(name)).says("rename the module a to b everywhere")
    talk.hears("", ("exec_command", {"cmd": "git mv a.py b.py"})).results("Output:\n")
    return talk.hears("", ("exec_command", {"cmd": "git status"})).results("Output:\nrenamed\n")


def codex_steps(name: str) -> Talk:
    """Developer messages, the surroundings before the words, two calls one after the other."""
    return _renaming(name).hears("Renamed.").says("rename it back again").hears("As it was.")


def codex_parallel(name: str) -> Talk:
    """Two results at once, twice."""
    both = [("exec_command", {"cmd": f"cat {letter}.py"}) for letter in "ab"]
    talk = Talk(Codex(name)).says("merge the two modules into one").hears("", *both)
    talk.results("x = 1\n", "y = 2\n").hears("Now both.", *both[::-1]).results("y = 2\n", "x = 1\n")
    return talk.hears("Merged into a.py.").says("which imports are left over?")


def codex_compacted(name: str) -> Talk:
    """Summed up in the middle of its steps: the summary stands in a person's place."""
    client = Codex(name)
    client.request_kind = "compaction"
    ask = {"role": "user", "content": [input_text("Write a handoff summary for another model.")]}
    talk = _renaming(name)
    body = {"messages": [*talk.requests[-1].body["messages"], ask], "tools": []}
    talk.beside("general", {**body, "prompt_cache_key": name}, client)
    told = "Another language model started to solve this problem and produced a summary: renamed."
    words = [input_text("rename the module a to b everywhere")], [input_text(told)]
    talk.compacts(*({"role": "user", "content": parts} for parts in words)).sends()
    talk.hears("", ("exec_command", {"cmd": "grep -rn a ."})).results("Output:\nnone\n")
    return talk.hears("Nothing is left.").says("then write it into the change log").hears("Yes.")


def codex_forked(name: str) -> Talk:
    """A thread forked under an id of its own; both go on."""
    talk = _renaming(name).hears("Renamed.").says("add a test for the new name")
    talk.hears("Added.").comes_back(2, Codex(f"{name}-2")).says("add a note for the new name")
    talk.hears("Noted.").says("and link it from the index page").hears("Linked.")
    return talk.comes_back(3, Codex(name)).says("does the new test pass at once?")


def codex_respelled(name: str) -> Talk:
    """The same thread by a program that writes plain texts."""
    talk = _renaming(name).hears("Renamed.").respells(in_one_text).after_a("restart")
    talk.says("who else uses the old name?").hears("", ("exec_command", {"cmd": "grep -rn 'a'"}))
    talk.results("Output:\n").respells(with_other_ids).hears("Nobody does.")
    return talk.says("then drop the old alias too")


def codex_goes_on(name: str) -> Talk:
    """Words that only say how to go on keep what the thread is about."""
    talk = _renaming(name).hears("Shall I commit?").says("yes", asks=False)
    talk.hears("", ("exec_command", {"cmd": "git commit -am rename"})).results("Output:\n1 file\n")
    return talk.hears("Committed.").says("go on", asks=False).hears("Nothing is left to do.")
