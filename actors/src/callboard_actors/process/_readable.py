"""What every confined worker may read: the interpreter, what it loads, and how a place tells its time."""

import os
import sys
import sysconfig
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_SYSTEM: Final = (
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    "/usr/share/zoneinfo",
    "/etc/localtime",
    "/usr/share/locale",
    "/dev/urandom",
    "/dev/random",
)
_RESOLVER: Final = ("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf")


def always_readable(modules: Iterable[str | os.PathLike[str]] | None, *, network: bool) -> set[str]:
    """Paths that are there, without links. `modules` are folders to load from, beside the installation's own."""
    return {os.path.realpath(path) for path in ways_to_readable(modules, network=network)}


def ways_to_readable(modules: Iterable[str | os.PathLike[str]] | None, *, network: bool) -> list[str]:
    """Say by which paths all that is looked for, links included; those that are there."""
    found = [*_SYSTEM, *_of_the_interpreter(), *_loaded_libraries(), *_our_own()]
    # An empty entry is the working directory, which may be anybody's home.
    found += [entry for entry in sys.path if entry] if modules is None else [os.fspath(path) for path in modules]
    if network:
        import ssl

        paths = ssl.get_default_verify_paths()
        found += [*_RESOLVER, paths.cafile or "", paths.capath or "", paths.openssl_capath]
    return [path for path in found if path and Path(path).exists()]


def _of_the_interpreter() -> list[str]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return [
        sys.executable,
        str(Path(sys.prefix, "pyvenv.cfg")),
        *(sysconfig.get_path(name) for name in names),
        *(sysconfig.get_path(name, vars={"base": sys.base_prefix}) for name in names[:2]),
    ]


def _loaded_libraries() -> set[str]:
    """The folders of shared libraries that this process has, wherever the interpreter was built."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = (line.split(maxsplit=5)[-1] for line in lines if "/" in line)
    return {str(Path(path).parent) for path in paths if ".so" in Path(path).name}


def _our_own() -> list[str]:
    specs = [find_spec(name) for name in ("callboard", "callboard_actors")]  # found, not loaded
    return [str(Path(spec.origin).parents[1]) for spec in specs if spec is not None and spec.origin is not None]
