"""What the conductor is told of a request: its headers and its body's shape.

Knows no profile and no run.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from conductor.session import body_ids
from conductor.types import Asked
from gateway.surfaces.params import ManagedRequest
from proto.chat import Json

# An older name of the same header, which some clients still send.
_TASK_TYPE, _OLD_TASK_TYPE = "x-tandem-task-type", "x-freellm-task-type"


def asked_of(
    surface: str,
    headers: Iterable[tuple[str, str]],
    fields: Mapping[str, Json],
    request: ManagedRequest,
) -> Asked:
    """What a request says beside its conversation. `fields`: its body's top level."""
    known = dict(headers)
    if _OLD_TASK_TYPE in known:
        known.setdefault(_TASK_TYPE, known[_OLD_TASK_TYPE])
    return Asked(
        surface=surface,
        headers=known,
        is_stream=request.is_stream,
        max_tokens=request.params.max_tokens,
        tools=_tools(fields),
        wish=request.thinking,
        choices=request.choices,
        has_logprobs=request.params.top_logprobs is not None,
        temperature=request.params.temperature,
        body_ids=body_ids(fields),
        schema_name=_schema_name(fields),
    )


def _tools(fields: Mapping[str, Json]) -> Literal["absent", "empty", "some"]:
    tools = fields.get("tools")
    if tools is None:
        return "absent"
    return "some" if tools else "empty"


def _schema_name(fields: Mapping[str, Json]) -> str | None:
    """Source: OpenAI API reference, "response_format"."""
    form = fields.get("response_format")
    schema = form.get("json_schema") if isinstance(form, dict) else None
    name = schema.get("name") if isinstance(schema, dict) else None
    return name if isinstance(name, str) else None
