"""What no text of an operator's may hold: words that models and we ourselves read as structure.

Knows no tokenizer: a family's special tokens have one of these forms. Nothing is repaired.
"""

import re

_MARKERS = re.compile(
    r"""
      <\|[^|<>\n]{1,64}\|>                    # ChatML, Llama 3, Qwen, Phi
    | <[｜][^｜<>\n]{1,64}[｜]>               # DeepSeek
    | </?(?:think|tool_call|tool_response|tools)>
    | <(?:function|parameter)=[^>\n]{0,64}>?  # calls of Qwen 3 Coder
    | </(?:function|parameter)>
    | </?(?:start|end)_of_turn>               # Gemma
    | <(?:bos|eos|pad|unk|mask)>
    | </?s>                                   # SentencePiece
    | \[/?INST\] | <</?SYS>>                  # Llama 2, Mistral
    | </?tandem_\w+>?                         # our own
    """,
    re.VERBOSE | re.IGNORECASE,
)


def marker_in(text: str) -> str | None:
    """The first special token, template marker or tag of ours in a text."""
    found = _MARKERS.search(text)
    return None if found is None else found.group()
