"""Recorded conversations as a script: what a person, a model and a client's own program do.

A script says what happens; a `Client` says how it stands in a request. Knows no conductor.
"""

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Fields = dict[str, Any]  # of a JSON object
Change = Literal["", "restart", "reload"]
Changes = Literal["no", "text", "all"]


@dataclass(frozen=True)
class Answer:
    """What a model says: its reasoning, its text, its calls by name and arguments."""

    text: str = ""
    calls: tuple[tuple[str, Fields], ...] = ()
    thought: str | None = None


@dataclass(frozen=True)
class Request:
    """What a client sends.

    `asks`: a person says something new in it, which no rule knows. `side`: the kind of helper call
    that it is, None for a turn. `after`: the request whose prompt this one begins with, by its
    number; `is_answered`: and then with its answer. `changes`: what the client wrote otherwise than
    it did then: nothing that a prompt shows ("no"), a text before the end ("text"), or everything
    ("all": a compaction). `before`: what happens to the gateway before it comes.
    """

    headers: Fields
    body: Fields
    asks: bool = False
    side: str | None = None
    after: int | None = None
    is_answered: bool = False
    changes: Changes = "no"
    before: Change = ""


class Client:
    """How a program writes its requests; the plainest one here. `name`: of its conversation."""

    kind = "openai-sdk"
    agent = "OpenAI/Python 2.30.0"
    tools: tuple[str, ...] = ()
    lead = "You answer in one sentence."
    keeps_reasoning = False

    def __init__(self, name: str) -> None:
        self.name = name

    def headers(self) -> Fields:
        return {"User-Agent": self.agent}

    def system(self) -> list[Fields]:
        return [{"role": "system", "content": self.lead}] if self.lead else []

    def user(self, text: str, is_first: bool) -> list[Fields]:
        return [{"role": "user", "content": text}]

    def answer(self, answer: Answer, ids: Sequence[str]) -> Fields:
        said: Fields = {"role": "assistant", "content": answer.text}
        if answer.thought is not None and self.keeps_reasoning:
            said["reasoning_content"] = answer.thought
        if answer.calls:
            said["tool_calls"] = [
                {"id": id_, "type": "function", "function": {"name": name, "arguments": text}}
                for id_, (name, arguments) in zip(ids, answer.calls, strict=True)
                for text in [self.arguments(arguments)]
            ]
        return said

    def arguments(self, arguments: Fields) -> str:
        return json.dumps(arguments)

    def result(self, id_: str, name: str, text: str) -> Fields:
        return {"role": "tool", "tool_call_id": id_, "content": text}

    def body(self, messages: list[Fields]) -> Fields:
        """A turn. What this client adds anew to every request stands in the copy alone."""
        body: Fields = {"model": "TandemLLM", "messages": messages, "stream": True}
        return {**body, "tools": [tool_of(name) for name in self.tools]} if self.tools else body


def tool_of(name: str) -> Fields:
    """A tool as the chat surface takes it."""
    parameters = {"type": "object", "properties": {}, "additionalProperties": True}
    function = {"name": name, "description": f"Does what {name} says.", "parameters": parameters}
    return {"type": "function", "function": function}


class Talk:
    """A conversation while it is written down. `answers`: to requests, by their number."""

    def __init__(self, client: Client) -> None:
        self.name = client.name
        self.requests: list[Request] = []
        self.answers: dict[int, Answer] = {}
        self._client = client
        self._messages = client.system()
        self._histories: list[list[Fields]] = []  # of each request, without what it alone has
        self._last: int | None = None  # the turn that the next one goes on from
        self._open: list[tuple[str, str]] = []  # ids and names of calls
        self._changes: Changes = "no"
        self._before: Change = ""

    # -- what is said -----------------------------------------------------------------------------

    def says(self, text: str, *, asks: bool = True) -> "Talk":
        """A person says something. `asks`: it is new, and no rule knows what it is."""
        is_first = len(self._messages) == len(self._client.system())
        self._messages += self._client.user(text, is_first)
        return self.sends(asks=asks)

    def hears(
        self, text: str = "", *calls: tuple[str, Fields], thought: str | None = None
    ) -> "Talk":
        """The model answers."""
        assert self._last is not None
        answer = Answer(text, calls, thought)
        self.answers[self._last] = answer
        place = len(self._messages)
        self._open = [(f"call_{place}_{n}", name) for n, (name, _) in enumerate(calls)]
        self._messages.append(self._client.answer(answer, [id_ for id_, _ in self._open]))
        return self

    def results(self, *texts: str, behind: Sequence[Fields] = ()) -> "Talk":
        """The client's own program answers the calls. `behind`: what it adds to the results."""
        pairs = zip(self._open, texts, strict=True)
        self._messages += [self._client.result(id_, name, text) for (id_, name), text in pairs]
        return self.writes(*behind)

    def writes(self, *messages: Fields) -> "Talk":
        """The client's own program says something in a person's place."""
        self._messages += messages
        return self.sends()

    def sends(self, *, asks: bool = False) -> "Talk":
        """A turn goes out as everything stands."""
        after = None if self._changes == "all" else self._last
        is_answered = after in self.answers and self._messages[-1]["role"] != "assistant"
        self._turn(asks=asks, after=after, is_answered=is_answered)
        return self

    def again(self) -> "Talk":
        """The last turn once more: a retry, or an answer that nobody liked."""
        assert self._last is not None
        self._messages = copy.deepcopy(self._histories[self._last])
        self._turn(after=self._last)
        return self

    def beside(self, kind: str, body: Fields, client: Client | None = None) -> "Talk":
        """A helper call of the client's own. `client`: whose headers it has."""
        asked = {"model": "TandemLLM", "stream": True, **body}
        self._add(Request(_lowered(client or self._client), asked, side=kind), [])
        return self

    # -- what clients do to a history -------------------------------------------------------------

    def goes_back(self, to: int, client: Client | None = None) -> "Talk":
        """What this request said is unsaid, and all behind it. `client`: goes on elsewhere."""
        self._messages = copy.deepcopy(self._histories[to])
        least = len(self._client.system())
        while len(self._messages) > least and self._messages[-1]["role"] != "assistant":
            self._messages.pop()
        self._last = self.requests[to].after
        self._client = client or self._client
        return self

    def comes_back(self, to: int, client: Client | None = None) -> "Talk":
        """Goes on behind the answer to this request, whatever was said since."""
        answer = self.answers.pop(to)
        self._messages, self._last = copy.deepcopy(self._histories[to]), to
        self._client = client or self._client
        return self.hears(answer.text, *answer.calls, thought=answer.thought)

    def forks(self, to: int) -> "Talk":
        """Another conversation goes on behind the answer to this request, under an id of its own
        where the client gives any."""
        return self.comes_back(to, type(self._client)(f"{self.name}-fork-{to}"))

    def respells(self, change: Callable[[Fields], Fields]) -> "Talk":
        """The client writes its whole history in another way, one for every prompt."""
        self._messages = [change(copy.deepcopy(message)) for message in self._messages]
        return self

    def changes(self, index: int, content: str | list[Fields]) -> "Talk":
        """The text of one message is another one from now on: a date, or a result cut away."""
        self._messages[index] = {**self._messages[index], "content": content}
        self._changes = "text"
        return self

    def finishes(self, more: str) -> "Talk":
        """The answer that the last request began is whole now, and the client joins the two."""
        to = self.requests[-1].after
        assert to is not None
        answer = Answer(self.answers.pop(to).text + more)
        self._messages.pop()
        self._last = to
        return self.hears(answer.text)

    def compacts(self, *messages: Fields) -> "Talk":
        """In place of the history there are these messages from now on."""
        self._messages, self._last = [*self._client.system(), *messages], None
        self._changes = "all"
        return self

    def after_a(self, change: Change) -> "Talk":
        """The gateway is another one from here on, or has read its files again."""
        self._before = change
        return self

    def _turn(self, **how: Any) -> None:
        history = copy.deepcopy(self._messages)
        body = self._client.body(copy.deepcopy(history))
        request = Request(_lowered(self._client), body, changes=self._changes, **how)
        self._changes = "no"
        self._last = len(self.requests)
        self._add(request, history)

    def _add(self, request: Request, history: list[Fields]) -> None:
        self.requests.append(replace(request, before=self._before))
        self._histories.append(history)
        self._before = ""


def _lowered(client: Client) -> Fields:
    return {name.lower(): value for name, value in client.headers().items()}
