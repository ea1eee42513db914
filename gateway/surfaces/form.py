"""A multipart form, read as far as the way through the gateway depends on it. Knows no surface.

The `model` part is found in the raw bytes, so that an alias replaces just these. A form that two
readers could take for two different ones is refused: the backend must not see another model than
we did. Source: RFC 7578, RFC 2046 section 5.1; docs/design/forms.md says why this is no library's.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gateway.errors import ApiError
from gateway.surfaces.envelope import Envelope
from proto.limits import FORM_PART_HEAD_BYTES, FORM_PARTS

# Text that the gateway itself looks at; a part with another name is only counted and hashed.
_TEXTS = frozenset({"model", "stream", "stream_format", "prompt", "input", "n"})
# The hash of a request is made of so much of each part, as with the values of JSON.
_HASHED_HEAD_BYTES = 8 * 1024
_HASHED_TAIL_BYTES = 24 * 1024

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = re.compile(rb"[ \t]*;[ \t]*(" + _TOKEN + rb')=(?:"([^"]*)"|([^\s";]*))')
_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_PLAIN_CODINGS = (b"7bit", b"8bit", b"binary")


class Form(NamedTuple):
    """A form's bytes, unpacked, and where the value of its `model` stands in them."""

    body: bytes
    span: tuple[int, int]

    def with_model(self, model: str) -> bytes:
        """The form with another model and every other byte as it was."""
        start, end = self.span
        return b"".join((self.body[:start], model.encode(), self.body[end:]))


class _Part(NamedTuple):
    name: str
    start: int
    end: int
    is_text: bool  # neither a file nor coded: its bytes are its value


def read_form(body: bytes, content_types: Sequence[bytes]) -> tuple[Form, Envelope]:
    """Reads a form; the envelope has its text fields, and excerpts of all of them to be hashed.

    Without a model the form's span is empty; `model_of` says what is wrong.

    Raises: ApiError 400 `invalid_form`; 400 with `param: model`.
    """
    fields: dict[str, object] = {}
    spans: dict[str, tuple[int, int]] = {}
    repeated: set[str] = set()
    texts: list[str] = []
    model_span, at = (0, 0), 0
    for number, part in enumerate(_parts(body, b"\r\n--" + _boundary(content_types))):
        if number >= FORM_PARTS:
            raise _bad(f"it has more than {FORM_PARTS} parts")
        texts.append(_excerpt(body, part))
        name = part.name if part.name not in spans else f"{part.name}\0{number}"
        spans[name] = (at, at := at + len(texts[-1]))
        if part.name not in _TEXTS or not (part.is_text or part.name == "model"):
            continue
        if part.name in fields:
            repeated.add(part.name)
        text = fields[part.name] = _text(body, part)
        if part.name == "n" and text.isdecimal():
            fields[part.name] = int(text[:4])
        if part.name == "model":
            model_span = (part.start, part.end)
    return Form(body, model_span), Envelope("".join(texts), fields, spans, frozenset(repeated))


def _boundary(content_types: Sequence[bytes]) -> bytes:
    """The boundary that the one Content-Type names."""
    if len(content_types) != 1:
        raise _bad("it has two Content-Type headers", param="content-type")
    kind, parameters = _value_and_parameters(content_types[0], param="content-type")
    if kind != b"multipart/form-data":
        raise _bad("Content-Type must be multipart/form-data, or application/json",
                   param="content-type")  # fmt: skip
    boundary = parameters.get(b"boundary", b"")
    if not _BOUNDARY.fullmatch(boundary):
        raise _bad("Content-Type names no boundary", param="content-type")
    return boundary


def _parts(body: bytes, delimiter: bytes) -> Iterator[_Part]:
    """Every part, up to the end that the boundary marks."""
    if body.startswith(delimiter):
        at = len(delimiter)
    elif body.startswith(delimiter[2:]):
        at = len(delimiter) - 2
    else:
        raise _bad("it does not begin with its boundary")
    while not body.startswith(b"--", at):
        line_end = body.find(b"\r\n", at, at + FORM_PART_HEAD_BYTES)
        if line_end < 0 or body[at:line_end].strip(b" \t"):
            raise _bad("a boundary is followed by something else on its line")
        head_end = body.find(b"\r\n\r\n", line_end, line_end + FORM_PART_HEAD_BYTES)
        if head_end < 0:
            raise _bad(f"the headers of a part do not end within {FORM_PART_HEAD_BYTES} bytes")
        start = head_end + 4
        end = body.find(delimiter, start)
        if end < 0 or body.startswith(delimiter[2:], start):
            raise _bad("it is cut short, or a boundary is not on a line of its own")
        yield _part(body[line_end + 2 : head_end], start, end)
        at = end + len(delimiter)
    if body[at + 2 :].strip(b" \t\r\n"):
        raise _bad("something follows its closing boundary")


def _part(head: bytes, start: int, end: int) -> _Part:
    headers: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if not colon or not re.fullmatch(_TOKEN, name) or re.search(rb"[\r\n\0]", value):
            raise _bad("a part has a header that is none")
        if name.lower() in headers:
            raise _bad("a part has a header twice")
        headers[name.lower()] = value
    kind, parameters = _value_and_parameters(headers.get(b"content-disposition", b""))
    field = parameters.get(b"name")
    is_coded = any(key.startswith(b"name*") for key in parameters)
    if kind != b"form-data" or field is None or is_coded:
        raise _bad("a part has no Content-Disposition: form-data with a name")
    coding = headers.get(b"content-transfer-encoding", b"binary").strip().lower()
    is_file = b"filename" in parameters or b"filename*" in parameters
    return _Part(field.decode(errors="replace"), start, end,
                 is_text=coding in _PLAIN_CODINGS and not is_file)  # fmt: skip


def _value_and_parameters(
    line: bytes, param: str | None = None
) -> tuple[bytes, dict[bytes, bytes]]:
    """`value; name=text; name="text"` in its parts, names in lower case.

    Nothing is escaped in it: where one reader sees an escaped quote another sees the end.
    """
    value, _, _ = line.partition(b";")
    at = len(value)
    parameters: dict[bytes, bytes] = {}
    while (found := _PARAMETER.match(line, at)) is not None:
        name, quoted, bare = found.groups()
        text = bare if quoted is None else quoted
        if name.lower() in parameters or text.endswith(b"\\"):
            raise _bad(f"{_shown(name)} is given twice or has a quote in it", param=param)
        parameters[name.lower()] = text
        at = found.end()
    if line[at:].strip(b" \t;"):
        raise _bad(f"{_shown(line[at:])} cannot be read", param=param)
    return value.strip(b" \t").lower(), parameters


def _text(body: bytes, part: _Part) -> str:
    text = body[part.start : part.end]
    if part.name != "model":
        return text.decode(errors="replace")
    try:
        if part.is_text:
            return text.decode()
    except UnicodeDecodeError as fault:
        message = "'model' is not UTF-8."
        raise ApiError(400, "invalid_request", message, param="model") from fault
    message = "'model' must be a plain text field of the form, not a file."
    raise ApiError(400, "invalid_request", message, param="model")


def _excerpt(body: bytes, part: _Part) -> str:
    size = part.end - part.start
    if size <= _HASHED_HEAD_BYTES + _HASHED_TAIL_BYTES:
        return body[part.start : part.end].decode("latin-1")
    head = body[part.start : part.start + _HASHED_HEAD_BYTES]
    return f"{size}{(head + body[part.end - _HASHED_TAIL_BYTES : part.end]).decode('latin-1')}"


def _shown(piece: bytes) -> str:
    return repr(piece[:32].decode("latin-1"))


def _bad(reason: str, param: str | None = None) -> ApiError:
    return ApiError(400, "invalid_form", f"The form cannot be read: {reason}.", param=param)
