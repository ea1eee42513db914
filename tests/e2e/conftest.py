"""What the tests of client programs share: one gateway that relays, seen by one client a module."""

import gc
from collections.abc import Iterator

import pytest

from tests.e2e.relayed import Relayed, keep_on_loopback, relaying
from tests.e2e.server import Server
from tests.fakes.provider import Provider


def pytest_collection_finish() -> None:
    """Takes the imported SDKs, 300,000 objects that stay, out of the garbage collector's rounds: a
    round over them stops everything for longer than the latencies that other tests measure."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def gateway_and_provider(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Server, Provider]]:
    """A `tandem serve` process in front of the scripted provider."""
    with relaying(tmp_path_factory.mktemp("relayed")) as running:
        yield running


@pytest.fixture(scope="module")
def relayed(
    gateway_and_provider: tuple[Server, Provider], request: pytest.FixtureRequest
) -> Relayed:
    """Both as the client sees them that the module is named after (`test_sdk_CLIENT`)."""
    client = request.module.__name__.rpartition("_")[2]
    return Relayed(*gateway_and_provider, client)


@pytest.fixture(params=["events", "bytes"])
def delivery(request: pytest.FixtureRequest, relayed: Relayed) -> Iterator[None]:
    """Every streamed case twice: a chunk for each event, and a chunk for each byte."""
    relayed.provider.delivery = request.param
    yield
    relayed.provider.delivery = "events"


@pytest.fixture(scope="module")
def loopback() -> Iterator[None]:
    """An environment in which an SDK reaches nothing but what it was told."""
    with pytest.MonkeyPatch.context() as patch:
        keep_on_loopback(patch)
        yield
