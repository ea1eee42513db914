"""The form an answer is held to, in each server's own words. Knows no conversation.

Source: vLLM, "Structured outputs" (`guided_choice` until 0.12); SGLang, "Structured outputs";
llama.cpp, grammars/README.md; OpenAI API reference, "response_format".
"""

import json
import re
from collections.abc import Sequence

from gateway.settings.types import Flavor
from proto.chat import AnswerFormat, Json

Body = dict[str, Json]

_REGEX_SIGNS = re.compile(r"([\\.^$*+?{}\[\]|()])")
_CHOICE = "choice"  # the member that holds it where only JSON can be asked for


def form_fields(form: AnswerFormat, flavor: Flavor, *, is_new: bool = True) -> Body | None:
    """What goes into a body so that the answer has this form; None where that cannot be asked.
    `is_new`: as in `choice_fields`."""
    match form.kind:
        case "text":
            return {}
        case "json_object":
            return {"response_format": {"type": "json_object"}}
        case "json_schema":
            return _schema_fields(form.spec)
        case "choice" if flavor in ("vllm", "sglang", "llamacpp") and isinstance(form.spec, list):
            return choice_fields([str(one) for one in form.spec], flavor, is_new=is_new)
        case "regex" | "grammar":
            name = _FREE_FORMS.get((flavor, form.kind))
            if name == "structured_outputs":
                return {name: {form.kind: form.spec}}
            return None if name is None else {name: form.spec}
        case _:
            return None


def choice_fields(choices: Sequence[str], flavor: Flavor, *, is_new: bool = True) -> Body:
    """What goes into a body so that its answer is one of these. `is_new`: in vLLM's name since
    0.10.2, not that of before. `chosen` reads the answer."""
    match flavor:
        case "vllm":
            spec: Json = list(choices)
            return {"structured_outputs": {"choice": spec}} if is_new else {"guided_choice": spec}
        case "sglang":
            return {"regex": "(" + "|".join(_REGEX_SIGNS.sub(r"\\\1", c) for c in choices) + ")"}
        case "llamacpp":
            return {"grammar": "root ::= " + " | ".join(_literal(choice) for choice in choices)}
        case _:
            return _schema_fields(choice_schema(choices))


def choice_schema(choices: Sequence[str]) -> Body:
    """A JSON Schema for one of these, where nothing else can be asked for."""
    one: Json = {"type": "string", "enum": list(choices)}
    return {
        "type": "object",
        "properties": {_CHOICE: one},
        "required": [_CHOICE],
        "additionalProperties": False,
    }


def chosen(text: str, choices: Sequence[str]) -> str | None:
    """The choice that an answer is, bare or in JSON; None for anything else."""
    text = text.strip()
    if text.startswith("{"):
        try:
            held = json.loads(text)
        except ValueError:
            return None
        text = held.get(_CHOICE)
    return text if text in choices else None


def _schema_fields(schema: Json) -> Body:
    holder: Json = {"name": "answer", "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": holder}}


def _literal(text: str) -> str:
    """A text in llama.cpp's grammar, whose escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False)


_FREE_FORMS: dict[tuple[str, str], str] = {
    ("vllm", "regex"): "structured_outputs",
    ("vllm", "grammar"): "structured_outputs",
    ("sglang", "regex"): "regex",
    ("sglang", "grammar"): "ebnf",
    ("llamacpp", "grammar"): "grammar",
}
