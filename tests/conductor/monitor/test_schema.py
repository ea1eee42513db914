"""Arguments that fit, are coerced to fit, or do not."""

from typing import Any

import pytest

from conductor.monitor.schema import MOST_DEPTH, fit, fit_arguments, resolved, types_of


def of(schema: Any) -> dict[str, Any]:
    """A tool's parameters with one argument, `a`."""
    return {"type": "object", "properties": {"a": schema}}


@pytest.mark.parametrize(
    ("given", "schema", "meant"),
    [
        ("3", {"type": "integer"}, 3),
        ("3.0", {"type": "integer"}, 3),
        ("3.5", {"type": "number"}, 3.5),
        (3.0, {"type": "integer"}, 3.0),
        ("True", {"type": "boolean"}, True),
        (1, {"type": "boolean"}, True),
        (0, {"type": "boolean"}, False),
        ("none", {"type": ["string", "null"]}, "none"),
        ("null", {"type": ["integer", "null"]}, None),
        ("", {"type": ["integer", "null"]}, None),
        (7, {"type": "string"}, "7"),
        (True, {"type": "string"}, "true"),
        ('["x"]', {"type": "array", "items": {"type": "string"}}, ["x"]),
        ("x", {"type": "array", "items": {"type": "string"}}, ["x"]),
        ('{"b": 1}', {"type": "object"}, {"b": 1}),
        (["1", 2], {"type": "array", "items": {"type": "integer"}}, [1, 2]),
        ("red", {"enum": ["Red", "Blue"]}, "Red"),
        ("RED", {"type": "string", "enum": ["red"]}, "red"),
        ("green", {"enum": ["Red", "red "]}, "green"),
        ("red", {"enum": ["Red", "RED"]}, "red"),
        ("5", {"const": 5}, 5),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 5),
        ("5", {"oneOf": [{"type": "integer"}, {"type": "string"}]}, "5"),
        ("7", {"type": "integer", "nullable": True}, 7),
        (None, {"type": "integer", "nullable": True}, None),
        ({"b": "2"}, {"properties": {"b": {"type": "integer"}}}, {"b": 2}),
        ([["4"]], {"items": {"items": {"type": "integer"}}}, [[4]]),
        ("anything", {}, "anything"),
        ("anything", True, "anything"),
        ("anything", {"type": "uuid"}, "anything"),
        ("anything", {"type": 5}, "anything"),
        ("anything", {"enum": []}, "anything"),
        ("anything", {"anyOf": []}, "anything"),
    ],
)
def test_a_value_becomes_what_its_schema_says(given: Any, schema: Any, meant: Any) -> None:
    fitted = fit_arguments({"a": given}, of(schema))
    assert fitted.faults == ()
    found = fitted.value
    assert isinstance(found, dict)
    assert found["a"] == meant and type(found["a"]) is type(meant)


@pytest.mark.parametrize(
    ("given", "schema"),
    [
        ("three", {"type": "integer"}),
        ("3.5", {"type": "integer"}),
        (2, {"type": "boolean"}),
        ([1], {"type": "integer"}),
        ({}, {"type": "array"}),
        ("x", {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (["x"], {"type": "array", "items": {"type": "integer"}}),
        ('{"b": "x"}', {"type": "object", "properties": {"b": {"type": "integer"}}}),
        (None, {"type": "string"}),
    ],
)
def test_what_cannot_be_meant_stays_and_is_a_fault(given: Any, schema: Any) -> None:
    parameters = {**of(schema), "required": ["a"]}
    fitted = fit_arguments({"a": given}, parameters)
    assert fitted.faults == ("type",) and fitted.value == {"a": given}


def test_what_is_required_must_be_there_and_null_stands_for_what_is_not_given() -> None:
    parameters = {**of({"type": "string"}), "required": ["a", 5]}
    assert fit_arguments({}, parameters).faults == ("missing",)
    assert fit_arguments({"other": 1}, parameters).faults == ("missing",)
    optional = fit_arguments({"a": None, "b": 1}, of({"type": "string"}))
    assert optional.value == {"b": 1} and optional.faults == ()
    assert fit_arguments({"a": 1}, None).value == {"a": 1}
    assert fit_arguments({"a": 1}, {"properties": 5, "required": 5}).value == {"a": 1}


def test_references_are_followed_and_a_circle_ends() -> None:
    whole: dict[str, Any] = {
        "$defs": {
            "count": {"type": "integer"},
            "again": {"$ref": "#/$defs/again"},
            "a/b~": {"type": "boolean"},
        },
        "properties": {
            "n": {"$ref": "#/$defs/count"},
            "c": {"$ref": "#/$defs/again"},
            "o": {"$ref": "other.json"},
            "g": {"$ref": "#/$defs/count/gone/deeper"},
            "s": {"$ref": "#/$defs/a~1b~0"},
        },
    }
    given = {"n": "4", "c": "x", "o": "x", "g": "x", "s": "true"}
    assert fit_arguments(dict(given), whole).value == {**given, "n": 4, "s": True}


def test_parts_of_all_of_are_one_schema() -> None:
    whole: dict[str, Any] = {
        "$defs": {"base": {"properties": {"n": {"type": "integer"}}, "required": ["n"]}},
        "allOf": [
            {"$ref": "#/$defs/base"},
            {"properties": {"m": {"type": "boolean"}}, "required": ["m"]},
            {"type": "object", "required": 5},
            7,
        ],
        "properties": {"k": {"type": "string"}},
        "required": ["k"],
    }
    fitted = fit_arguments({"n": "1", "m": "true", "k": 2}, whole)
    assert (fitted.value, fitted.faults) == ({"n": 1, "m": True, "k": "2"}, ())
    assert fit_arguments({}, whole).faults == ("missing",) * 3


def test_types_are_told_from_what_a_schema_says_else() -> None:
    assert types_of({"items": {}}) == {"array"}
    assert types_of({"items": True}) is None
    assert types_of({"type": []}) is None
    assert types_of({"enum": [1, "a", None]}) == {"integer", "number", "string", "null"}
    assert resolved(True, {}) == {} and resolved({"type": "null"}, {}) == {"type": "null"}


def test_what_is_nested_too_deep_is_left_as_it_is() -> None:
    schema: Any = {"type": "integer"}
    value: Any = "5"
    for _ in range(MOST_DEPTH + 2):
        schema, value = {"items": schema}, [value]
    assert fit(value, schema, {}).value == value
