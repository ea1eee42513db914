"""R37: what a client shows us stays with us; what belongs to one connection ends with it."""

from pathlib import Path

import pytest

from gateway.settings.types import BackendKey, ClientKey, Secret
from tests.gateway.cases.samples import SAMPLES, Sample
from tests.gateway.cases.scripted import LAST_CHUNK, Link, chunk, head, speaking
from tests.gateway.cases.stage import Caller, call, stage

MARK = "client-secret"
CREDENTIALS = {
    "authorization": f"Bearer {MARK}", "proxy-authorization": f"Basic {MARK}", "x-api-key": MARK,
    "api-key": MARK, "x-goog-api-key": MARK, "cookie": f"session={MARK}",
    "openai-organization": f"org-{MARK}", "openai-project": f"proj-{MARK}",
}  # fmt: skip
OURS = {
    "x-tandem-profile": MARK, "x-tandem-anything": MARK, "x-freellm-cache": MARK,
    "forwarded": f"for={MARK}", "x-forwarded-for": MARK, "x-forwarded-host": MARK,
    "x-forwarded-proto": MARK, "x-real-ip": MARK, "via": f"1.1 {MARK}",
}  # fmt: skip
HOP_BY_HOP = {
    "keep-alive": f"timeout={MARK}", "te": MARK, "trailer": MARK, "proxy-connection": MARK,
    "proxy-authenticate": MARK,
}  # fmt: skip
QUERY = ("key", "api_key", "access_token", "%6bey", "k%65y")
PASSES = {
    "anthropic-version": "2023-06-01", "anthropic-beta": "a,b", "x-stainless-lang": "python",
    "user-agent": "probe/1.0", "x-session-id": "s1", "idempotency-key": "i1", "accept": "*/*",
    "content-type": "application/json",
}  # fmt: skip
OWN = {"openai": ("authorization", "Bearer backend-key"), "anthropic": ("x-api-key", "backend-key"),
       "gemini": ("x-goog-api-key", "backend-key")}  # fmt: skip


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_no_credential_of_the_client_goes_up(tmp_path: Path, sample: Sample) -> None:
    """R37: every credential header and query field, in any capitals; the backend's own instead."""
    keys = (ClientKey("k", secret=Secret("env:K", MARK)),)
    sent = [(name.title(), value) for name, value in (CREDENTIALS | OURS | HOP_BY_HOP).items()]
    sent += [("Connection", "close, X-Foo"), ("connection", "X-Bar"), ("X-Foo", MARK),
             ("x-bar", MARK), *PASSES.items()]  # fmt: skip
    target = sample.stream_path
    target += ("&" if "?" in target else "?") + "&".join(f"{name}={MARK}" for name in QUERY)
    key = BackendKey("main", Secret("env:B", "backend-key"))
    async with stage(
        tmp_path, sample, speaking(sample), keys=(key,), sections={"keys": keys}
    ) as on:
        answer = await call(on.port, f"{target}&beta=true", sample.body(is_stream=True), sent)
        asked = on.up.asked[0]
    assert answer.status == 200
    assert MARK not in asked.head.decode("latin-1") and MARK.encode() not in asked.body
    assert asked.target.endswith("beta=true")
    names = [name for name, _ in asked.headers]
    assert len(names) == len(set(names))
    assert not {"connection", "x-foo", "x-bar", *OURS, *HOP_BY_HOP} & set(names)
    name, value = OWN[sample.kind]
    assert asked.header(name) == [value]
    assert {name for name in CREDENTIALS if asked.header(name)} == {name}
    assert {name: asked.header(name) for name in PASSES} == {k: [v] for k, v in PASSES.items()}


async def test_no_trailer_of_the_client_goes_up(tmp_path: Path) -> None:
    """R37: credentials behind a chunked body are no way around."""
    sample = SAMPLES[0]
    body = sample.body(is_stream=False)
    async with stage(tmp_path, sample, speaking(sample)) as on:
        caller = await Caller.connect(on.port)
        await caller.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
            b"trailer: x-api-key\r\n\r\n" + chunk(body)
            + f"0\r\nx-api-key: {MARK}\r\nauthorization: Bearer {MARK}\r\n\r\n".encode()
        )  # fmt: skip
        assert (await caller.whole()).status == 200
        caller.close()
        asked = on.up.asked[0]
    assert MARK not in asked.head.decode("latin-1") and asked.body == body


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_what_belongs_to_the_backends_connection_does_not_come_down(
    tmp_path: Path, sample: Sample, is_stream: bool
) -> None:
    """R37: cookies, hop-by-hop headers, those that `Connection` names, trailers, foreign ids."""
    lines = ("transfer-encoding: chunked", "Connection: X-Foo", "connection: x-bar", "X-Foo: no",
             "x-bar: no", "keep-alive: no", "proxy-authenticate: no", "trailer: x-no",
             "upgrade: no", "set-cookie: a=no", "Set-Cookie: b=no", "x-request-id: no",
             "x-routed-via: no", "x-kept: yes", "retry-after-ms: 7")  # fmt: skip

    async def script(link: Link) -> None:
        kind = "text/event-stream" if is_stream else "application/json"
        body = sample.stream if is_stream else sample.whole
        await link.send(head(200, kind, *lines), chunk(body))
        await link.send(LAST_CHUNK.replace(b"\r\n\r\n", b"\r\nx-no: no\r\n\r\n"))

    async with stage(tmp_path, sample, script) as on:
        answer = await on.ask(is_stream=is_stream)
        row = await on.row()
    came = {name for name, value in answer.headers if "no" in value.split("=")}
    assert came <= {"x-accel-buffering"}
    assert (answer.header("x-kept"), answer.header("retry-after-ms")) == ("yes", "7")
    assert answer.header("x-request-id") == row.request_id
    assert answer.header("x-routed-via") == "b/m"
    assert answer.header("x-accel-buffering") == ("no" if is_stream else None)
