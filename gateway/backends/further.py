"""The further requests of one answer: each goes on where the last one was. Knows no socket.

They are made of the first one's body, so that servers find its prompt among what they keep.
"""

from dataclasses import replace

from conductor.monitor.verdicts import CallForm, Form
from gateway.backends.answer_form import Body, form_fields
from gateway.backends.chat_body import (
    THINK_CLOSE,
    THINK_OPEN,
    asked_again,
    continued,
    held_to_tool,
    without_thinking,
)
from gateway.backends.chat_reader import estimate
from gateway.backends.legs import Ask
from gateway.backends.written import Written
from gateway.settings.types import Flavor
from proto.plan import REASONING_PART, HiddenText


def closing(body: Body, flavor: Flavor, written: Written, bridge: str, *, was_whole: bool) -> Ask:
    """The answer goes on behind its reasoning, which ends with `bridge`."""
    thought = written.reasoning + bridge
    ask = _from_prefix(body, flavor, written, thought, written.text, was_whole=was_whole)
    return replace(ask, hidden=HiddenText(bridge, REASONING_PART, len(written.reasoning)))


def going_on(body: Body, flavor: Flavor, written: Written, text: str, *, has_prefix: bool) -> Ask:
    """The answer goes on behind `text`, which the client does not see.

    Without `has_prefix` the text is a last word to the model instead.
    """
    if not has_prefix:
        again = asked_again(_limited(body, written), text)
        return Ask(again, "continuation", prefix_tokens=estimate(text), was_whole=True)
    thought = written.reasoning or None
    ask = _from_prefix(body, flavor, written, thought, written.text + text, was_whole=True)
    return replace(ask, hidden=HiddenText(text, None, len(written.text)))


def without_prefix(body: Body, written: Written) -> Ask:
    """The answer begins anew and without reasoning, for a server that took no prefix."""
    again = without_thinking(_limited(body, written))
    return Ask(again, "continuation", is_closed=True)


def held_to(
    body: Body, flavor: Flavor, form: Form | None, note: str | None, index: int | None
) -> Ask:
    """A call is made again, or the whole answer where `index` is None, in this form."""
    if isinstance(form, CallForm):
        again = held_to_tool(body, flavor, form.tool)
    else:
        again = body | ({} if form is None else form_fields(form, flavor) or {})
    if note is not None:
        again = asked_again(again, note)
    tokens = estimate(note or "")
    return Ask(again, "regeneration", call_index=index, prefix_tokens=tokens, was_whole=True)


def _from_prefix(
    body: Body,
    flavor: Flavor,
    written: Written,
    thought: str | None,
    text: str,
    *,
    was_whole: bool,
) -> Ask:
    """The answer goes on behind `thought`, where there was any, and `text`."""
    limited = _limited(body, written)
    prefix = text if thought is None else f"{THINK_OPEN}{thought}{THINK_CLOSE}{text}"
    # llama.cpp's template writes the block itself: one in the text would be the second.
    is_apart = flavor == "llamacpp" and written.is_split and thought is not None
    begun = (text, thought) if is_apart else (prefix, None)
    return Ask(
        continued(limited, flavor, *begun),
        "continuation",
        is_closed=True,
        prefix_tokens=estimate(prefix),
        goes_on=True,
        was_whole=was_whole,
    )


def _limited(body: Body, written: Written) -> Body:
    """With what is left of the client's limit."""
    left: Body = {}
    for name in ("max_tokens", "max_completion_tokens"):
        if isinstance(limit := body.get(name), int):
            left[name] = max(limit - written.shown_tokens, 1)
    return body | left
