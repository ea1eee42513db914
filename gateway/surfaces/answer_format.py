"""The form that a request asks its answer to have. Knows no grammar; every error names its field.

Source: OpenAI API reference, "response_format"; vLLM, "Structured outputs".
"""

from typing import Any

from gateway.surfaces.fields import bad_field
from proto.chat import AnswerFormat
from proto.limits import GRAMMAR_BYTES, GRAMMAR_CHOICES

STRUCTURES = ("choice", "regex", "json", "grammar")


def read_answer_format(body: dict[str, Any]) -> AnswerFormat:
    """`response_format` or `structured_outputs`. Raises: ApiError 400."""
    form = _response_format(body.get("response_format"))
    structure = body.get("structured_outputs")
    if structure is None:
        return form
    if form.kind != "text":
        message = "'structured_outputs' and 'response_format' exclude each other; leave one out."
        raise bad_field("structured_outputs", message)
    return _structure(structure)


def _response_format(value: Any) -> AnswerFormat:
    if value is None:
        return AnswerFormat()
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return AnswerFormat()
    if kind == "json_object":
        return AnswerFormat("json_object")
    if kind != "json_schema":
        message = "'response_format.type' must be text, json_object or json_schema."
        raise bad_field("response_format", message)
    holder = value.get("json_schema")
    schema = holder.get("schema") if isinstance(holder, dict) else None
    if not isinstance(schema, dict):
        message = "'response_format.json_schema.schema' must be a JSON Schema."
        raise bad_field("response_format", message)
    return AnswerFormat("json_schema", schema)


def _structure(value: Any) -> AnswerFormat:
    given = [key for key in STRUCTURES if isinstance(value, dict) and value.get(key) is not None]
    if len(given) != 1:
        message = f"'structured_outputs' must have exactly one of {', '.join(STRUCTURES)}."
        raise bad_field("structured_outputs", message)
    (kind,) = given
    spec = value[kind]
    match kind:
        case "choice":
            is_list = isinstance(spec, list) and 0 < len(spec) <= GRAMMAR_CHOICES
            if not is_list or not all(isinstance(text, str) and text for text in spec):
                message = (
                    f"'structured_outputs.choice' must be a list of 1 to {GRAMMAR_CHOICES} texts, "
                    "none of them empty."
                )
                raise bad_field("structured_outputs", message)
            return AnswerFormat("choice", spec)
        case "json":
            if not isinstance(spec, dict):
                message = "'structured_outputs.json' must be a JSON Schema."
                raise bad_field("structured_outputs", message)
            return AnswerFormat("json_schema", spec)
        case _:
            if not isinstance(spec, str) or not spec or len(spec) > GRAMMAR_BYTES:
                message = f"'structured_outputs.{kind}' must be text under {GRAMMAR_BYTES} bytes."
                raise bad_field("structured_outputs", message)
            return AnswerFormat("regex" if kind == "regex" else "grammar", spec)
