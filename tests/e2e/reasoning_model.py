"""The embedded model with a template that lets it reason, call tools, and begin an answer as told.

Its own template knows no reasoning. The weights and everything else of the file stay as they are.
"""

import struct
from pathlib import Path

# `opening` (of `chat_template_kwargs`): how the answer begins, as a part of the prompt.
TEMPLATE = """\
{%- if tools -%}
<|im_start|>system
You can call these functions:
{% for tool in tools %}{{ tool | tojson }}
{% endfor -%}
<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] -%}
<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}
<|im_end|>
{% endfor -%}
<|im_start|>assistant
{% if enable_thinking %}<think>
{% else %}{{ opening or '' }}{% endif -%}
{#- </think> -#}
"""
KEY = b"tokenizer.chat_template"
STRING = 8  # the type's number. Source: the GGUF specification, "gguf_metadata_value_type"
ALIGNMENT = 32  # of the tensors behind the metadata, where a file says nothing else


def write_model(model: Path, target: Path) -> Path:
    """Writes a copy of the file with this template in place of its own."""
    data = model.read_bytes()
    at = data.index(KEY) + len(KEY)
    kind, length = struct.unpack_from("<IQ", data, at)
    assert kind == STRING
    text = at + 12
    template = TEMPLATE.encode()
    # What follows must stay where its alignment is, so the rest is a comment.
    comment = b"{#" + b" " * ((length - len(template) - 4) % ALIGNMENT) + b"#}"
    template += comment
    assert (len(template) - length) % ALIGNMENT == 0
    head = data[:at] + struct.pack("<IQ", kind, len(template)) + template
    target.write_bytes(head + data[text + length :])
    return target
