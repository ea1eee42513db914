"""Conversations of an agent with a terminal, a chat page, and a plain program. Knows no conductor.

Each function is one; its first line says what is odd about it.
"""

from tests.conductor.recorded.clients import Hermes, OpenWebUI, OpenWebUITools, Plain, user
from tests.conductor.recorded.spellings import in_one_text, in_parts, without_reasoning
from tests.conductor.recorded.talk import Talk

# -- Hermes ---------------------------------------------------------------------------------------


def _filing(client: Hermes) -> Talk:
    talk = Talk(client).says("file the sketch of the boat under boats")
    steps = [("terminal", {"command": f"mv sketch-{n}.png boats/"}) for n in (1, 2)]
    return talk.hears("", *steps, thought="Two files.").results("", "")


def hermes_thinks(name: str) -> Talk:
    """Reasoning comes back, results of two calls."""
    talk = _filing(Hermes(name)).hears("Filed.", thought="Both worked.")
    talk.says("how many are filed there now?").hears("Nine.", thought="I count them.")
    return talk.says("and how many of those are mine?").hears("Two.", thought="By owner.")


def hermes_thoughtless(name: str) -> Talk:
    """Its reasoning is dropped from the history half-way."""
    talk = _filing(Hermes(name)).hears("Filed.", thought="Both worked.")
    talk.says("make a list of all of them").respells(without_reasoning)
    talk.hears("", ("terminal", {"command": "ls boats"}), thought="List.").results("a b c")
    return talk.hears("There are three.").says("sort the list by their size")


def hermes_titled(name: str) -> Talk:
    """A title under a schema, while the answer is written."""
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "session_title", "schema": schema}}
    words = user("Name this session: file the sketch of the boat under boats")
    talk = _filing(Hermes(name))
    talk.beside("title", {"messages": [words], "response_format": form, "max_tokens": 512})
    return talk.hears("Filed.").says("and now the sketch of the house").hears("Filed as well.")


def hermes_compacted(name: str) -> Talk:
    """Its summary begins with its own mark, and its notes to the model with another one."""
    talk = _filing(Hermes(name)).hears("Filed.").says("where are the older sketches of mine?")
    talk.hears("In the attic.")
    told = "[CONTEXT COMPACTION — for reference] Two sketches were filed; the old ones are away."
    talk.compacts(user(told)).sends().hears("I know.").says("bring the attic ones over here")
    talk.hears("", ("terminal", {"command": "cp -r attic boats"})).results("")
    return talk.hears("Brought.").says("which of them are there twice?")


def hermes_told(name: str) -> Talk:
    """The program speaks in a person's place."""
    talk = _filing(Hermes(name)).hears("Filed.")
    talk.writes(user("[System note: the session was resumed on another machine]"))
    talk.hears("I see.").says("is the folder there as well?").hears("It is.").after_a("reload")
    talk.writes(user("[Runtime note: the budget of this turn is spent]"))
    return talk.hears("I stop.").says("compare the two folders, please")


def hermes_parallel(name: str) -> Talk:
    """Two kinds of calls at once, then their results in turn."""
    talk = Talk(Hermes(name)).says("what did we say about boats, and what is there?")
    both = ("session_search", {"query": "boats"}), ("terminal", {"command": "ls boats"})
    talk.hears("Both.", *both, thought="Search and look.").results("nothing", "sketch-1.png")
    talk.hears("", ("todo", {"add": ["sort"], "done": False})).results("1 open")
    return talk.hears("Little, and one file.").says("sort it by the colour of the sails")


# -- Open WebUI -----------------------------------------------------------------------------------


def _bird(client: OpenWebUI) -> Talk:
    talk = Talk(client).says("which bird stands on one leg in the pond?")
    return talk.hears("A heron.").says("how tall does such a bird grow?")


def webui_chat(name: str) -> Talk:
    """Nothing but questions, one of them three times in the same words: what it was taken for when
    it followed its own kind is known from the second time on."""
    again = "is there a source for that?"
    talk = _bird(OpenWebUI(name)).hears("A metre.").says(again).hears("A book.")
    talk.says(again).hears("The same book.").says(again, asks=False).hears("That one book.")
    return talk.says("then what does the book say of its food?")


def webui_tasks(name: str) -> Talk:
    """A title, tags and follow-ups are asked for behind the first answer, none of them streamed."""
    talk = Talk(OpenWebUI(name)).says("which bird stands on one leg in the pond?")
    talk.hears("A heron.")
    for kind, member in (("title", "title"), ("tags", "tags"), ("follow_ups", "follow_ups")):
        form = f'JSON format: {{ "{member}": "" }}'
        words = f"### Task:\nWrite {kind}.\n{form}\n<chat_history>\nUSER: a bird\n</chat_history>"
        talk.beside(kind, {"messages": [user(words)], "stream": False})
    return talk.says("how tall does such a bird grow?").hears("A metre.").says("and how old?")


def webui_regenerated(name: str) -> Talk:
    """An answer is written anew, and the second one goes on."""
    talk = _bird(OpenWebUI(name)).hears("A metre.").again().hears("About one metre.")
    return talk.says("and how much does it weigh then?").hears("Two kilograms.").again()


def webui_edited(name: str) -> Talk:
    """A question is edited; later its first wording goes on."""
    talk = _bird(OpenWebUI(name)).hears("A metre.").goes_back(1)
    talk.says("how tall does such a tree grow?").hears("Thirty metres.").says("and how wide is it?")
    return talk.hears("Ten.").comes_back(1).says("and how wide are its wings?")


def webui_cloned(name: str) -> Talk:
    """A chat is cloned: another id, the same beginning."""
    talk = _bird(OpenWebUI(name)).hears("A metre.").says("what does it feed on in winter?")
    talk.hears("Fish.").comes_back(1, OpenWebUI(f"{name}-clone")).says("what does it fear most?")
    return talk.hears("Eagles.").says("are there any of those near here?")


def webui_tools(name: str) -> Talk:
    """With tools of its own, and without an id."""
    talk = Talk(OpenWebUITools(name)).says(f"find my notes on herons, those of {name}")
    talk.hears("", ("search_notes", {"query": "heron"})).results('[{"id": "n1"}]')
    talk.hears("", ("view_note", {"id": "n1"})).results("Seen at dawn.")
    return talk.hears("At dawn.").says("add the pond to that note").hears("Added.")


# -- a plain chat ---------------------------------------------------------------------------------


def plain_greeting(name: str) -> Talk:
    """Equal words on both sides, and greetings, which a rule knows."""
    talk = Talk(Plain(name)).says("hello", asks=False).hears("hello")
    talk.says("hello", asks=False).hears("hello").after_a("restart").says("hello", asks=False)
    return talk.hears("hello").says("what is the tallest of all mountains?")


def plain_retry(name: str) -> Talk:
    """The same request twice, the second time behind a restart, and thrice behind a reload."""
    talk = Talk(Plain(name)).says("name three rivers that end in a lake")
    talk.after_a("restart").again().after_a("reload").again().hears("Volga, Jordan, Ural.")
    return talk.says("and three that end in a desert").hears("Okavango and two more.")


def plain_fork(name: str) -> Talk:
    """Two ways from one answer, without any id."""
    talk = Talk(Plain(name)).says("name three rivers that end in a lake").hears("Volga, two more.")
    talk.says("which of them is the longest?").hears("The first.").comes_back(0)
    talk.says("which of them is the oldest?").hears("Nobody knows.").says("why does nobody know?")
    return talk.comes_back(1).says("how long is it, in days on foot?")


def plain_parts(name: str) -> Talk:
    """Text and parts by turns."""
    talk = Talk(Plain(name)).says("translate 'a long way' into Latin").hears("Via longa.")
    talk.respells(in_parts).says("and 'a short way' as well").hears("Via brevis.")
    talk.respells(in_one_text).after_a("reload").says("which case are these two in?")
    return talk.respells(in_parts).hears("The first.").says("now both in the fifth case")


def plain_continued(name: str) -> Talk:
    """The client cuts an answer, lets the model go on from there, and joins the two."""
    talk = Talk(Plain(name)).says("write a line about rain").hears("Rain falls.")
    talk.says("write one more line, about snow").hears("Snow, however,").sends()
    return talk.finishes(" does not fall at all.").says("and a last one, about fog").hears("Fog.")
