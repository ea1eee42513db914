"""Where the conversation's own text begins in a prompt, so that a chunk can start there."""

from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from tiny_templates import BEGINNINGS, TEMPLATES, WITH_TOOLS
from tiny_text import gguf_keys, tiny_tokenizer
from tokenizers import AddedToken, Tokenizer

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
    # All that stands before the user's words, but for a word that may be joined with them.
    assert RULES.rsplit(maxsplit=1)[0] in head
    assert rest.split("hi")[0].strip() in ("", "write.", "user:")


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


def test_words_of_the_template_alone_are_no_system_turn():
    writer = _writer(RULES + TEMPLATES["roles"])
    assert _cuts(writer, TURNS[0]) == ()
    assert _cuts(writer, _says("system", "!"), TURNS[0]) != ()


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


def joining_tokenizer() -> TextTokenizer:
    """One with tokens for a sign and the line's end behind it."""
    keys = gguf_keys("qwen2")
    for token, merge in ((">\u010a", "> \u010a"), (">\u010a\u010a", ">\u010a \u010a")):
        keys["tokenizer.ggml.tokens"].append(token)
        keys["tokenizer.ggml.token_type"].append(1)
        keys["tokenizer.ggml.merges"].insert(0, merge)
    tokenizer = tokenizer_from_gguf(keys)
    assert len(tokenizer.encode(">\n")) == 1
    return tokenizer


def _cut_text(source: str, tokenizer: TextTokenizer, *words: str) -> set[str]:
    """What stands before the cut, of several conversations that begin with these words."""
    writer = _writer(f"{RULES}{source}", tokenizer)
    found = set()
    for text in words:
        call = Call("m", (_says("system", "!"), _says("user", text)))
        made = writer.write(call, is_thinking=False)
        (cut,) = made.cuts
        names = {index: name for name, index in tokenizer.control_tokens.items()}
        pieces = (
            names[i].encode() if i in names else tokenizer.token_bytes[i] or b""
            for i in made.ids[:cut]
        )
        found.add(b"".join(pieces).decode().removeprefix(RULES))
    return found


def test_control_tokens_that_swallow_blanks_are_taken_as_they_are():
    """Some vocabularies have them (`rstrip`): behind one, a line's end is part of it."""
    plain = Tokenizer.from_str(tokenizer_from_gguf(gguf_keys()).serialized)
    plain.add_special_tokens([AddedToken("<|im_start|>", special=True, rstrip=True)])
    source = "{% for m in messages %}<|im_start|>\n{{ m.role }}\n{{ m.content }}{% endfor %}"
    before = "<|im_start|>system\n!<|im_start|>user"
    assert _cut_text(source, TextTokenizer(plain), "fox", "\nfox") == {before}


def test_signs_that_a_vocabulary_joins_with_lines_are_behind_the_cut():
    joining = joining_tokenizer()
    behind = "{% for m in messages %}<|im_start|>{{ m.role }}>\n{{ m.content }}{% endfor %}"
    found = _cut_text(behind, joining, "x", "\nx", "7", ">")
    assert found == {"<|im_start|>system>\n!<|im_start|>"}
    before = "{% for m in messages %}<|im_start|>a>\n{{ m.role }}\n{{ m.content }}{% endfor %}"
    assert _cut_text(before, joining, "x", "\nx", "7") == {
        "<|im_start|>a>\nsystem\n!<|im_start|>a>\nuser"
    }
    last = "{% for m in messages %}<|im_start|>a>\n:{{ m.content }}{% endfor %}"
    assert _cut_text(last, joining, "x", "\nx", ":") == {"<|im_start|>a>\n:!<|im_start|>a"}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_word_that_the_users_words_go_on_is_behind_the_cut(kind: str):
    source = "{% for m in messages %}<|im_start|>say th{{ m.content }}{% endfor %}"
    words = ("e fox", "at", "is", "en", "", " x", "7", "\nx", "!")
    assert _cut_text(source, TOKENIZERS[kind], *words) == {"<|im_start|>say th!<|im_start|>say"}


def test_a_long_word_without_end_costs_no_more_than_others():
    writer = _writer("{{ messages[0].content }}{{ messages[-1].content }}")
    assert _cuts(writer, _says("system", "ab" * 300_000), TURNS[0]) == ()


def test_what_two_sequences_share_is_counted_to_the_item():
    assert [shared_length("abcd"[:n], "abcx") for n in range(5)] == [0, 1, 2, 3, 3]
    assert shared_length((1, 2, 3), (1, 2, 3)) == 3
    assert shared_length([], [1]) == 0


@pytest.mark.model
def test_the_embedded_model_has_one_cut_for_all_beginnings(embedded_model: Path):
    source = files("worker.text").joinpath("templates", "smollm2.jinja").read_text("utf-8")
    writer = _writer(source, tokenizer_from_gguf(GgufFile.open(embedded_model).keys))
    for tools in ((), (WEATHER,)):
        says = [_says("user", words) for words in BEGINNINGS]
        found = {_cuts(writer, SYSTEM, said, tools=tools) for said in says}
        found |= {_cuts(writer, SYSTEM, *TURNS, said, tools=tools) for said in says}
        ((cut,),) = found
        assert cut >= LEAST_CUT
