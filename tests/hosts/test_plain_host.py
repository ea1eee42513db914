"""The contract of hosts, against nothing but the monitor."""

import pytest

from tests.hosts.cases import CASES
from tests.hosts.contract import PLAYS, check, play


@pytest.mark.parametrize(("name", "mode"), PLAYS)
def test_a_case_has_one_verdict(name: str, mode: str) -> None:
    check(CASES[name], mode, play(CASES[name], mode))
