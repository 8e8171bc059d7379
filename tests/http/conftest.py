"""A real web server in another process, and a socket to which no test may connect."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import httpx2
import pytest
import trustme

from callboard_actors.http import _fetch

from ._world import ROOT, Site, Trap


@contextmanager
def serve_app(*arguments: str) -> Iterator[int]:
    command = [sys.executable, "-m", "tests.http._app", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


@pytest.fixture(scope="session", autouse=True)
def _certificates_are_read_once() -> Iterator[None]:
    # Each client would read the certificates of the system anew, which takes longer than most tests.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx2, "create_ssl_context", cache(httpx2.create_ssl_context))
        yield


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    with serve_app() as port:
        yield Site(f"http://127.0.0.1:{port}")


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="session")
def secure_site(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Run the web server with TLS as tea.example.org, a name that no real resolver knows."""
    path: Path = tmp_path_factory.mktemp("tls") / "server.pem"
    authority.issue_cert("tea.example.org").private_key_and_cert_chain_pem.write_to_path(str(path))
    with serve_app(str(path)) as port:
        yield Site(f"https://tea.example.org:{port}")


@pytest.fixture
def trap() -> Iterator[Trap]:
    with Trap() as trap:
        yield trap


@pytest.fixture
def short_conversions(monkeypatch: pytest.MonkeyPatch) -> None:
    """End the conversion of a page early. One that takes longer holds the loop no more."""
    monkeypatch.setattr(_fetch, "_CONVERSION_TIME", 0.5)
