"""R39: no field of a request changes where, or how, we call."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.settings.types import BackendKey, RouteSettings, RouteTarget, Secret
from tests.gateway.cases.samples import SAMPLES, Sample, dump
from tests.gateway.cases.scripted import Link, ScriptedBackend, speaking
from tests.gateway.cases.stage import call, stage


def fields(trap: str) -> dict[str, Any]:
    """What has redirected calls elsewhere."""
    return {
        "api_base": trap, "base_url": trap, "api_key": "client-key", "custom_llm_provider": "trap",
        "extra_headers": {"authorization": "Bearer client-key", "x-trap": "1", "host": "trap"},
        "extra_body": {"model": "other"}, "extra_query": {"key": "client-key"},
        "api_version": "v9", "organization": "trap", "proxy": trap, "timeout": 0.001,
        "litellm_params": {"api_base": trap}, "headers": {"x-trap": "1"}, "endpoint": trap,
    }  # fmt: skip


@pytest.mark.parametrize("is_aliased", [False, True], ids=["as asked", "through an alias"])
@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_fields_of_the_body_redirect_nothing(
    tmp_path: Path, sample: Sample, is_aliased: bool
) -> None:
    """R39: the configured backend gets the body as it came, and nobody else anything."""
    key = BackendKey("main", Secret("env:B", "backend-key"))
    routes = {"alias": RouteSettings((RouteTarget("b", "m"),))}
    asked_model = "alias" if is_aliased else "m"

    async def refuse(link: Link) -> None:
        raise AssertionError("the trap was called")

    async with (
        ScriptedBackend(refuse) as trap,
        stage(tmp_path, sample, speaking(sample), keys=(key,), sections={"routes": routes}) as on,
    ):
        request = {**sample.request, **fields(trap.url)}
        target = sample.path.replace("/m:", f"/{asked_model}:")
        if sample.surface != "gemini":
            request["model"] = asked_model
        headers = [("x-tandem-backend", "trap"), ("x-api-base", trap.url)]
        answer = await call(on.port, target, dump(request), headers)
        row = await on.row()
        asked = on.up.asked[0]
        assert not trap.links
    assert answer.status == 200 and row.backend == "b"
    sent = {**request, "model": "m"} if "model" in request else request
    assert json.loads(asked.body) == sent
    assert not asked.header("x-trap") and "client-key" not in asked.head.decode("latin-1")
    assert asked.header("host") == [f"127.0.0.1:{on.up.port}"]
    assert asked.target == sample.path
