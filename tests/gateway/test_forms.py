"""Multipart forms: what is found in them, what an edit leaves alone, and what is refused."""

from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from python_multipart import parse_form

from gateway.errors import ApiError
from gateway.surfaces.envelope import model_of
from gateway.surfaces.form import Form, read_form
from proto.limits import FORM_PART_HEAD_BYTES, FORM_PARTS

TYPE = [b"multipart/form-data; boundary=b0und"]
FILE = b'Content-Disposition: form-data; name="file"; filename="a.mp3"\r\nContent-Type: audio/mpeg'
MODEL = b'Content-Disposition: form-data; name="model"'


def form(*parts: tuple[bytes, bytes], boundary: bytes = b"b0und") -> bytes:
    """Parts as they go over the wire: (headers, content)."""
    lines = [b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary, head, content) for head, content in parts]
    return b"".join([*lines, b"--%b--\r\n" % boundary])


def field(name: str, value: str) -> tuple[bytes, bytes]:
    return f'Content-Disposition: form-data; name="{name}"'.encode(), value.encode()


def model_in(body: bytes, content_types: Any = TYPE) -> str:
    return model_of(read_form(body, content_types)[1])


@pytest.mark.parametrize("content_type", [
    b"multipart/form-data; boundary=b0und", b'Multipart/Form-Data;boundary="b0und"',
    b"multipart/form-data; charset=utf-8 ; Boundary=b0und;",
])  # fmt: skip
@pytest.mark.parametrize("head", [
    MODEL, b"content-disposition:form-data;name=model", MODEL + b"\r\nContent-Type: text/plain",
    b'CONTENT-DISPOSITION: Form-Data ; NAME="model"',
    MODEL + b"\r\nContent-Transfer-Encoding: 8bit",
])  # fmt: skip
def test_the_model_is_found_however_its_part_is_written(head: bytes, content_type: bytes) -> None:
    """Between a file and another field; the file's bytes may hold anything but the boundary."""
    tricky = b'\r\n--b0un\r\nContent-Disposition: form-data; name="model"\r\n\r\nother\xff\x00'
    body = form((FILE, tricky), (head, "mödel".encode()), field("language", "de"))
    assert model_in(body, [content_type]) == "mödel"
    assert model_in(b"\r\n" + body, [content_type]) == "mödel"


@given(
    file=st.binary(max_size=200), before=st.booleans(),
    old=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20), new=st.text(max_size=20),
)  # fmt: skip
def test_an_edit_replaces_the_models_bytes_and_no_other(
    file: bytes, before: bool, old: str, new: str
) -> None:
    """Whatever the file holds and wherever the model stands."""
    new = new.encode(errors="replace").decode()
    parts = [(FILE, file), (MODEL, old.encode())]
    others = [(FILE, file), (MODEL, new.encode())]
    if before:
        parts, others = parts[::-1], others[::-1]
    if b"--b0und" in file or "--b0und" in old:
        return
    found, envelope = read_form(form(*parts), TYPE)
    assert model_of(envelope) == old
    assert found.with_model(new) == form(*others)


@given(parts=st.lists(
    st.tuples(st.sampled_from(["model", "prompt", "file", "image[]", "x"]), st.binary(max_size=40)),
    min_size=1, max_size=6, unique_by=lambda part: part[0],
))  # fmt: skip
def test_fields_are_those_that_a_library_finds(parts: list[tuple[str, bytes]]) -> None:
    """Oracle: python-multipart."""
    body = form(*[(field(name, "")[0], content) for name, content in parts])
    theirs: dict[str, bytes] = {}
    headers = {"Content-Type": TYPE[0]}
    parse_form(
        headers, BytesIO(body),
        lambda one: theirs.update({(one.field_name or b"").decode(): one.value or b""}),
        lambda one: None,
    )  # fmt: skip
    assert theirs == dict(parts)
    try:
        ours = read_form(body, TYPE)[1].fields
    except ApiError as fault:
        assert fault.param == "model"  # which must be UTF-8
        return
    for name in ("model", "prompt"):
        assert ours.get(name) == (theirs[name].decode(errors="replace") if name in theirs else None)


BAD: list[tuple[bytes, str]] = [
    (b"", "boundary"),
    (b"{}", "boundary"),
    (b"junk\r\n" + form((MODEL, b"m")), "boundary"),
    (form((MODEL, b"m")).replace(b"\r\n", b"\n"), "boundary"),
    (form((MODEL, b"m")).removesuffix(b"--b0und--\r\n"), "cut short"),
    (form((MODEL, b"m")) + form((MODEL, b"other")), "follows"),
    (form((MODEL, b"m")).replace(b"\r\n\r\n", b"\r\n\r\n--b0und\r\n"), "line of its own"),
    (form((MODEL, b"m")).replace(b"--b0und\r\n", b"--b0und x\r\n"), "boundary"),
    (form((MODEL, b"x\r\n--b0und2")), "boundary"),
    (form((b"", b"m")), "header"),
    (form((b"Content-Type: text/plain", b"m")), "Content-Disposition"),
    (form((b'Content-Disposition: attachment; name="model"', b"m")), "Content-Disposition"),
    (form((b"Content-Disposition: form-data", b"m")), "Content-Disposition"),
    (form((MODEL + b"\r\n" + MODEL, b"m")), "twice"),
    (form((MODEL + b'; name="other"', b"m")), "twice"),
    (form((MODEL + b"; name*=utf-8''other", b"m")), "Content-Disposition"),
    (form((MODEL + b"; name*0=ot; name*1=her", b"m")), "Content-Disposition"),
    (form((b'Content-Disposition: form-data; filename="a\\"; name="model"', b"m")),
     "quote"),
    (form((b'Content-Disposition: form-data; name="model" junk', b"m")), "junk"),
    (form((b"Content-Disposition: form-data;\r\n name=model", b"m")), "header"),
    (form((b'X: a\nContent-Disposition: form-data; name="model"', b"m")), "header"),
    (form((MODEL + b"\r\nX: " + b"x" * FORM_PART_HEAD_BYTES, b"m")), "headers"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "word"), BAD)
def test_a_form_that_two_readers_could_take_for_two_is_a_400(body: bytes, word: str) -> None:
    """Each of these is read otherwise by some reader, or by none."""
    with pytest.raises(ApiError) as fault:
        read_form(body, TYPE)
    assert (fault.value.status, fault.value.code) == (400, "invalid_form")
    assert word in fault.value.message


@pytest.mark.parametrize("content_types", [
    [b"multipart/form-data"], [b"multipart/form-data; boundary="],
    [b"multipart/form-data; boundary=" + b"x" * 71], [b"multipart/mixed; boundary=b0und"],
    [b"multipart/form-data; boundary=b0und; boundary=other"], [*TYPE, *TYPE],
    [b'multipart/form-data; boundary="b0und'],
])  # fmt: skip
def test_a_content_type_that_names_no_single_boundary_is_a_400(content_types: list[bytes]) -> None:
    """The header is the field at fault."""
    with pytest.raises(ApiError) as fault:
        read_form(form((MODEL, b"m")), content_types)
    assert (fault.value.status, fault.value.param) == (400, "content-type")


@pytest.mark.parametrize("parts", [
    [], [field("language", "de")], [(MODEL, b"")], [(MODEL, b"\xff")], [(MODEL, b"m" * 257)],
    [(MODEL, b"m"), (MODEL, b"m")], [(MODEL + b'; filename="m"', b"m")],
    [(MODEL + b"\r\nContent-Transfer-Encoding: base64", b"bQ==")],
])  # fmt: skip
def test_a_bad_model_is_a_400_that_names_the_field(parts: list[tuple[bytes, bytes]]) -> None:
    """Missing, empty, not text, too long, twice, a file, coded."""
    body = form(*parts) if parts else b"--b0und--\r\n"
    with pytest.raises(ApiError) as fault:
        model_in(body)
    assert (fault.value.status, fault.value.param) == (400, "model")


def test_the_number_of_pictures_is_a_number() -> None:
    """A budget multiplies by it."""
    for text, value in (("3", 3), ("x", "x"), ("9" * 99, 9999), ("-1", "-1")):
        assert read_form(form(field("n", text)), TYPE)[1].fields["n"] == value


def test_limits_hold_exactly() -> None:
    """A name of 256 characters and 1,024 parts are fine, one more is not."""
    assert model_in(form((MODEL, b"m" * 256))) == "m" * 256
    parts = [field("x", "")] * (FORM_PARTS - 1)
    assert model_in(form(*parts, (MODEL, b"m"))) == "m"
    with pytest.raises(ApiError, match="parts"):
        model_in(form(*parts, field("x", ""), (MODEL, b"m")))


def test_an_edit_is_by_place_and_not_by_text() -> None:
    """The old name elsewhere in the form stays."""
    body = form(field("prompt", "m"), (MODEL, b"m"), (FILE, b"m"))
    assert read_form(body, TYPE)[0].with_model("n") == body.replace(
        MODEL + b"\r\n\r\nm", MODEL + b"\r\n\r\nn"
    )
    assert Form(b"abc", (1, 2)).with_model("é") == b"a\xc3\xa9c"
