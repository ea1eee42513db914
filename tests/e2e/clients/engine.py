"""A worker without a model that plays an agent's model: it reads a file, then says what it found.

Knows no client: which tool reads, and what that wants, it takes from the request.
"""

import json
import re
from dataclasses import dataclass, field, replace

from proto.chat import Call, Message, Tool
from proto.messages import CallPart, Caps, Delta, Submit
from tests.fakes.worker import READY, FakeWorker

CLASS = "debug"
TITLE = "Words in files"
SUMMARY = "<state_snapshot>The first file was read.</state_snapshot>"
PROMPT_TOKENS = 500  # of every prompt, where the test does not say that a conversation is full
READ_TOOLS = ("read", "read_file", "Read")
FILE = re.compile(r"\w+\.txt")
WORD = re.compile(r"word-\w+")
CONTEXT_TOKENS = 200_000  # agents' prompts are long: there must be room for a note


@dataclass
class ScriptedEngine:
    """Answers like a model that follows its orders. `folder`: where the files are.

    `full_tokens`: what a conversation takes behind its first answer, until it was summed up.
    `questions`: those of the classifier; `turns`: what had tools; `sides`: all else.
    """

    folder: str = ""
    full_tokens: int = PROMPT_TOKENS
    questions: list[Submit] = field(default_factory=list)
    turns: list[Submit] = field(default_factory=list)
    sides: list[Submit] = field(default_factory=list)

    def worker(self) -> FakeWorker:
        """The worker that it plays."""
        worker = FakeWorker(self.answer)
        worker.ready = replace(READY, max_len=CONTEXT_TOKENS, caps=Caps(reasoning=True))
        return worker

    async def answer(self, worker: FakeWorker, run: Submit) -> None:
        """One run, from its first token to its end."""
        if run.call.answer_format.kind == "choice":
            self.questions.append(run)
            await self._say(worker, run, CLASS)
        elif not run.call.tools:
            self.sides.append(run)
            is_title = any("title" in message.text for message in run.call.messages[:1])
            if is_title:
                await self._say(worker, run, TITLE)
            else:  # what it sums up is the whole conversation
                full_tokens, self.full_tokens = self.full_tokens, PROMPT_TOKENS
                await self._say(worker, run, SUMMARY, prompt_tokens=full_tokens)
        else:
            self.turns.append(run)
            await self._work(worker, run)

    async def _work(self, worker: FakeWorker, run: Submit) -> None:
        last = run.call.messages[-1]
        if last.role == "tool":
            found = WORD.search(last.text)
            text = f"It says {found[0] if found else 'nothing'}."
            await self._say(worker, run, text, prompt_tokens=self.full_tokens)
            return
        if not FILE.search(last.text):  # it was told to go on, behind a summary
            await self._say(worker, run, "Nothing is left to do.")
            return
        tool = next(tool for tool in run.call.tools if tool.name in READ_TOOLS)
        arguments = self._arguments(tool, last)
        start, piece, end = (
            CallPart(1, 0, id="call_" + run.run_id[-8:], name=tool.name),
            CallPart(1, 0, args=arguments),
            CallPart(1, 0, end=True),
        )
        await worker.send(
            Delta(run.run_id, 1, (1,), ("",), ("call",), (False,), calls=(start, piece, end))
        )
        await worker.finish(run, 1, "tool_calls", prompt_tokens=PROMPT_TOKENS)

    def _arguments(self, tool: Tool, asked: Message) -> str:
        """The file that was asked about, under the names that the tool's own schema demands."""
        names = FILE.findall(asked.text)
        schema = tool.parameters
        assert isinstance(schema, dict) and isinstance(schema["required"], list), schema
        return json.dumps(dict.fromkeys(schema["required"], f"{self.folder}/{names[-1]}"))

    async def _say(
        self, worker: FakeWorker, run: Submit, text: str, prompt_tokens: int = PROMPT_TOKENS
    ) -> None:
        pieces = re.findall(r"\S+\s*", text)
        await worker.write(run, *pieces)
        await worker.finish(run, len(pieces), prompt_tokens=prompt_tokens)


def notes(run: Submit) -> list[tuple[int, str]]:
    """What the conductor added to a prompt: the message that each text stands in, and the text."""
    return [(segment.message, segment.text) for segment in run.plan.segments]


def spoken(call: Call) -> list[Message]:
    """The messages but system ones."""
    return [message for message in call.messages if message.role not in ("system", "developer")]
