"""Errors of ours in the form of the surface that was called. Knows no backend and no handler.

Every message tells the caller what to change; none holds a key, an address or the name of a backend
that was not asked for.
"""

import json
from collections.abc import Callable
from typing import Any

from gateway.settings.types import Surface

RETRY_DRAINING_S = 30
RETRY_BACKEND_BUSY_S = 5
RETRY_NO_ENGINE_S = 5


class ApiError(Exception):
    """An answer other than success. `code` is ours and stable, `param` the field at fault."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
        may_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.may_retry = may_retry

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers that belong to this error beside the body's own."""
        found: list[tuple[bytes, bytes]] = []
        if self.retry_after_s is not None:
            found.append((b"retry-after", str(self.retry_after_s).encode()))
        if self.may_retry is not None:
            found.append((b"x-should-retry", b"true" if self.may_retry else b"false"))
        if self.status == 401:
            found.append((b"www-authenticate", b"Bearer"))
        return found


def internal_error() -> ApiError:
    """What a client is told when the fault is ours."""
    return ApiError(500, "internal_error", "The gateway failed on this request.")


def error_body(surface: Surface, error: ApiError, request_id: str) -> bytes:
    """The JSON body of an error answer. `surface`: the one that was called."""
    return _dump(_FORMS.get(surface, _openai)(error, request_id))


def stream_error_end(
    surface: Surface,
    error: ApiError,
    request_id: str,
    *,
    response_id: str | None = None,
    sequence_number: int | None = None,
) -> bytes:
    """The bytes that end a started stream with an error, in the surface's own form.

    `response_id`, `sequence_number`: as the last event of a Responses stream had them. SDKs refuse
    an end that belongs to another response.
    """
    form = _stream_form(surface, error, request_id)
    if surface == "responses":
        form["response"]["id"] = response_id or f"resp_{request_id}"
        form["sequence_number"] = 0 if sequence_number is None else sequence_number + 1
    body = _dump(form)
    match surface:
        case "messages":
            return b"event: error\ndata: " + body + b"\n\n"
        case "responses":
            return b"event: response.failed\ndata: " + body + b"\n\n"
        case "gemini":
            return b"data: " + body + b"\n\n"
        case _:
            return b"data: " + body + b"\n\ndata: [DONE]\n\n"


def _stream_form(surface: Surface, error: ApiError, request_id: str) -> dict[str, Any]:
    if surface == "responses":
        failed = {"code": error.code, "message": error.message}
        response = {"object": "response", "status": "failed", "error": failed}
        return {"type": "response.failed", "response": response}
    if surface == "messages":
        return {
            **_anthropic(error, request_id),
            "error": {"type": "api_error", "message": error.message},
        }
    if surface == "gemini":
        body = _gemini(error, request_id)
        body["error"].update(code=502, status="UNAVAILABLE")
        return body
    body = _openai(error, request_id)
    body["error"]["type"] = "stream_error"
    return body


def _openai(error: ApiError, request_id: str) -> dict[str, Any]:
    return {
        "error": {
            "message": error.message,
            "type": _OPENAI_TYPES.get(error.status, "server_error"),
            "param": error.param,
            "code": error.code,
            "execution_id": request_id,
        }
    }


def _anthropic(error: ApiError, request_id: str) -> dict[str, Any]:
    kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
    inner = {"type": kind, "message": error.message, "code": error.code}
    if error.param:
        inner["param"] = error.param
    return {"type": "error", "error": inner, "request_id": request_id}


def _gemini(error: ApiError, request_id: str) -> dict[str, Any]:
    status = _GEMINI_STATUSES.get(error.status, "UNAVAILABLE")
    details = {"reason": error.code, "param": error.param, "execution_id": request_id}
    return {
        "error": {
            "code": error.status,
            "message": error.message,
            "status": status,
            "details": [{key: value for key, value in details.items() if value is not None}],
        }
    }


def _dump(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


_FORMS: dict[Surface, Callable[[ApiError, str], dict[str, Any]]] = {
    "messages": _anthropic,
    "count_tokens": _anthropic,
    "gemini": _gemini,
}

_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    414: "invalid_request_error",
    415: "invalid_request_error",
    417: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
}

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    414: "invalid_request_error",
    415: "invalid_request_error",
    417: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "overloaded_error",
}

_GEMINI_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "INVALID_ARGUMENT",
    408: "INVALID_ARGUMENT",
    413: "INVALID_ARGUMENT",
    414: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT",
    417: "INVALID_ARGUMENT",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    431: "INVALID_ARGUMENT",
    504: "DEADLINE_EXCEEDED",
}
