"""Chat templates: what they are given, what they may do, and how they fail."""

import json
from datetime import datetime
from importlib.resources import files
from pathlib import Path

import pytest

from proto.chat import Message, TextPart, Tool, ToolCall
from proto.faults import Refusal
from proto.limits import TEMPLATE_BYTES, TEMPLATE_LOOP_STEPS, TEMPLATE_OUTPUT_BYTES
from worker.faults import LoadFault
from worker.loading.gguf import GgufFile
from worker.models.registry import NAMED_TEMPLATES
from worker.text.template import ChatTemplate

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>"}, lambda: datetime(2026, 2, 3))


def _user(text: str) -> Message:
    return Message("user", (TextPart(text),))


def _render(source: str, *messages: Message, **arguments: object) -> str:
    return _template(source).render(messages or (_user("hi"),), arguments)


def test_messages_are_rendered_up_to_where_the_assistant_goes_on():
    assert _render(CHATML, _user("a"), Message("assistant", (TextPart("b"),))) == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_developer_message_is_a_system_message_to_the_template():
    assert _render("{{ messages[0].role }}", Message("developer")) == "system"


def test_blocks_are_trimmed_and_special_tokens_and_time_are_at_hand():
    source = "{% if true %}\n  {% set x = 1 %}\n{{ bos_token }}{% endif %}\n"
    assert _render(source) == "<s>"
    assert _render("{{ strftime_now('%d %b %Y') }}") == "03 Feb 2026"


def test_arguments_of_calls_are_objects_and_text_that_is_no_json_is_kept():
    good = Message("assistant", calls=(ToolCall("c1", "f", '{"a": 1}'),))
    bad = Message("assistant", calls=(ToolCall("c2", "f", "{oops"),))
    source = "{% for m in messages %}{{ m.tool_calls[0].function.arguments | tojson }};{% endfor %}"
    assert _render(source, good, bad) == '{"a": 1};{"raw": "{oops"};'


def test_b54_tojson_writes_markup_and_other_scripts_as_they_are():
    assert _render("{{ messages[0].content | tojson }}", _user("<b>&'é")) == '"<b>&\'é"'
    assert json.loads(_render("{{ {'a': [1]} | tojson(indent=2) }}")) == {"a": [1]}


def test_what_the_caller_wrote_is_marked_and_nothing_else():
    source = "{{ messages[0].role }}|{{ messages[0].content }}|{{ style }}|{{ bos_token }}"
    text = _template(source).render((_user("hi"),), {"style": "x"}, str.upper)
    assert text == "USER|HI|X|<s>"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content.nope.nope }}", "has no attribute"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recurses"),
        ("{% for i in range(100000000) %}{% endfor %}", "OverflowError"),
        (
            "{% for i in range(400) %}{% for j in range(400) %}{% endfor %}{% endfor %}",
            str(TEMPLATE_LOOP_STEPS),
        ),
        ("{{ 'a' * 100000000 }}", "repeats"),
        ("{{ 10 ** 10000000 }}", "powers"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for i in range(1000) %}{{ messages[0].content * 99 }}{% endfor %}", "bytes"),
    ],
)
def test_a_template_that_fails_or_passes_a_limit_is_a_refusal(source: str, sentence: str):
    with pytest.raises(Refusal, match=sentence) as caught:
        _render(source, _user("x" * 1000))
    assert (caught.value.code, caught.value.param) == ("bad_request", "messages")


def test_loops_up_to_the_limit_are_allowed_and_counted_anew_at_each_render():
    template = _template("{% for i in range(90000) %}{{ '.' if loop.first else '' }}{% endfor %}")
    assert [template.render((_user("x"),), {}) for _ in range(2)] == [".", "."]


def test_output_is_measured_in_bytes_and_just_fits():
    wide = "é" * (TEMPLATE_OUTPUT_BYTES // 2)
    assert _render("{{ messages[0].content }}", _user(wide)) == wide
    with pytest.raises(Refusal, match="bytes"):
        _render("{{ messages[0].content }}", _user(wide + "é"))


@pytest.mark.parametrize(
    "source",
    ["{% if %}", "x" * (TEMPLATE_BYTES + 1), "{% for x in y recursive %}{% endfor %}"],
)
def test_a_template_that_cannot_be_used_is_found_at_load(source: str):
    with pytest.raises(LoadFault, match="chat template"):
        _template(source)


def test_the_hash_tells_templates_apart():
    assert _template("a").hash != _template("b").hash


# Our template of the embedded model.

CHATS = (
    (_user("hi"),),
    (Message("system", (TextPart("Be brief."),)), _user("hi")),
    (_user("a"), Message("assistant", (TextPart("b"),)), _user("c")),
    (Message("developer", (TextPart("x"),)), _user("é\n\n{{ y }}")),
    (Message("assistant", (TextPart("b"),)), Message("system", (TextPart("s"),))),
)
WEATHER = Tool("weather", "Tells <it>", {"type": "object", "properties": {}})


def _ours() -> ChatTemplate:
    path = files("worker.text").joinpath("templates", NAMED_TEMPLATES["smollm2"])
    return _template(path.read_text("utf-8"))


@pytest.mark.model
def test_without_tools_ours_is_the_models_own_to_the_byte(embedded_model: Path):
    shipped = _template(GgufFile.open(embedded_model).keys["tokenizer.chat_template"])
    for messages in CHATS:
        assert _ours().render(messages, {}) == shipped.render(messages, {})


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_with_tools_ours_has_them_in_the_system_turn_and_results_in_user_turns(system):
    call = ToolCall("c1", "weather", '{"city": "Köln"}')
    said = Message("assistant", (TextPart("Let me see."),), calls=(call,))
    results = tuple(Message("tool", (TextPart(text),), call_id="c1") for text in ("rain", "sun"))
    head = (Message("system", (TextPart(system),)),) if system else ()
    text = _ours().render((*head, _user("hi"), said, *results, _user("so?")), {}, tools=(WEATHER,))
    first, rest = text.split("<|im_end|>\n", 1)
    begins = system or "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert first.startswith(f"<|im_start|>system\n{begins}\n\n")
    assert (
        '{"type": "function", "function": {"name": "weather", "description": "Tells <it>"' in first
    )
    assert rest == (
        "<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\nLet me see.\n<tool_call>\n"
        '{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nrain\n</tool_response>\n"
        "<tool_response>\nsun\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nso?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_says_what_a_model_was_taught_to_write():
    assert (_ours().call_form, _ours().takes_tools) == ("hermes", True)
    assert _ours().reasoning.opens == "none"
    xml = _template("{{ tools }}<function=<think></think>")
    assert (xml.call_form, xml.reasoning.opens) == ("xml", "model")
    assert not _template("{{ messages }}").takes_tools
