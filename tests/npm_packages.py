"""Packages from npm that tests run; each version is installed once in a folder of its own.

python -m tests.npm_packages    installs all of them, as `.ci/run` does
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = {
    "@ag-ui/client": "1.0.0",
    "@modelcontextprotocol/inspector": "2.12.0",
    "@modelcontextprotocol/server-everything": "2026.8.31",
    "@modelcontextprotocol/server-filesystem": "2026.8.31",
}
"""Packages by name, with the version that the tests use."""

WAIT = 300
"""Time limit of an installation, in seconds."""


def find_or_install(name: str, version: str) -> Path | None:
    """Return the program of a package, after installing it if necessary; `None` if it cannot be installed.

    The program is the package's command, or its main module if it has no command.

    Args:
        name: name of the package, with its scope.
        version: exact version.
    """
    folder = _cache() / f"{name.replace('/', '+')}@{version}"
    if not folder.exists() and shutil.which("npm") is not None:
        _install(f"{name}@{version}", folder)
    return _program(name, folder) if folder.exists() else None


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "callboard-tests" / "npm"


def _install(package: str, folder: Path) -> None:
    """Install beside the folder, then rename: another process sees the whole installation or none."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as scratch:
        prefix = Path(scratch) / "made"
        prefix.mkdir()
        command = ["npm", "install", "--prefix", str(prefix), "--no-audit", "--no-fund", "--ignore-scripts", package]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=WAIT)
            prefix.rename(folder)
        except (OSError, subprocess.SubprocessError) as error:
            if not folder.exists():  # otherwise another process was quicker
                print(f"{package} could not be installed: {error}", file=sys.stderr)


def _program(name: str, folder: Path) -> Path:
    """Return the command that the package installs; the first one, if there are several; or its main module."""
    home = folder / "node_modules" / name
    package = json.loads((home / "package.json").read_text())
    command = package.get("bin", package.get("main"))
    return home / (command if isinstance(command, str) else next(iter(command.values())))


if __name__ == "__main__":
    missing = [name for name, version in PACKAGES.items() if find_or_install(name, version) is None]
    sys.exit(f"not to be had: {', '.join(missing)}" if missing else 0)
