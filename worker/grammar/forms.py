"""What a request asks of its answer's form, as one grammar. Knows no tokenizer and no matcher.

The grammar is written in the library's own notation: Lark rules, JSON schemas and regular
expressions, several of them under one start rule where a request offers a choice.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from proto.chat import AnswerFormat, Call, Json
from proto.faults import Refusal
from proto.limits import GRAMMAR_BYTES, GRAMMAR_CHOICES
from worker.grammar.calls import call_rules, literal
from worker.text.call_syntax import CallForm

# Without a bound a small model can write blanks for ever where JSON allows them.
BLANKS = r"[ \n\r\t]{1,20}"
MOST_REMAINDERS = 20_000  # 0.2 s and 20 MB; 999,983 of them took 7 s and 450 MB
_DIVISOR = re.compile(r"multipleOf\W*?([0-9][0-9.]*(?:[eE][+-]?[0-9]+)?)")  # in rules as well
ANY_OBJECT: dict[str, Json] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class GrammarForm:
    """A grammar as the library reads it. `choices`: the answers of a choice, else none.

    `param`: the field of the request that asked for it.
    """

    source: str
    param: str
    choices: tuple[str, ...] = ()


def form_of(call: Call, syntax: CallForm) -> GrammarForm | None:
    """The grammar that an answer must follow; None where it is free.

    Raises: Refusal (`bad_request`) naming the field that cannot be followed.
    """
    answer, choice = call.answer_format, call.tool_choice
    if choice.mode in ("required", "named"):
        tools = [tool for tool in call.tools if choice.name in (None, tool.name)]
        if not tools:
            raise _bad("tool_choice", "tool_choice asks for a call, but no such tool is offered")
        rules = call_rules(tools, syntax, is_parallel=call.parallel_tool_calls)
        return _form([{"lark_grammar": rules}], "tool_choice")
    document = _document(answer)
    if document is None:
        return None
    param = "response_format" if answer.kind in _RESPONSE_KINDS else "structured_outputs"
    if call.tools and choice.mode == "auto":
        rules = call_rules(call.tools, syntax, is_parallel=call.parallel_tool_calls)
        start = {"lark_grammar": "start: @document | @call\n"}
        parts = [start, {"name": "document", **document}, {"name": "call", "lark_grammar": rules}]
        return _form(parts, param)
    choices = tuple(answer.spec) if answer.kind == "choice" and _are_texts(answer.spec) else ()
    return _form([document], param, choices)


_RESPONSE_KINDS = ("json_object", "json_schema")


def _document(answer: AnswerFormat) -> dict[str, Any] | None:
    spec = answer.spec
    match answer.kind:
        case "text":
            return None
        case "json_object":
            return {"json_schema": with_blanks(ANY_OBJECT)}
        case "json_schema":
            if isinstance(spec, bool):
                spec = {} if spec else {"not": {}}
            if not isinstance(spec, dict):
                raise _bad("response_format", "the schema must be an object")
            return {"json_schema": with_blanks(spec)}
        case "choice":
            if not _are_texts(spec) or not 0 < len(spec) <= GRAMMAR_CHOICES:
                sentence = f"choice must be a list of 1 to {GRAMMAR_CHOICES} texts, none empty"
                raise _bad("structured_outputs", sentence)
            rules = " | ".join(map(literal, spec))
            return {"lark_grammar": f"start: {rules}\n"}
        case "regex" if isinstance(spec, str):
            return {"lark_grammar": f"start: {regex_terminal(spec)}\n"}
        case "grammar" if isinstance(spec, str):
            return {"lark_grammar": spec}
    raise _bad("structured_outputs", f"{answer.kind} must be text")


def with_blanks(schema: dict[str, Json]) -> dict[str, Json]:
    """The schema, with blanks between its tokens bounded."""
    hints = schema.get("x-guidance")
    return {**schema, "x-guidance": hints or {"whitespace_pattern": BLANKS}}


def regex_terminal(pattern: str) -> str:
    """A regular expression as a terminal of Lark. A slash in it must not end it."""
    escaped: list[str] = []
    is_escape = False
    for char in pattern:
        escaped.append("\\/" if char == "/" and not is_escape else char)
        is_escape = char == "\\" and not is_escape
    return "/" + "".join(escaped).replace("\n", "\\n") + "/"


def _form(
    parts: Sequence[dict[str, Any]], param: str, choices: tuple[str, ...] = ()
) -> GrammarForm:
    source = json.dumps({"grammars": list(parts)}, ensure_ascii=False)
    if len(source.encode(errors="replace")) > GRAMMAR_BYTES:
        raise _bad(param, f"the grammar of the answer is over {GRAMMAR_BYTES} bytes")
    if _remainders(source) > MOST_REMAINDERS:
        raise _bad(param, "the values of 'multipleOf' are too large to be followed")
    return GrammarForm(source, param, choices)


def _remainders(source: str) -> float:
    """How many the grammar's divisors have: each a state of the library, beyond its own limits."""
    counts = [_without_tens(float(found)) for found in _DIVISOR.findall(source)]
    # Where schemas are joined, a number may have to meet all of them at once.
    is_joined = "allOf" in source or "$ref" in source
    return math.prod(counts) if is_joined else sum(counts)


def _without_tens(divisor: float) -> float:
    while divisor >= 10 and divisor % 10 == 0:  # a digit that must be 0 costs nothing
        divisor /= 10
    return max(divisor, 1.0)


def _are_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(text, str) and text for text in value)


def _bad(param: str, sentence: str) -> Refusal:
    return Refusal("bad_request", sentence, param=param)
