"""A conversation to the text a model was trained on. Knows no token ids and no run.

The model's own jinja template in a sandbox, with limits on its size, its loops and its output.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment

from proto.chat import Json, Message, Tool
from proto.faults import Refusal
from proto.limits import TEMPLATE_BYTES, TEMPLATE_LOOP_STEPS, TEMPLATE_OUTPUT_BYTES
from worker.faults import LoadFault
from worker.text.call_syntax import CallForm
from worker.text.reasoning import ReasoningForm


class ChatTemplate:
    """A compiled chat template. One thread renders with it at a time.

    `now` gives the local time that `strftime_now` shows. `hash` is hex SHA-256 of the source.
    """

    def __init__(
        self, source: str, special: Mapping[str, str], now: Callable[[], datetime]
    ) -> None:
        if len(source.encode()) > TEMPLATE_BYTES:
            raise LoadFault(f"The model's chat template is over {TEMPLATE_BYTES} bytes.")
        self.hash = hashlib.sha256(source.encode()).hexdigest()
        # What a model was trained to write is what its template renders of earlier answers.
        self.call_form: CallForm = "xml" if "<function=" in source else "hermes"
        self.reasoning = ReasoningForm("model" if "</think>" in source else "none")
        self.takes_tools = "tools" in source
        self._special = dict(special)
        self._steps = 0
        environment = _Sandbox(self._counted, now)
        try:
            self._template = environment.from_string(source)
        except TemplateError as fault:
            raise LoadFault(f"The model's chat template is not valid: {fault}.") from fault

    def render(
        self,
        messages: tuple[Message, ...],
        arguments: Mapping[str, Json],
        mark: Callable[[str], str] = str,
        tools: tuple[Tool, ...] = (),
    ) -> str:
        """Renders messages up to where the assistant goes on.

        `mark` is applied to every text the caller wrote, before the template sees it.
        Raises: Refusal (`bad_request`, param `messages`) with the template's own sentence, or for
            a limit passed.
        """
        self._steps = 0
        context = {
            **self._special,
            **{k: _marked(value, mark, is_callers=True) for k, value in arguments.items()},
            "messages": [_marked(_template_message(m), mark) for m in messages],
            "tools": [_marked(_template_tool(t), mark, is_callers=True) for t in tools] or None,
            "documents": None,
            "add_generation_prompt": True,
        }
        try:
            return self._collect(context)
        except TemplateError as fault:
            raise _refusal(str(fault) or type(fault).__name__) from fault
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as fault:
            raise _refusal(f"the chat template failed: {type(fault).__name__}") from fault
        except RecursionError as fault:
            raise _refusal("the chat template recurses too deeply") from fault

    def _collect(self, context: Mapping[str, Any]) -> str:
        pieces: list[str] = []
        size = 0
        for piece in self._template.generate(context):
            size += len(piece)
            if size > TEMPLATE_OUTPUT_BYTES:
                break
            pieces.append(piece)
        text = "".join(pieces)
        if max(size, len(text.encode("utf-8", "surrogatepass"))) > TEMPLATE_OUTPUT_BYTES:
            raise _refusal(f"the rendered conversation is over {TEMPLATE_OUTPUT_BYTES} bytes")
        return text

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._steps += 1
            if self._steps > TEMPLATE_LOOP_STEPS:
                raise TemplateError(f"the chat template loops over {TEMPLATE_LOOP_STEPS} times")
            yield item


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox of chat templates: every loop is counted, products of text are bounded."""

    intercepted_binops = frozenset(("*", "**"))

    def __init__(
        self,
        counted: Callable[[Iterable[Any]], Iterator[Any]],
        now: Callable[[], datetime],
    ) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        self.filters["tojson"] = _to_json
        self.filters["_counted"] = counted
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: now().strftime(form)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in list(template.find_all(nodes.For)):
            if loop.recursive:  # its inner calls would pass the counter by
                raise TemplateError("recursive loops are not allowed")
            loop.iter = nodes.Filter(loop.iter, "_counted", [], [], None, None)
        template.set_environment(self)
        return template

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if not all(isinstance(side, (int, float)) for side in (left, right)):
            sized = [len(side) for side in (left, right) if hasattr(side, "__len__")]
            counts = [side for side in (left, right) if isinstance(side, int)]
            if sized and counts and sized[0] * counts[0] > TEMPLATE_OUTPUT_BYTES:
                raise TemplateError("the chat template repeats a text too often")
        if operator == "**":
            raise TemplateError("the chat template computes powers, which is not allowed")
        return SandboxedEnvironment.call_binop(self, context, operator, left, right)


def _template_tool(tool: Tool) -> dict[str, Any]:
    """A tool as templates expect it: what OpenAI's chat API takes."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _template_message(message: Message) -> dict[str, Any]:
    """A message as templates expect it: the names of OpenAI's chat API."""
    role = "system" if message.role == "developer" else message.role
    fields: dict[str, Any] = {"role": role, "content": message.text}
    if message.name is not None:
        fields["name"] = message.name
    if message.call_id is not None:
        fields["tool_call_id"] = message.call_id
    if message.reasoning is not None:
        fields["reasoning_content"] = message.reasoning
    if message.calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in message.calls
        ]
    return fields


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"raw": text}


def _marked(value: Any, mark: Callable[[str], str], *, is_callers: bool = False) -> Any:
    """`is_callers`: the keys of maps are the caller's words too, not the template's own names."""
    if isinstance(value, str):
        return mark(value)
    if isinstance(value, list):
        return [_marked(item, mark, is_callers=is_callers) for item in value]
    if isinstance(value, dict):
        return {
            mark(key) if is_callers else key: _marked(
                item, mark, is_callers=is_callers or key == "arguments"
            )
            for key, item in value.items()
        }
    return value


def _refusal(sentence: str) -> Refusal:
    return Refusal("bad_request", sentence, param="messages")


def _raise_exception(sentence: str) -> None:
    raise TemplateError(sentence)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes `<`, `>`, `&` and `'` for HTML, which no model was trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
