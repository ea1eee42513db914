"""Which profile a request gets."""

from typing import Any

import pytest

from conductor.profiles import Match, Profile, ProfileNotAllowed, UnknownProfile, choose


def profiles(*more: Profile) -> dict[str, Profile]:
    shipped = [
        Profile("chat"),
        Profile("tools"),
        Profile("coding", match=Match(clients=("opencode", "codex"))),
    ]
    return {profile.name: profile for profile in (*shipped, *more)}


def chosen(*more: Profile, default: str = "chat", **asked: Any) -> str:
    facts: dict[str, Any] = {
        "asked": None, "client": "other", "user_agent": "", "headers": {},
        "offers_function_tool": False, "allowed": None,
    }  # fmt: skip
    return choose(profiles(*more), default, **{**facts, **asked}).name


def test_the_name_in_the_header_comes_first() -> None:
    assert chosen(asked="tools", client="opencode") == "tools"
    assert chosen(asked="chat", offers_function_tool=True, allowed=("tools", "chat")) == "chat"


def test_an_unknown_name_is_an_error_and_never_the_default() -> None:
    with pytest.raises(UnknownProfile) as fault:
        chosen(asked="codng", client="opencode")
    assert (fault.value.asked, fault.value.names) == ("codng", ("chat", "coding", "tools"))
    with pytest.raises(UnknownProfile) as fault:
        chosen(asked="codng", allowed=("chat",))
    assert fault.value.names == ("chat",)


def test_a_name_that_the_key_may_not_use_is_another_error() -> None:
    with pytest.raises(ProfileNotAllowed) as fault:
        chosen(asked="coding", allowed=("chat", "tools"))
    assert (fault.value.asked, fault.value.names) == ("coding", ("chat", "tools"))


def test_a_match_comes_before_the_rule_for_tools_and_that_before_the_default() -> None:
    assert chosen(client="codex", offers_function_tool=True) == "coding"
    assert chosen(client="curl", offers_function_tool=True) == "tools"
    assert chosen(client="curl") == "chat"
    assert chosen(client="curl", default="coding") == "coding"


@pytest.mark.parametrize(
    ("allowed", "facts", "name"),
    [
        (("chat", "tools"), {"client": "codex"}, "chat"),
        (("coding", "chat"), {"offers_function_tool": True}, "coding"),
        (("tools",), {}, "tools"),
        (("tools", "coding"), {"client": "codex"}, "coding"),
    ],
)
def test_the_keys_first_profile_stands_in_for_one_it_may_not_use(
    allowed: tuple[str, ...], facts: dict[str, Any], name: str
) -> None:
    assert chosen(allowed=allowed, **facts) == name


def test_the_highest_priority_wins_then_the_name() -> None:
    high = Profile("zeta", match=Match(clients=("codex",), priority=1))
    same = Profile("alpha", match=Match(clients=("codex",)))
    assert chosen(high, same, client="codex") == "zeta"
    assert chosen(same, client="codex") == "alpha"
    assert chosen(Profile("never", match=None), client="codex") == "coding"


@pytest.mark.parametrize(
    ("match", "facts", "fits"),
    [
        (Match(user_agent=("^Wren/", "lark")), {"user_agent": "a lark"}, True),
        (Match(user_agent=("^Wren/", "lark")), {"user_agent": "a Wren/"}, False),
        (Match(headers={"x-team": "a"}), {"headers": {"x-team": "a"}}, True),
        (Match(headers={"x-team": "a"}), {"headers": {"x-team": "b"}}, False),
        (Match(headers={"x-team": "a", "x-b": "b"}), {"headers": {"x-team": "a"}}, False),
        (Match(has_tools=True), {"offers_function_tool": True}, True),
        (Match(has_tools=True), {}, False),
        (Match(has_tools=False), {}, True),
        (Match(has_tools=False), {"offers_function_tool": True}, False),
        (Match(clients=("curl",), has_tools=True), {"client": "curl"}, False),
        (Match(clients=("curl",), user_agent=("x",)), {"client": "curl"}, False),
        (Match(clients=("curl",)), {"client": "cline"}, False),
    ],
)
def test_all_given_parts_of_a_match_must_hold(
    match: Match, facts: dict[str, Any], fits: bool
) -> None:
    assert (chosen(Profile("own", match=match), **facts) == "own") is fits
