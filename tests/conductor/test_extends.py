"""What a child takes over: maps merge, lists and single values replace."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.extends import EndlessParents, UnknownParent, overlay, parents_of


@dataclass(frozen=True)
class Inner:
    a: int = 1
    b: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outer:
    one: Inner = Inner()
    maybe: Inner | None = None
    entries: Mapping[str, Inner] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    plain: int = 0


def test_what_a_child_does_not_say_is_its_parents() -> None:
    parent = Outer(Inner(5, (1,)), Inner(7), {"x": Inner(9)}, {"k": "v"}, 3)
    assert overlay(parent, Outer(), frozenset()) == parent
    assert overlay(parent, Outer(plain=0), {"plain"}) == Outer(
        parent.one, parent.maybe, parent.entries, parent.words, 0
    )


def test_maps_merge_and_lists_replace() -> None:
    parent = Outer(Inner(5, (1, 2)), None, {"x": Inner(9, (1,)), "y": Inner(8)}, {"k": "v"})
    child = Outer(Inner(1, (3,)), None, {"x": Inner(4), "z": Inner(2)}, {"k": "w", "l": "m"})
    given = {"one", "one.b", "entries", "entries.x", "entries.x.a", "entries.z", "entries.z.a",
             "words", "words.k", "words.l"}  # fmt: skip
    merged = overlay(parent, child, given)
    assert merged.one == Inner(5, (3,))
    assert dict(merged.entries) == {"x": Inner(4, (1,)), "y": Inner(8), "z": Inner(2)}
    assert merged.words == {"k": "w", "l": "m"}


def test_what_may_be_absent_is_merged_where_both_have_it() -> None:
    both = overlay(Outer(maybe=Inner(5, (1,))), Outer(maybe=Inner(6)), {"maybe", "maybe.a"})
    assert both.maybe == Inner(6, (1,))
    assert overlay(Outer(maybe=Inner(5)), Outer(), {"maybe"}).maybe is None
    assert overlay(Outer(), Outer(maybe=Inner(5)), {"maybe", "maybe.a"}).maybe == Inner(5)


inner = st.builds(Inner, st.integers(), st.tuples(st.integers()))
outer = st.builds(
    Outer, inner, st.none() | inner, st.dictionaries(st.text("xy"), inner, max_size=2)
)


@given(outer, outer)
def test_a_child_that_says_everything_keeps_its_own_word_and_one_that_says_nothing_none(
    parent: Outer, child: Outer
) -> None:
    everything = {"one", "one.a", "one.b", "maybe", "maybe.a", "maybe.b", "plain", "words"}
    for key in child.entries:
        everything |= {"entries", f"entries.{key}", f"entries.{key}.a", f"entries.{key}.b"}
    merged = overlay(parent, child, everything)
    assert (merged.one, merged.maybe, merged.plain) == (child.one, child.maybe, child.plain)
    assert dict(merged.entries) == {**parent.entries, **child.entries}
    assert overlay(parent, child, frozenset()) == parent


def test_parents_are_followed_to_the_end() -> None:
    assert parents_of("c", {"a": None, "b": "a", "c": "b"}) == ("b", "a")
    assert parents_of("a", {"a": None}) == ()


def test_a_parent_that_is_nobody_is_told_where_it_is_named() -> None:
    with pytest.raises(UnknownParent, match="no profile is named 'x'") as fault:
        parents_of("c", {"b": "x", "c": "b"})
    assert (fault.value.at, fault.value.parent) == ("b", "x")


@pytest.mark.parametrize(("name", "at"), [("a", "a"), ("b", "b"), ("c", "a")])
def test_a_circle_is_told_of_those_that_are_in_it(name: str, at: str) -> None:
    with pytest.raises(EndlessParents, match="back to itself") as fault:
        parents_of(name, {"a": "b", "b": "a", "c": "a"})
    assert fault.value.at == at


def test_nobody_is_its_own_parent() -> None:
    with pytest.raises(EndlessParents, match="a → a"):
        parents_of("a", {"a": "a"})
