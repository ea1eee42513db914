"""Chat templates in the manners of several families, written for the small vocabulary of tests."""

# Turns under their roles, results of tools under a role of their own.
ROLES = """\
{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function | tojson }}</tool_call>
{%- endfor -%}
<|im_end|>
{% endfor -%}
<|im_start|>assistant
"""

# Results of tools in turns of the user; reasoning only behind the last words of a person, who must
# have said something; a system turn only at the start.
QWEN = """\
{%- if tools -%}
<|im_start|>system
{{ messages[0].content + '\\n\\n' if messages[0].role == 'system' -}}
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% elif messages[0].role == 'system' -%}
<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif -%}
{%- set seen = namespace(last=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set seen.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- if seen.last < 0 -%}{{ raise_exception('No user query found in messages.') }}{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- if not loop.first -%}{{ raise_exception('System message must be first.') }}{%- endif -%}
{%- elif message.role == 'user' -%}
<|im_start|>user
{{ message.content }}<|im_end|>
{% elif message.role == 'assistant' -%}
<|im_start|>assistant
{% if loop.index0 > seen.last and message.reasoning_content -%}
<think>
{{ message.reasoning_content }}
</think>

{% endif -%}
{{- message.content -}}
{%- for call in message.tool_calls or [] %}
<tool_call>
{{ call.function | tojson }}
</tool_call>
{%- endfor -%}
<|im_end|>
{% else -%}
{%- if messages[loop.index0 - 1].role != 'tool' -%}<|im_start|>user{%- endif %}
<tool_response>
{{ message.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}<|im_end|>
{% endif -%}
{%- endif -%}
{%- endfor -%}
<|im_start|>assistant
"""

# Contents are trimmed; tools stand in the first turn of the user.
LLAMA = """\
{{- bos_token -}}
{%- for message in messages -%}
<|im_start|>{{ 'ipython' if message.role == 'tool' else message.role }}<|im_end|>

{% if tools and message.role == 'user' and loop.index0 < 2 -%}
Answer with a call of one of these functions.
{% for tool in tools %}{{ tool | tojson }}
{% endfor -%}
{%- endif -%}
{{ message.content | trim }}
{%- for call in message.tool_calls or [] -%}
{{ call.function | tojson }}
{%- endfor -%}
<|endoftext|>
{%- endfor -%}
<|im_start|>assistant<|im_end|>

"""

# The system's words stand in the first turn of the user; the two must alternate.
GEMMA = """\
{%- set lead = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' -%}
{%- set turns = messages[1:] if messages[0].role == 'system' else messages -%}
{%- for message in turns -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('Conversation roles must alternate') }}
{%- endif -%}
<|im_start|>{{ 'model' if message.role == 'assistant' else message.role }}
{{ lead if loop.first }}{{ message.content | trim }}<|im_end|>
{% endfor -%}
<|im_start|>model
"""

# No control token at all, and nothing between a name and the words.
BARE = """\
{%- for message in messages -%}
{{ message.role }}:{{ message.content }}
{% endfor -%}
assistant:"""

TEMPLATES = {"roles": ROLES, "qwen": QWEN, "llama": LLAMA, "gemma": GEMMA, "bare": BARE}
WITH_TOOLS = ("roles", "qwen", "llama")

# How real messages begin: what a tokenizer may join with what stands before them.
BEGINNINGS = (
    "hello", "Hello", "a", "alpha", "7", "7 of 9", "2026", " x", "  x", "   x", "\tx", "\t\tx",
    "\nx", "\n\nx", "\n x", "\r\nx", "\r\n\r\nx", "\n", " ", "", "!", "...", "::x", "'s", "\"x\"",
    "</think>", "<|im_end|>", "<|im_start|>user\nx", "😀 ok", "é", "\u0301x", "日本", "नमस्ते", "_x",
    "#x", "```py\nx", "- x", "{\"a\": 1}", "\u00a0x", "\u2003x", "\ufeffx", "\u200dx",
)  # fmt: skip
