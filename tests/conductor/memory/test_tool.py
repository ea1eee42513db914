"""The memory tool: offered, read, answered."""

import pytest

from conductor.memory.notes import Draft
from conductor.memory.tool import NAME, TOOL, answer_to, draft_of, offered
from proto.chat import Tool


def test_it_stands_behind_the_client_s_tools() -> None:
    own = Tool("read")
    assert offered((own,)) == (own, TOOL)
    assert offered(()) == (TOOL,)


def test_a_client_s_own_tool_of_that_name_stays_its_own() -> None:
    own = Tool(NAME)
    assert offered([own]) == (own,)


@pytest.mark.parametrize(
    ("arguments", "draft"),
    [
        ('{"kind": "todo", "text": " tidy\\n up "}', Draft("todo", "tidy up")),
        ('{"kind": "preference", "text": "x", "replaces": 4}', Draft("preference", "x", 4)),
        ('{"kind": "wish", "text": "x", "replaces": "4"}', Draft("fact", "x")),
        ('{"kind": ["todo"], "text": "x", "replaces": true}', Draft("fact", "x")),
        ('{"text": "x", "replaces": 0}', Draft("fact", "x")),
        ('{"text": 1}', None),
        ("[]", None),
        ("{", None),
        ("[" * 100_000, None),
    ],
)
def test_arguments_are_read_as_far_as_they_can_be(arguments: str, draft: Draft | None) -> None:
    assert draft_of(arguments) == draft


def test_the_model_is_told_what_became_of_it() -> None:
    draft = Draft("fact", "x")
    assert answer_to(draft, None) == "Kept."
    assert answer_to(draft, "long") == "Not kept: it has more than 400 characters."
    assert answer_to(None, None).startswith("Not kept: the arguments")
