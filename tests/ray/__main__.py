"""Run tests beside a Ray cluster: `unshare --net python -m tests.ray FILES`, with options of pytest.

The network namespace keeps the cluster unreachable from other machines.
"""

import fcntl
import os
import socket
import struct
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def loopback_up() -> None:
    """Bring up 127.0.0.1, which a new network namespace lacks."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack_from("H", fcntl.ioctl(sock, _SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


class _Cluster:
    """Pytest plugin that gives tests the cluster. It is an object because a module would be imported twice."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    @pytest.fixture
    def cluster(self) -> Any:
        return self._cluster


@contextmanager
def running_cluster() -> Generator[Any]:
    """Start a cluster with one node in this network namespace; `CALLBOARD_TEST_RAY` has its address meanwhile."""
    interfaces = [name for _, name in socket.if_nameindex()]
    if interfaces != ["lo"]:
        sys.exit(f"there are interfaces {interfaces}; run it by `unshare --net`, or Ray listens for others")
    loopback_up()
    os.environ |= {
        "RAY_AUTH_MODE": "disabled",
        "PYTHONPATH": str(Path.cwd()),  # Ray workers import the tools from here.
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # Otherwise Ray workers start by `uv run`, which needs a network.
        "RAY_agent_register_timeout_ms": "120000",  # Ray starts slowly on a busy machine.
    }
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 4, "object_store_memory": 100 * 2**20, "node_ip_address": "127.0.0.1"}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        os.environ["CALLBOARD_TEST_RAY"] = cluster.address
        yield cluster
    finally:
        cluster.shutdown()


def main(files: list[str]) -> int:
    """Start the cluster, run the tests in it and end it."""
    with running_cluster() as cluster:
        options = ["-n0", "-m", "", "-k", "not asyncio-", "-v"]
        options += ["--timeout", "200", "-o", "filterwarnings="]
        return int(pytest.main([*options, *files], plugins=[_Cluster(cluster)]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
