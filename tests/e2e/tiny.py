"""A tiny random checkpoint as a folder that the engine loads, with a template for everything."""

import json
from pathlib import Path

from tests.worker.tiny_checkpoints import write_tiny
from tests.worker.tiny_text import tiny_tokenizer

TEMPLATE = """\
{%- for tool in tools or [] %}{{ tool | tojson }}
{% endfor -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] -%}
<tool_call>{{ call.function | tojson }}</tool_call>
{%- endfor -%}
<|im_end|>
{% endfor -%}
<|im_start|>assistant
{% if style %}{{ style }}{% endif -%}
{%- if enable_thinking %}<think>
{% else %}<think>

</think>

{% endif -%}
"""


def write_checkpoint(folder: Path, kind: str = "llama") -> Path:
    """Writes it; a random model hardly ever ends by itself."""
    write_tiny(kind, folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 4096
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(tiny_tokenizer().serialized)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    return folder
