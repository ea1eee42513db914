"""From an Embed to the token ids of its texts. Knows no tensor and no queue."""

from proto.chat import Call
from proto.faults import Refusal
from proto.limits import EMBED_TEXTS_ASKED
from worker.text.prompt import PromptWriter


def encode_texts(
    texts: tuple[str, ...], writer: PromptWriter, *, max_len: int, vocab_size: int
) -> tuple[tuple[int, ...], ...]:
    """The ids of each text, with the begin and end tokens that the model wants around it.

    Raises: Refusal that names the text (`texts[3]`).
    """
    if not 1 <= len(texts) <= EMBED_TEXTS_ASKED:
        sentence = f"a question has 1 to {EMBED_TEXTS_ASKED} texts"
        raise Refusal("bad_request", sentence, param="texts")
    encoded = []
    for index, text in enumerate(texts):
        try:
            encoded.append(_ids(text, writer, max_len, vocab_size))
        except Refusal as refusal:
            raise Refusal(refusal.code, refusal.detail, param=f"texts[{index}]") from refusal
    return tuple(encoded)


def _ids(text: str, writer: PromptWriter, max_len: int, vocab_size: int) -> tuple[int, ...]:
    call = Call(model="", messages=(), prompt=text)  # a text is a prompt that nothing is added to
    if (least := writer.least_tokens(call)) > max_len:
        raise _too_long(f"at least {least}", max_len)
    ids = writer.write(call, is_thinking=False).ids
    if len(ids) > max_len:
        raise _too_long(str(len(ids)), max_len)
    if max(ids) >= vocab_size:
        raise Refusal("bad_request", "a token is unknown to the model")
    return ids


def _too_long(tokens: str, max_len: int) -> Refusal:
    return Refusal("too_long", f"the text has {tokens} tokens; this model takes {max_len}")
