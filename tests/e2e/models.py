"""Models of which the words alone are there: tokenizers, templates, and how each writes answers.

Knows no weights and no conversation.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Literal

import pytest

from gateway.embedded_model import model_path
from gateway.settings.types import Settings
from tests.conductor.recorded.talk import Answer
from tests.e2e.tiny import TEMPLATE
from tests.worker.tiny_text import tiny_tokenizer
from worker.grammar.compiler import GrammarCompiler
from worker.loading.locate import open_checkpoint
from worker.text.prompt import PromptWriter
from worker.text.sources import template_of, tokenizer_of
from worker.text.template import ChatTemplate
from worker.text.tokenizer import TextTokenizer

Name = Literal["plain", "embedded", "tiny", "reasoning"]
EMBEDDED = Path(os.environ.get("TANDEM_TEST_MODEL") or model_path(Settings().state_dir, "smollm2"))

# As Qwen's: reasoning stands in the history behind a person's last words alone, and where there was
# none the prompt closes the block itself.
REASONING = """\
{%- if tools -%}
<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif -%}
{%- set seen = namespace(last=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set seen.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
<|im_start|>assistant
{% if loop.index0 > seen.last and message.reasoning_content -%}
<think>
{{ message.reasoning_content.strip('\\n') }}
</think>

{% endif -%}
{{- message.content -}}
{%- for call in message.tool_calls or [] -%}
{{- '\\n' if message.content or not loop.first -}}
<tool_call>
{{ call.function | tojson }}
</tool_call>
{%- endfor -%}
<|im_end|>
{% elif message.role == 'tool' -%}
{%- if messages[loop.index0 - 1].role != 'tool' -%}<|im_start|>user{%- endif %}

<tool_response>
{{ message.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}<|im_end|>
{% endif -%}
{%- else -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif -%}
{%- endfor -%}
<|im_start|>assistant
<think>
{% if not enable_thinking %}
</think>

{% endif -%}
"""


@dataclass(frozen=True)
class Model:
    """What a worker knows of one. `can_reason`: as it tells the gateway.

    `written`: an answer as it writes it, without its reasoning. `shows_thoughts`: its template
    writes reasoning that a client sends back.
    """

    tokenizer: TextTokenizer
    template: ChatTemplate
    written: Callable[[Answer], str]
    can_reason: bool
    end_ids: tuple[int, ...]
    shows_thoughts: bool = False

    @cached_property
    def writer(self) -> PromptWriter:
        return PromptWriter(self.tokenizer, self.template)

    @cached_property
    def compiler(self) -> GrammarCompiler:
        width = len(self.tokenizer.token_bytes)
        return GrammarCompiler(self.tokenizer.serialized, width=width, end_ids=self.end_ids)


def model_of(name: Name) -> Model:
    """The model of a name; the test is skipped where the embedded one is not there."""
    if name == "embedded":
        return _embedded()
    tokenizer = tiny_tokenizer()
    source = {"plain": _ours(), "tiny": TEMPLATE, "reasoning": REASONING}[name]
    return Model(
        tokenizer,
        ChatTemplate(source, {}, datetime.now),
        _written_close if name == "tiny" else _written,
        name != "plain",
        (tokenizer.control_tokens["<|im_end|>"],),
        shows_thoughts=name == "reasoning",
    )


def _embedded() -> Model:
    if not EMBEDDED.is_file():
        pytest.skip("The embedded model is not there: run `tandem fetch-model` once.")
    checkpoint = open_checkpoint(EMBEDDED)
    template = template_of(checkpoint.text, "smollm2")
    assert template is not None
    tokenizer = tokenizer_of(checkpoint.text)
    return Model(tokenizer, template, _written, False, tuple(checkpoint.end_ids))


def _ours() -> str:
    return files("worker.text").joinpath("templates", "smollm2.jinja").read_text("utf-8")


def _written(answer: Answer) -> str:
    """Calls on lines of their own."""
    calls = [f"<tool_call>\n{_call(*call)}\n</tool_call>" for call in answer.calls]
    return "\n".join([answer.text] * bool(answer.text) + calls)


def _written_close(answer: Answer) -> str:
    """Calls right behind the text."""
    return answer.text + "".join(f"<tool_call>{_call(*call)}</tool_call>" for call in answer.calls)


def _call(name: str, arguments: object) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
