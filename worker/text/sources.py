"""Tokenizer and template out of what a checkpoint holds of text. Knows no weights and no run."""

from datetime import datetime
from importlib.resources import files

from worker.faults import StartFault
from worker.loading.locate import TextFiles
from worker.models.registry import NAMED_TEMPLATES
from worker.text.template import ChatTemplate
from worker.text.tokenizer import TextTokenizer, tokenizer_from_gguf, tokenizer_from_json


def tokenizer_of(text: TextFiles) -> TextTokenizer:
    """Raises: StartFault where there is none, or one of an unknown kind."""
    if text.tokenizer_json is not None:
        return tokenizer_from_json(text.tokenizer_json)
    if text.gguf_keys is None:
        raise StartFault("The model's folder holds no tokenizer.json.")
    return tokenizer_from_gguf(text.gguf_keys)


def template_of(text: TextFiles, model: str) -> ChatTemplate | None:
    """`model`: as in `worker.model`; some registry names have a template of ours."""
    source = text.template
    if (ours := NAMED_TEMPLATES.get(model)) is not None:
        source = files("worker.text").joinpath("templates", ours).read_text("utf-8")
    return None if source is None else ChatTemplate(source, text.special, datetime.now)


def masked_ids(tokenizer: TextTokenizer, width: int) -> tuple[int, ...]:
    """Ids below `width` that no token has."""
    known = tokenizer.token_bytes
    return tuple(i for i in range(width) if i >= len(known) or known[i] is None)
