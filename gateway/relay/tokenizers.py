"""The tokenizers of vLLM, SGLang and llama.cpp over HTTP: how each is asked. Knows no ledger.

Source: vLLM's and SGLang's `/tokenize`, llama.cpp's `/tokenize` and `/apply-template`, as their
servers' documentation has them.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.backends.base import Backend
from gateway.relay.client import UpstreamClient
from gateway.surfaces.request import texts_in

if TYPE_CHECKING:
    import httpx

ANSWER_BYTES = 16 * 1024**2  # they list the tokens: a few bytes for each of at most a million
_OK = 200
_FIRST_ERROR, _LAST_CLIENT_ERROR = 400, 499


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be counted at a backend, as its model reads it.

    The prompt is known already (`prompt_tokens`), or a chat (`chat`: members of a JSON object, as
    the client wrote them), or text. `is_raw`: the text is all that the model reads, so that the
    tokenizer adds what begins a text.
    """

    backend: Backend
    model: str
    completion: str
    prompt_tokens: int | None = None
    chat: str | None = None
    prompt: str = ""
    is_raw: bool = False


class NotCounted(Exception):
    """A tokenizer gave no count. `status` of its answer."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


async def count(client: UpstreamClient, question: Question, limit_s: float) -> tuple[int, int]:
    """Tokens of the prompt and of the completion.

    Raises: NotCounted, httpx.HTTPError, ValueError for an answer that is none.
    """
    from gateway.relay.transport import http_client  # httpx is not needed to relay

    flavor = question.backend.settings.flavor
    count_text, count_chat = _WAYS[flavor]
    async with http_client(client, question.backend, limit_s) as http:
        completion = await count_text(http, question, question.completion, False)
        if question.prompt_tokens is not None:
            return question.prompt_tokens, completion
        if question.chat is not None:
            return await count_chat(http, question, question.chat), completion
        return await count_text(http, question, question.prompt, question.is_raw), completion


async def _openai_text(
    http: httpx.AsyncClient, question: Question, text: str, adds_special: bool
) -> int:
    body = {"model": question.model, "prompt": text, "add_special_tokens": adds_special}
    return _number(await _ask(http, question, "/tokenize", json.dumps(body)))


async def _vllm_chat(http: httpx.AsyncClient, question: Question, chat: str) -> int:
    body = f'{{"model":{json.dumps(question.model)},{chat}}}'
    return _number(await _ask(http, question, "/tokenize", body))


async def _sglang_chat(http: httpx.AsyncClient, question: Question, chat: str) -> int:
    """Newer ones apply the template; older ones know texts only, and refuse the rest."""
    try:
        return await _vllm_chat(http, question, chat)
    except NotCounted as fault:
        if not _FIRST_ERROR <= fault.status <= _LAST_CLIENT_ERROR:
            raise
    text = "\n".join(texts_in(json.loads(f"{{{chat}}}")))
    return await _openai_text(http, question, text, True)


async def _llamacpp_text(
    http: httpx.AsyncClient, question: Question, text: str, adds_special: bool
) -> int:
    body = {"content": text, "add_special": adds_special}
    answer = await _ask(http, question, "/tokenize", json.dumps(body))
    if not isinstance(tokens := answer.get("tokens"), list):
        raise ValueError("no list of tokens")
    return len(tokens)


async def _llamacpp_chat(http: httpx.AsyncClient, question: Question, chat: str) -> int:
    answer = await _ask(http, question, "/apply-template", f"{{{chat}}}")
    if not isinstance(prompt := answer.get("prompt"), str):
        raise ValueError("no prompt")
    return await _llamacpp_text(http, question, prompt, True)


_CountText = Callable[["httpx.AsyncClient", Question, str, bool], Awaitable[int]]
_CountChat = Callable[["httpx.AsyncClient", Question, str], Awaitable[int]]
_WAYS: dict[str, tuple[_CountText, _CountChat]] = {
    "vllm": (_openai_text, _vllm_chat),
    "sglang": (_openai_text, _sglang_chat),
    "llamacpp": (_llamacpp_text, _llamacpp_chat),
}


async def _ask(http: httpx.AsyncClient, question: Question, path: str, body: str) -> dict[str, Any]:
    where = question.backend.root_path(path)
    headers = {"content-type": "application/json"}
    pieces = bytearray()
    async with http.stream("POST", where, content=body.encode(), headers=headers) as answer:
        if answer.status_code != _OK:
            raise NotCounted(answer.status_code)
        async for piece in answer.aiter_bytes():
            pieces += piece
            if len(pieces) > ANSWER_BYTES:
                raise ValueError("too long an answer")
    parsed = json.loads(pieces)
    if not isinstance(parsed, dict):
        raise ValueError("no object")
    return parsed


def _number(answer: dict[str, Any]) -> int:
    found = answer.get("count")
    if type(found) is not int or found < 0:
        raise ValueError("no count")
    return found
