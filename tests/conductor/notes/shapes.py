"""Conversations in the shapes of real clients, in words of our own.

Each is a list of requests: every history goes on where the one before ended.
"""

from proto.chat import ImagePart, Message
from tests.conductor.notes.talking import answer, result, system, user

Requests = list[tuple[Message, ...]]

SKETCH = ImagePart("data:image/png;base64,U0tFVENI")


def _requests(*steps: tuple[Message, ...]) -> Requests:
    """The first step is a request; each later one begins with the answer to the one before."""
    histories: Requests = []
    history: tuple[Message, ...] = ()
    for step in steps:
        history = (*history, *step)
        histories.append(history)
    return histories


def opencode() -> Requests:
    """A system prompt, a quoted first message, empty text beside calls, results one by one."""
    return _requests(
        (system("You mend code in a terminal."), user('"count the lines of the readme"')),
        (answer("", ("bash", '{"command":"wc -l README.md"}')), result("41 README.md\n")),
        (answer("It has 41 lines."), user("and of the changelog?")),
        (answer("", ("read", '{"path":"CHANGELOG.md"}')), result("x\n" * 30)),
        (answer("Thirty."), user("delete both")),
    )


def claude_code() -> Requests:
    """Texts in several parts with reminders, a system message behind the first, parallel calls."""
    return _requests(
        (
            system("You are at a desk with tools."),
            user("<system-reminder>\nIt is spring.\n</system-reminder>\n", "find the two configs"),
            system("Kinds of helpers: search, plan."),
        ),
        (
            answer(
                "I look at both.",
                ("Read", '{"file_path": "/a.toml"}'),
                ("Read", '{"file_path": "/b.toml"}'),
                reasoning="Two files, two calls.",
            ),
            result("a = 1\n", 0),
            result("b = 2\n", 1),
        ),
        (answer("a is 1, b is 2.", reasoning="Done."), user("make them equal")),
        (
            answer("", ("Edit", '{"file_path": "/a.toml", "new": "a = 2"}')),
            result("ok"),
            user("<system-reminder>\nThe list of tasks is empty.\n</system-reminder>"),
        ),
    )


def codex() -> Requests:
    """Developer messages, the surroundings as a user's message before the real one."""
    return _requests(
        (
            Message("developer", system("You write patches.").content),
            Message("developer", system("Skills: none.").content),
            user("<environment_context>\n<cwd>/srv</cwd>\n</environment_context>"),
            user("rename the module"),
        ),
        (answer("", ("shell", '{"command":["git","mv","a.py","b.py"]}')), result("")),
        (answer("", ("shell", '{"command":["git","status"]}')), result("renamed: a.py -> b.py")),
        (answer("Renamed."), user("rename it back")),
    )


def hermes() -> Requests:
    """Reasoning comes back, results of several calls, a picture."""
    return _requests(
        (system("You are helpful, with a terminal."), user("what is on this sketch?", SKETCH)),
        (answer("A boat.", reasoning="Sails and a hull."), user("file it under boats")),
        (
            answer(
                "",
                ("terminal", '{"command": "mkdir -p boats"}'),
                ("terminal", '{"command": "mv sketch.png boats/"}'),
                reasoning="A folder first.",
            ),
            result('{"exit": 0}', 0),
            result('{"exit": 0}', 1),
        ),
        (answer("Filed.", reasoning="Both worked."), user("thanks")),
    )


def open_webui() -> Requests:
    """A picture that is sent again every turn, no tools, no system prompt."""
    return _requests(
        (user("which bird is it?", SKETCH),),
        (answer("A heron."), user("are you sure?")),
        (answer("Its neck says so."), user("are you sure?")),
        (answer("Quite."), user("good")),
    )


def plain() -> Requests:
    """Nothing but questions and answers, some of them equal."""
    return _requests(
        (user("hello"),),
        (answer("Hello."), user("hello")),
        (answer("Hello."), user("hello")),
    )


ALL = [opencode, claude_code, codex, hermes, open_webui, plain]
