"""Which answers a backend's own tokenizer is asked about, and when. Knows no stream.

It happens after the answer and off the path of requests, and it may fail: the row then keeps its
estimate. Two questions run at one time, some wait, and more than that are not asked.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import structlog

from gateway.backends.base import Backend
from gateway.ledger.entry import Entry
from gateway.relay.client import UpstreamClient
from gateway.relay.tap import Tap
from gateway.relay.tokenizers import Question, count
from gateway.relay.usage import KeptReading
from gateway.surfaces.envelope import Envelope
from gateway.surfaces.request import ModelRequest, prompt_texts
from proto.limits import COUNTED_TEXT_BYTES, COUNTS_RUNNING, COUNTS_WAITING

log = structlog.get_logger(__name__)

COUNT_S = 5.0  # for one answer's counts; a tokenizer needs milliseconds
SAY_AGAIN_S = 60.0  # a backend without a tokenizer would fill the log
# What a chat template reads of a request.
_CHAT = ("messages", "tools", "chat_template", "chat_template_kwargs", "add_generation_prompt",
         "continue_final_message")  # fmt: skip

Done = Callable[[tuple[int, int] | None], None]  # tokens of prompt and completion


class _Job(NamedTuple):
    question: Question
    done: Done


class Counting:
    """Asks tokenizers, as long as `run` runs. `now`: monotonic seconds."""

    def __init__(self, client: UpstreamClient, now: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._now = now
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue(COUNTS_WAITING)
        self._is_over = False
        self._said_s: float | None = None

    def take(self, question: Question, done: Done) -> bool:
        """Whether it will be asked. If so `done` is called once, with None when it failed."""
        if self._is_over:
            return False
        try:
            self._jobs.put_nowait(_Job(question, done))
        except asyncio.QueueFull:
            self._say(question.backend, "too many wait")
            return False
        return True

    async def run(self) -> None:
        """Works until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(COUNTS_RUNNING):
                tasks.create_task(self._work())

    async def finish(self, most_s: float) -> None:
        """Takes no more, and waits for those that are taken; `abandon` what is left then."""
        self._is_over = True
        try:
            async with asyncio.timeout(most_s):
                await self._jobs.join()
        except TimeoutError:
            log.warning("usage.counting_cut", waiting=self._jobs.qsize())

    def abandon(self) -> None:
        """Gives up what still waits, once `run` has ended."""
        while not self._jobs.empty():
            self._jobs.get_nowait().done(None)

    async def _work(self) -> None:
        while True:
            question, done = await self._jobs.get()
            counts = None
            try:
                async with asyncio.timeout(COUNT_S):
                    counts = await count(self._client, question, COUNT_S)
            except Exception as fault:  # noqa: BLE001 - whatever a backend answers, rows must close
                self._say(question.backend, f"{type(fault).__name__}: {fault}")
            finally:
                self._hand_on(done, counts)
                self._jobs.task_done()

    def _hand_on(self, done: Done, counts: tuple[int, int] | None) -> None:
        try:
            done(counts)
        except Exception:
            log.exception("usage.not_booked")  # one row must not take the process down

    def _say(self, backend: Backend, fault: str) -> None:
        now_s = self._now()
        if self._said_s is None or now_s - self._said_s >= SAY_AGAIN_S:
            self._said_s = now_s
            log.warning("usage.not_counted", backend=backend.name, fault=fault)


def question_about(
    entry: Entry, request: ModelRequest, tap: Tap, backend: Backend
) -> Question | None:
    """What to ask about an answer whose usage is an estimate; None when it stays one."""
    reading = tap.reading
    if type(reading) is not KeptReading or reading.texts is None or not tap.is_on:
        return None
    envelope, prompt_tokens, chat, prompt = request.envelope, reading.tokens.prompt, None, ""
    if prompt_tokens is None and entry.surface == "completions":
        prompt_tokens = _token_ids(envelope.fields.get("prompt"))
    if prompt_tokens is None:
        if entry.surface == "chat" and "messages" in envelope.spans:
            chat = ",".join(_members(envelope))
        else:
            prompt = "\n".join(prompt_texts(envelope))
    text = prompt if chat is None else chat
    # Their length in characters is looked at first, which costs nothing.
    room_bytes = COUNTED_TEXT_BYTES - reading.delta_bytes
    if len(text) > room_bytes or len(text.encode(errors="replace")) > room_bytes:
        return None
    return Question(
        backend=backend,
        model=entry.upstream_model or request.model,
        completion="".join(reading.texts),
        prompt_tokens=prompt_tokens,
        chat=chat,
        prompt=prompt,
        is_raw=entry.surface == "completions",
    )


def book_counts(entry: Entry, counts: tuple[int, int]) -> None:
    """Puts counts in the place of an estimate; what the backend said of its cache stays."""
    prompt, completion = counts
    entry.book_usage(
        prompt=prompt,
        completion=completion,
        cached=entry.cached_tokens,
        cache_write=entry.cache_write_tokens,
        source="counted",
    )


def _members(envelope: Envelope) -> Iterator[str]:
    for name in _CHAT:
        if name in envelope.spans:
            start, end = envelope.spans[name]
            yield f'"{name}":{envelope.text[start:end]}'


def _token_ids(prompt: object) -> int | None:
    """How many they are, where a prompt is given as token ids: one list, or several."""
    if not isinstance(prompt, list) or not prompt:
        return None
    if all(type(item) is int for item in prompt):
        return len(prompt)
    lists = [_token_ids(item) for item in prompt]
    known = [length for length in lists if length is not None]
    return sum(known) if len(known) == len(prompt) else None
