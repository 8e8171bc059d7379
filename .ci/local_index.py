"""An upload to a package index on loopback, and installs by name from it.

`python .ci/local_index.py FOLDER_OF_DISTRIBUTIONS PYTHON...` does what the section "Release" of CONTRIBUTING.md says,
with `pypiserver` in the place of the index. Every wait has an end, and the server has ended after it.
"""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

PATIENCE = 120.0
"""Seconds for each command. A quiet machine needs a tenth of it."""

SMOKE = Path(__file__).with_name("smoke.py")


def run(*command: str | Path, folder: Path) -> None:
    """Run a command in a folder; raise an error if it fails or does not end."""
    subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, timeout=PATIENCE, check=True)


@contextmanager
def index_on_loopback(scratch: Path) -> Iterator[str]:
    """Serve an empty index without passwords, and yield its address."""
    environment, packages = scratch / "pypiserver", scratch / "packages"
    packages.mkdir()
    run("uv", "venv", "--quiet", environment, folder=scratch)
    python = environment / "bin" / "python"
    run("uv", "pip", "install", "--quiet", "--python", python, "pypiserver>=2.4,<3", folder=scratch)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    # Without the fallback it knows our packages only: a typing error in a name finds no stranger's package.
    address_options = ("--interface", "127.0.0.1", "--port", str(port), "--disable-fallback")
    command = (
        environment / "bin" / "pypi-server",
        "run",
        *address_options,
        "--authenticate",
        ".",
        "--passwords",
        ".",
        packages,
    )
    with (scratch / "pypiserver.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            wait_for(f"http://127.0.0.1:{port}/health", server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def wait_for(address: str, server: "subprocess.Popen[bytes]") -> None:
    """Wait until the server answers."""
    end = time.monotonic() + PATIENCE
    while server.poll() is None and time.monotonic() < end:
        try:
            with urlopen(address, timeout=5):  # noqa: S310 - loopback
                return
        except OSError:
            time.sleep(0.05)
    raise TimeoutError(f"pypiserver does not answer at {address}")


def upload(folder: Path, index: str) -> None:
    """Check the metadata and the readmes, then upload `callboard` before `callboard-actors`, which needs it."""
    files = {name: sorted(folder.glob(f"{name}-*")) for name in ("callboard", "callboard_actors")}
    run(
        "uv",
        "tool",
        "run",
        "--quiet",
        "twine@7",
        "check",
        "--strict",
        *files["callboard"],
        *files["callboard_actors"],
        folder=folder,
    )
    for paths in files.values():
        account = ("--username", "anyone", "--password", "none", "--trusted-publishing", "never")
        run("uv", "publish", "--quiet", "--publish-url", f"{index}/", *account, *paths, folder=folder)


def install(python: str, steps: list[list[str]], index: str, scratch: Path) -> None:
    """Install by name into an empty environment, and use what is installed after each step."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        run("uv", "venv", "--quiet", "--python", python, "env", folder=Path(folder))
        index_options = (
            "--index",
            f"{index}/simple/",
            "--refresh-package",
            "callboard",
            "--refresh-package",
            "callboard-actors",
        )
        for names in steps:
            run(
                "uv",
                "pip",
                "install",
                "--quiet",
                "--python",
                "env/bin/python",
                *index_options,
                *names,
                folder=Path(folder),
            )
            run("env/bin/python", SMOKE, folder=Path(folder))
        run("env/bin/callboard", "--version", folder=Path(folder))


def main(distributions: Path, pythons: list[str]) -> None:
    """Upload the distributions to an index on loopback, and install them from it with each Python."""
    with tempfile.TemporaryDirectory(prefix="local-index-") as scratch, index_on_loopback(Path(scratch)) as index:
        upload(distributions, index)
        bare, full = ["callboard", "callboard-actors"], ["callboard[cli,langchain]", "callboard-actors"]
        for number, python in enumerate(pythons):
            install(python, [full] if number else [bare, full], index, Path(scratch))
    print(f"uploaded and installed by name with {len(pythons)} Pythons")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
