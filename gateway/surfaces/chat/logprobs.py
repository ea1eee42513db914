"""Log-probabilities as the chat surface shows them. Knows no stream.

Source: OpenAI API reference, "The chat completion object", `logprobs`.
"""

from collections.abc import Iterable
from typing import Any

from proto.events import Logprobs, TokenLogprob

UNREADABLE = "\ufffd"


def logprobs_object(found: Iterable[Logprobs]) -> dict[str, Any]:
    """The tokens of a piece, each with the likeliest others."""
    content = [
        {**_token(one.chosen), "top_logprobs": [_token(other) for other in one.top]}
        for one in found
    ]
    return {"content": content, "refusal": None}


def _token(token: TokenLogprob) -> dict[str, Any]:
    # Half a character has no text; its bytes do not come over the link.
    is_whole = UNREADABLE not in token.text
    spelled = list(token.text.encode()) if is_whole else None
    return {"token": token.text, "logprob": token.logprob, "bytes": spelled}
