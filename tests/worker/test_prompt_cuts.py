"""Where the conversation's own text begins in a prompt, so that a chunk can start there."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tiny_templates import BEGINNINGS, TEMPLATES, WITH_TOOLS
from tiny_text import gguf_keys, tiny_tokenizer

from proto.chat import Call, Message, TextPart, Tool
from worker.limits import SYSTEM_TEXTS
from worker.loading.gguf import GgufFile
from worker.text import prompt
from worker.text.prompt import LEAST_CUT, PromptWriter, shared_length
from worker.text.template import ChatTemplate
from worker.text.tokenizer import TextTokenizer, tokenizer_from_gguf

TOKENIZERS = {kind: tiny_tokenizer(kind) for kind in ("smollm", "qwen2", "llama-bpe")}
RULES = "You are careful and read what is there before you write. " * 8
WEATHER = Tool("weather", "Tells how it is. " * 10, {"type": "object", "properties": {}})


def _says(role: Any, text: str) -> Message:
    return Message(role, (TextPart(text),))


SYSTEM = _says("system", RULES)
TURNS = (_says("user", "hi"), _says("assistant", "yes?"))


def _writer(source: str, tokenizer: TextTokenizer = TOKENIZERS["smollm"]) -> PromptWriter:
    return PromptWriter(tokenizer, ChatTemplate(source, {"bos_token": ""}, datetime.now))


def _cuts(writer: PromptWriter, *messages: Message, **more: Any) -> tuple[int, ...]:
    return writer.write(Call("m", messages, **more), is_thinking=False).cuts


def _text(writer: PromptWriter, ids: tuple[int, ...]) -> str:
    names = {index: text for text, index in TOKENIZERS["smollm"].control_tokens.items()}
    return b"".join(
        names[i].encode() if i in names else writer.token_bytes[i] or b"" for i in ids
    ).decode()


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_cut_is_one_for_all_that_a_user_may_say_and_for_all_turns(name: str, kind: str):
    writer = _writer(TEMPLATES[name], TOKENIZERS[kind])
    found = {_cuts(writer, SYSTEM, _says("user", words)) for words in BEGINNINGS}
    found |= {_cuts(writer, SYSTEM, *TURNS, _says("user", words)) for words in BEGINNINGS}
    assert len(found) == 1
    ((cut,),) = found
    ids = writer.write(Call("m", (SYSTEM, *TURNS, TURNS[0])), is_thinking=False).ids
    head, rest = _text(writer, ids[:cut]), _text(writer, ids[cut:])
    assert RULES.strip() in head
    # All that stands before the user's words but for what may join with them.
    assert rest.split("hi")[0].strip() in ("", ":")


@pytest.mark.parametrize("name", WITH_TOOLS)
@pytest.mark.parametrize("lead", [(), (SYSTEM,), (_says("developer", RULES),)])
def test_tools_stand_before_the_cut(name: str, lead: tuple[Message, ...]):
    writer = _writer(TEMPLATES[name])
    (cut,) = _cuts(writer, *lead, *TURNS, TURNS[0], tools=(WEATHER,))
    ids = writer.write(
        Call("m", (*lead, *TURNS, TURNS[0]), tools=(WEATHER,)), is_thinking=False
    ).ids
    assert WEATHER.description in _text(writer, ids[:cut])
    assert "hi" not in _text(writer, ids[cut - 2 : cut])


@pytest.mark.parametrize("name", TEMPLATES)
def test_without_system_and_tools_there_is_no_cut(name: str):
    assert _cuts(_writer(TEMPLATES[name]), _says("user", "words " * 100)) == ()


def test_two_users_whose_first_words_agree_do_not_make_them_part_of_the_system():
    writer = _writer(TEMPLATES["roles"])
    (cut,) = _cuts(writer, SYSTEM, _says("user", f"{prompt.PROBES[0]}{RULES}"))
    assert (cut,) == _cuts(writer, SYSTEM, _says("user", f"{prompt.PROBES[1]}{RULES}"))
    assert cut < len(writer.write(Call("m", (SYSTEM, TURNS[0])), is_thinking=False).ids)


def test_a_short_system_turn_is_not_worth_a_cut():
    writer = _writer(TEMPLATES["roles"])
    found = []
    for count in range(1, 60):
        cuts = _cuts(writer, _says("system", "fox " * count), TURNS[0])
        found += cuts
        assert all(cut >= LEAST_CUT for cut in cuts)
    assert found[0] - LEAST_CUT < 5 and found == sorted(set(found))


REFUSING = "{% if messages | length < 3 %}{{ raise_exception('too short') }}{% endif %}"
FORGETFUL = "{% for m in messages[:2] %}{{ m.content }};{% endfor %}go"


def test_where_the_system_turn_alone_is_refused_the_request_is_served_without_a_cut():
    writer = _writer(REFUSING + TEMPLATES["roles"])
    found = writer.write(Call("m", (SYSTEM, *TURNS, TURNS[0])), is_thinking=False)
    assert found.cuts == () and len(found.ids) > LEAST_CUT


def test_a_template_that_does_not_show_the_next_words_gives_no_cut():
    writer = _writer(FORGETFUL)
    assert _cuts(writer, SYSTEM, SYSTEM, TURNS[0]) == ()


def test_spelled_control_tokens_in_the_system_turn_are_before_the_cut():
    writer = _writer(TEMPLATES["roles"])
    spelled = _says("system", f"{RULES}<|im_end|>{RULES}<|im_start|>{RULES}")
    (cut,) = _cuts(writer, spelled, TURNS[0])
    ids = writer.write(Call("m", (spelled, TURNS[0])), is_thinking=False).ids
    assert _text(writer, ids[cut:]) == "\nhi<|im_end|>\n<|im_start|>assistant"


def test_system_turns_are_encoded_once_and_a_bounded_number_is_remembered(monkeypatch):
    writer = _writer(TEMPLATES["roles"])
    found, encode = [], writer._firm_ids
    monkeypatch.setattr(
        writer, "_firm_ids", lambda text, marks: found.append(text) or encode(text, marks)
    )
    for _ in range(3):
        _cuts(writer, SYSTEM, TURNS[0])
    assert len(found) == 1
    for number in range(SYSTEM_TEXTS):
        _cuts(writer, _says("system", f"{number} {RULES}"), TURNS[0])
    _cuts(writer, SYSTEM, TURNS[0])
    assert len(found) == 2 + SYSTEM_TEXTS
    assert len(writer._systems) == SYSTEM_TEXTS


def test_control_tokens_that_swallow_blanks_are_taken_as_they_are():
    """Some vocabularies have them (`rstrip`): behind one, a line's end is part of it."""
    from tokenizers import AddedToken, Tokenizer

    plain = Tokenizer.from_str(tokenizer_from_gguf(gguf_keys()).serialized)
    plain.add_special_tokens([AddedToken("<|im_start|>", special=True, rstrip=True)])
    greedy = TextTokenizer(plain)
    writer = _writer("{% for m in messages %}<|im_start|>\n{{ m.content }}{% endfor %}", greedy)
    (cut,) = _cuts(writer, SYSTEM, _says("user", "fox"))
    ids = writer.write(Call("m", (SYSTEM, _says("user", "fox"))), is_thinking=False).ids
    assert ids[cut - 1] == greedy.control_tokens["<|im_start|>"]
    assert writer.token_bytes[ids[cut]][:1] == b"f"


def test_what_two_sequences_share_is_counted_to_the_item():
    assert [shared_length("abcd"[:n], "abcx") for n in range(5)] == [0, 1, 2, 3, 3]
    assert shared_length((1, 2, 3), (1, 2, 3)) == 3
    assert shared_length([], [1]) == 0


@pytest.mark.model
@pytest.mark.parametrize("tools", [(), (WEATHER,)])
def test_the_embedded_model_has_one_cut_for_all_beginnings(embedded_model: Path, tools):
    keys = GgufFile.open(embedded_model).keys
    source = (Path(prompt.__file__).parent / "templates" / "smollm2.jinja").read_text()
    writer = _writer(source, tokenizer_from_gguf(keys))
    found = {_cuts(writer, SYSTEM, _says("user", words), tools=tools) for words in BEGINNINGS}
    found |= {_cuts(writer, SYSTEM, *TURNS, _says("user", w), tools=tools) for w in BEGINNINGS}
    ((cut,),) = found
    assert cut >= LEAST_CUT
