"""A call, its plan and its parameters as the body of an OpenAI chat request. Knows no socket.

What is not asked for does not stand in it, and the same work gives the same bytes: what a server
keeps of earlier prompts depends on that. Source: OpenAI API reference, "Create chat completion";
vLLM, SGLang and llama.cpp's server, their extra parameters.
"""

import json
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gateway.backends.answer_form import Body, form_fields
from gateway.backends.base import SELF_SERVED
from gateway.backends.run import Work
from gateway.errors import ApiError
from gateway.settings.types import Flavor
from proto.chat import ImagePart, Json, Message, Params, Part, TextPart, Tool, ToolChoice
from proto.plan import REASONING_PART, Segment

THINK_OPEN, THINK_CLOSE = "<think>\n", "\n</think>\n\n"  # as the templates of most models have it
# Say with every delta what it took so far, when asked to.
MEASURED_FLAVORS = frozenset({"vllm", "sglang", "llamacpp"})
# Of a client's own fields, those that a provider reads and that change no answer.
_PASSED = ("prompt_cache_key", "user", "metadata", "store", "service_tier", "safety_identifier")
_EFFORTS_OF_ALL = frozenset({"low", "medium", "high"})  # older servers refuse the others


def chat_body(
    work: Work, model: str, flavor: Flavor, *, is_measured: bool = False, is_new: bool = True
) -> Body:
    """The body of a streamed request. `is_measured`: with usage beside every delta, if possible.
    `is_new`: as in `choice_fields`.

    Raises: ApiError 400 for a form of answer that this kind of backend cannot be held to.
    """
    call, params = work.call, work.params
    options: Body = {"include_usage": True}
    if is_measured and flavor in ("vllm", "sglang"):
        options["continuous_usage_stats"] = True
    conversation = _with_call_ids(placed(call.messages, work.plan.segments))
    messages: list[Json] = [_message(message, flavor) for message in conversation]
    body: Body = {"model": model, "messages": messages, "stream": True, "stream_options": options}
    if is_measured and flavor == "llamacpp":
        body["timings_per_token"] = True
    body |= _tools(call.tools, call.tool_choice, flavor, is_parallel=call.parallel_tool_calls)
    body |= _sampling(params, flavor)
    if (limit := _limit(params.max_tokens, work.plan.cap)) is not None:
        body[limit_name(work)] = limit
    if work.seed is not None:
        body["seed"] = work.seed
    body |= _thinking(work, flavor)
    form = form_fields(call.answer_format, flavor, is_new=is_new)
    if form is None:
        message = f"This model's backend cannot hold an answer to a {call.answer_format.kind}."
        raise ApiError(400, "unsupported_parameter", message, param="structured_outputs")
    body |= form
    if flavor not in SELF_SERVED:
        body |= {name: work.fields[name] for name in _PASSED if work.fields.get(name) is not None}
    return body


def limit_name(work: Work) -> str:
    """Under which name the limit goes up: as the client had it, for some models refuse one."""
    is_new = work.fields.get("max_completion_tokens") is not None
    return "max_completion_tokens" if is_new else "max_tokens"


def continued(body: Body, flavor: Flavor, prefix: str, reasoning: str | None = None) -> Body:
    """The same request, whose answer goes on behind `prefix`.

    `reasoning`: what the server puts before it in its template's own form (llama.cpp only).
    """
    message: Body = {"role": "assistant", "content": prefix}
    goes_on: Json = True
    if reasoning is not None:
        message["reasoning_content"] = reasoning
        goes_on = "content"  # `True` would go on reasoning while there is no text
    again = _with_message(body, message)
    again |= {"continue_final_message": goes_on, "add_generation_prompt": False}
    # Older ones of llama.cpp refuse a prefix while their template opens a block of reasoning.
    return without_thinking(again) if flavor == "llamacpp" else again


def asked_again(body: Body, nudge: str) -> Body:
    """The same request with a last word, for backends that cannot go on from a prefix."""
    return _with_message(body, {"role": "user", "content": nudge})


def without_thinking(body: Body) -> Body:
    """The same request, whose template opens no block of reasoning."""
    args = body.get("chat_template_kwargs")
    known = args if isinstance(args, dict) else {}
    return {**body, "chat_template_kwargs": {**known, "enable_thinking": False}}


def held_to_tool(body: Body, flavor: Flavor, name: str | None) -> Body:
    """The same request, to be answered by a call of this tool (any of them where None)."""
    if name is None:
        return {**body, "tool_choice": "required"}
    return {**body, **_named_tool(body.get("tools"), flavor, name)}


def _with_message(body: Body, message: Json) -> Body:
    messages = body["messages"]
    assert isinstance(messages, list)
    return {**body, "messages": [*messages, message]}


def placed(messages: Sequence[Message], segments: Sequence[Segment]) -> tuple[Message, ...]:
    """The conversation with every segment's text in its place; one without a place is left out."""
    by_message: dict[int, list[Segment]] = defaultdict(list)
    for segment in segments:
        by_message[segment.message].append(segment)
    return tuple(
        _with_segments(message, by_message[index]) if index in by_message else message
        for index, message in enumerate(messages)
    )


def _with_segments(message: Message, segments: Sequence[Segment]) -> Message:
    """From the last place on, so that the places before it stay what they are."""
    content, reasoning = list(message.content), message.reasoning
    cuts: list[tuple[int, int, int, str]] = []
    for number, segment in enumerate(segments):
        if segment.part == REASONING_PART:
            if reasoning is not None:
                at = len(reasoning) if segment.offset is None else segment.offset
                cuts.append((REASONING_PART, at, number, segment.text))
            continue
        place = _place(content, segment)
        if place is None and segment.part is None and not segment.offset:
            content.append(TextPart(""))
            place = len(content) - 1, 0
        if place is not None:
            cuts.append((*place, number, segment.text))
    for part, at, _, text in sorted(cuts, reverse=True):
        if part == REASONING_PART:
            assert reasoning is not None
            reasoning = reasoning[:at] + text + reasoning[at:]
        else:
            said = content[part]
            assert isinstance(said, TextPart)
            content[part] = TextPart(said.text[:at] + text + said.text[at:])
    return replace(message, content=tuple(content), reasoning=reasoning)


def _place(content: Sequence[Part], segment: Segment) -> tuple[int, int] | None:
    """The part and the offset in it, both counted from the whole text where no part is named."""
    texts = [(i, part.text) for i, part in enumerate(content) if isinstance(part, TextPart)]
    if segment.part is not None:
        texts = [(index, text) for index, text in texts if index == segment.part]
    if segment.offset is None:
        return (texts[-1][0], len(texts[-1][1])) if texts else None
    left = segment.offset
    for index, text in texts:
        if left <= len(text):
            return index, left
        left -= len(text)
    return None


def _with_call_ids(messages: Sequence[Message]) -> list[Message]:
    """Calls without an id get one, the same in every turn, and their results in order with them."""
    named, waiting, count = [], deque[str](), 0
    for message in messages:
        calls = []
        for call in message.calls:
            if not call.id:
                count += 1
                call = replace(call, id=f"call_auto_{count}")
                waiting.append(call.id)
            calls.append(call)
        message = replace(message, calls=tuple(calls))
        if message.role == "tool" and not message.call_id and waiting:
            message = replace(message, call_id=waiting.popleft())
        named.append(message)
    return named


def _message(message: Message, flavor: Flavor) -> Json:
    role = "system" if message.role == "developer" else message.role
    body: Body = {"role": role, "content": _content(message)}
    if message.calls:
        body["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.calls
        ]
    if message.call_id is not None:
        body["tool_call_id"] = message.call_id
    if message.name is not None:
        body["name"] = message.name
    if message.reasoning is not None:
        body["reasoning" if flavor == "openrouter" else "reasoning_content"] = message.reasoning
    return body


def _content(message: Message) -> Json:
    parts = message.content
    if not parts:
        return None if message.calls else ""
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    return [_part(part) for part in parts]


def _part(part: Part) -> Json:
    if isinstance(part, ImagePart):
        image: Body = {"url": part.url}
        if part.detail is not None:
            image["detail"] = part.detail
        return {"type": "image_url", "image_url": image}
    return {"type": "text", "text": part.text}


def _tools(tools: Sequence[Tool], choice: ToolChoice, flavor: Flavor, *, is_parallel: bool) -> Body:
    if not tools:
        return {}
    offered: list[Json] = [_tool(tool) for tool in tools]
    body: Body = {"tools": offered}
    if choice.mode == "named":
        body |= _named_tool(offered, flavor, choice.name or "")
    elif choice.mode != "auto":
        body["tool_choice"] = choice.mode
    if not is_parallel:
        body["parallel_tool_calls"] = False
    return body


def _named_tool(tools: Json, flavor: Flavor, name: str) -> Body:
    """Fields for a call of one tool. llama.cpp takes a named choice for none at all, and is offered
    that tool alone."""
    known = tools if isinstance(tools, list) else []
    alone = [tool for tool in known if _name_of(tool) == name]
    if flavor == "llamacpp" and alone:
        return {"tools": alone, "tool_choice": "required"}
    return {"tool_choice": {"type": "function", "function": {"name": name}}}


def _name_of(tool: Json) -> Json:
    function = tool.get("function") if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None


def _tool(tool: Tool) -> Json:
    function: Body = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _sampling(params: Params, flavor: Flavor) -> Body:
    """What is not neutral. Providers of other people's models refuse what they do not know."""
    named: dict[str, Json] = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "presence_penalty": params.presence_penalty or None,
        "frequency_penalty": params.frequency_penalty or None,
    }
    if flavor != "none":
        repetition = None if params.repetition_penalty == 1.0 else params.repetition_penalty
        name = "repeat_penalty" if flavor == "llamacpp" else "repetition_penalty"
        named |= {"top_k": params.top_k, "min_p": params.min_p, name: repetition}
    if flavor == "llamacpp" and not params.cache_prompt:
        named["cache_prompt"] = False
    body: Body = {key: value for key, value in named.items() if value is not None}
    if params.stop:
        body["stop"] = list(params.stop)
    if params.logit_bias:
        body["logit_bias"] = dict(params.logit_bias)
    if params.top_logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": params.top_logprobs}
    return body


def _thinking(work: Work, flavor: Flavor) -> Body:
    """Off is said to the template; how much of it is the monitor's, or the provider's own."""
    body: Body = {}
    args = dict(work.call.template_args or {})
    if not work.plan.thinking.on:
        args["enable_thinking"] = False
    if args and flavor in SELF_SERVED:
        body["chat_template_kwargs"] = args
    if work.effort is not None and (flavor not in SELF_SERVED or work.effort in _EFFORTS_OF_ALL):
        body["reasoning_effort"] = work.effort
    return body


def _limit(asked: int | None, cap: int | None) -> int | None:
    known = [limit for limit in (asked, cap) if limit is not None]
    return min(known) if known else None


def encoded(body: Body) -> bytes:
    """The body as it is sent."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def prompt_texts(work: Work) -> Iterator[str]:
    """Everything of a prompt that has words."""
    for message in work.call.messages:
        yield message.text
        yield message.reasoning or ""
        yield from (call.arguments for call in message.calls)
    yield from (segment.text for segment in work.plan.segments)
    yield from (tool.description or "" for tool in work.call.tools)
