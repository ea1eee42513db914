"""Our own engine as a backend: runs over ZeroMQ in, events out. Knows no surface and no model.

One DEALER to one worker. The worker is alive while it beats; when it stops, every run that it had
ends here with `EngineLost`, so nobody waits for an answer that will not come.
"""

import asyncio
from typing import Literal

import structlog
import zmq
import zmq.asyncio

from gateway.backends.engine_run import EngineLost, EngineRun, RunMessage
from gateway.backends.questions import A, Question, Questions
from gateway.errors import RETRY_DRAINING_S, RETRY_NO_ENGINE_S, ApiError
from gateway.middleware.request_id import RequestIds
from proto import codec
from proto.chat import Call, Params
from proto.faults import CodecFault, Refusal
from proto.limits import LINK_BEAT_S, LINK_CREDIT_TOKENS, LINK_LEASE_S
from proto.messages import (
    Ack,
    Beat,
    Cache,
    CacheInfo,
    Cancel,
    Delta,
    Done,
    Drain,
    Embed,
    Embedded,
    FromGateway,
    Hello,
    LinkMessage,
    Progress,
    Queued,
    Ready,
    Refused,
    Submit,
)
from proto.plan import Plan

log = structlog.get_logger(__name__)


def refusal_error(refusal: Refusal) -> ApiError:
    """What a client is told when the engine will not serve it."""
    after_s = None if refusal.retry_after_ms is None else -(-refusal.retry_after_ms // 1000)
    match refusal.code:
        case "bad_request":
            return ApiError(400, "invalid_request", refusal.detail, param=refusal.param)
        case "too_long":
            return ApiError(400, "context_length_exceeded", refusal.detail, param="messages")
        case "draining":
            message = "The engine is shutting down; try again shortly."
            return ApiError(503, "draining", message, retry_after_s=after_s or RETRY_DRAINING_S)
        case "busy" if refusal.detail == "queue_timeout":
            message = "The engine did not get to this request in time; try again."
            return ApiError(429, "queue_timeout", message, retry_after_s=after_s)
        case "busy":
            message = "The engine has too many requests waiting; try again shortly."
            return ApiError(503, refusal.detail, message, retry_after_s=after_s)
        case _:
            return no_engine()


def no_engine() -> ApiError:
    """What a client is told when there is no worker, or no longer the one that had its run."""
    message = "The engine is not available at the moment; try again shortly."
    return ApiError(503, "engine_unavailable", message, retry_after_s=RETRY_NO_ENGINE_S)


class EngineLink:
    """The connection to the worker at one endpoint, kept up by `run`."""

    def __init__(self, endpoint: str) -> None:
        self.ready: Ready | None = None
        self.can_embed = True  # until a worker says that its model cannot
        self.last_beat: Beat | None = None
        # What went wrong on the link, how often: bytes that are no message, messages that nobody
        # has a use for, and what the worker would not take from us.
        self.faults = {"refused": 0, "ignored": 0, "rejected": 0}
        self._endpoint = endpoint
        self._new_id = RequestIds()
        self._gateway_id = f"gw:{self._new_id()}"
        self._runs: dict[str, EngineRun] = {}
        self._questions = Questions(self._send_bytes)
        self._heard_s = 0.0
        self._is_draining = False
        self._became_ready = asyncio.Event()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, self._gateway_id.encode())
        self._socket.setsockopt(zmq.LINGER, 0)
        # Nothing is queued for a worker that is not there: it would be served long after its client
        # had left.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)

    @property
    def has_lease(self) -> bool:
        """Whether the worker answered and was heard within the lease."""
        return self.ready is not None and not self._is_draining

    async def run(self) -> None:
        """Keeps the link up until it is cancelled."""
        self._socket.connect(self._endpoint)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read())
                tasks.create_task(self._beat())
        finally:
            self.lose("gateway stopped")
            self._socket.close(0)
            self._context.term()

    async def wait_ready(self) -> Ready:
        """Returns when a worker has answered."""
        await self._became_ready.wait()
        assert self.ready is not None
        return self.ready

    async def submit(
        self, call: Call, plan: Plan, params: Params, seed: int, salt: str,
        choice: int = 0, choices: int = 1,
    ) -> EngineRun:  # fmt: skip
        """Starts a run: answer number `choice` of the `choices` that one request asks for.

        Raises: EngineLost when no worker holds a lease; CodecFault for what no message can hold.
        """
        if not self.has_lease:
            raise EngineLost
        run = EngineRun(self, self._new_id())
        submit = Submit(
            run_id=run.run_id,
            epoch=1,
            start_token=1,
            choice=choice,
            choices=choices,
            call=call,
            plan=plan,
            params=params,
            seed=seed,
            cache_salt=salt,
            credit=LINK_CREDIT_TOKENS,
        )
        data = codec.encode(submit)
        self._runs[run.run_id] = run
        if not await self._send_bytes(data):
            del self._runs[run.run_id]
            raise EngineLost
        return run

    async def embed(self, texts: tuple[str, ...]) -> Embedded:
        """One vector a text, of at most EMBED_TEXTS_ASKED.

        Raises: Refusal; EngineLost; CodecFault for what no message can hold.
        """
        answer = await self._ask(Embed(self._new_id(), texts), Embedded)
        if len(answer.vectors) != len(texts):
            raise EngineLost
        return answer

    async def cache(
        self, op: Literal["stats", "clear"], kinds: tuple[str, ...] | None = None
    ) -> CacheInfo:
        """What the worker keeps of earlier requests; `clear` drops it first, of these kinds.

        Raises: Refusal; EngineLost.
        """
        return await self._ask(Cache(self._new_id(), op, kinds), CacheInfo)

    async def _ask(self, question: Question, kind: type[A]) -> A:
        if not self.has_lease:
            raise EngineLost
        answer = await self._questions.ask(question, kind)
        if answer is None:
            raise EngineLost
        return answer

    async def end(self, run: EngineRun, *, cancel: bool) -> None:
        """Forgets a run; cancels it when it still goes on."""
        self._runs.pop(run.run_id, None)
        if cancel:
            await self.send(Cancel(run.run_id, 1, "client left"))

    async def send(self, message: FromGateway) -> bool:
        """Sends a message; False when there is no worker to take it."""
        return await self._send_bytes(codec.encode(message))

    async def _send_bytes(self, data: bytes) -> bool:
        try:
            await self._socket.send(data, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def lose(self, reason: str) -> None:
        """The worker is gone: its runs end, and it must introduce itself again."""
        if self.ready is not None:
            log.warning("lease.lost", worker_id=self.ready.worker_id, reason=reason)
        self.ready = self.last_beat = None
        self._became_ready.clear()
        for run in self._runs.values():
            run.put(None)
        self._runs.clear()
        self._questions.lose()

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self.ready is not None and loop.time() - self._heard_s > LINK_LEASE_S:
                self.lose(f"silent for {LINK_LEASE_S:g} s")
            await (self._say_hello() if self.ready is None else self.send(Beat("up")))
            await asyncio.sleep(LINK_BEAT_S)

    async def _say_hello(self) -> bool:
        hello = Hello(self._gateway_id, self._gateway_id, codec.VERSION, codec.VERSION)
        return await self.send(hello)

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            data = await self._socket.recv()
            try:
                message = codec.decode(data)
            except CodecFault as fault:
                self.faults["refused"] += 1
                log.warning("link.message_refused", fault=str(fault))
                continue
            if isinstance(message, Refused) and message.run_id is message.req_id is None:
                await self._introduce_again(message)
                continue
            self._heard_s = loop.time()
            await self._take(message)

    async def _introduce_again(self, refused: Refused) -> None:
        """The worker does not know us: it is another one, or forgot us while we were stopped."""
        self.faults["rejected"] += 1
        log.warning("link.refused", code=refused.code, detail=refused.detail)
        if refused.code == "bad_message" and self.ready is not None:
            self.lose("the worker does not know this gateway")
            await self._say_hello()

    async def _take(self, message: LinkMessage) -> None:
        match message:
            case Ready():
                if self.ready is not None and self.ready.incarnation != message.incarnation:
                    self.lose("the worker was replaced")
                self.ready = message
                self.can_embed = message.caps.embed
                self._is_draining = False
                self._became_ready.set()
                log.info("lease.taken", worker_id=message.worker_id, model=message.model)
            case Beat():
                if self.ready is not None:  # one that comes later is of nobody
                    self.last_beat = message
            case Drain():
                self._is_draining = True
            case Embedded() | CacheInfo() | Refused(run_id=None):
                self._questions.take(message)
            case Queued() | Progress() | Delta() | Done() | Refused():
                await self._deliver(message)
            case _:
                self.faults["ignored"] += 1
                log.warning("link.message_ignored", type=type(message).__name__)

    async def _deliver(self, message: RunMessage) -> None:
        run = self._runs.get(message.run_id or "")
        if run is not None:
            run.put(message)
        elif isinstance(message, Done):
            await self.send(Ack(message.run_id, message.last_token, done=True))
        elif not isinstance(message, Refused):  # lost together with a lease: nobody waits for it
            await self.send(Cancel(message.run_id, 1, "nobody waits for this run"))
