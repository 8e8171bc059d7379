"""A cluster at an address that is not loopback is used with its token only; run by `tests.ray`."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive]


def test_a_cluster_on_a_network_is_reached_with_its_token_only() -> None:
    """Ray itself calls a wrong token a failed connection."""
    command = ["unshare", "--net", "--pid", "--fork", "--mount-proc", sys.executable, "-m", "tests.ray._own_cluster"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)

    assert done.returncode == 0, done.stderr[-2000:]
    right, wrong, disabled = [line for line in done.stdout.splitlines() if line.startswith("outcome:")]
    assert right.startswith("outcome: 6 ")
    assert "no Ray can be reached at '10.9.9.1:6399'" in wrong
    assert "is the token here the one of the cluster?" in wrong
    assert "without token authentication: RAY_AUTH_MODE is 'disabled'" in disabled
