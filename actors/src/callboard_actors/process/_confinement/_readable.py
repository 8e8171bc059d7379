"""Paths that every confined worker may read: the interpreter, installed packages and time zones."""

import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_SYSTEM_PATHS: Final = (
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
_RESOLVER_FILES: Final = ("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf")


def always_readable(modules: Iterable[str | os.PathLike[str]], *, network: bool) -> set[str]:
    """Return the existing paths that confined workers may read, including `modules`; resolve symbolic links."""
    # Without `sys.path`: the script's folder, `PYTHONPATH` and editable installations contain a program's own files,
    # which may be secrets.
    readable = [*_SYSTEM_PATHS, sys.executable, str(Path(sys.prefix, "pyvenv.cfg"))]
    readable += [os.fspath(path) for path in modules]
    readable += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    readable += [sysconfig.get_path(name, vars={"base": sys.base_prefix}) for name in ("stdlib", "platstdlib")]
    # Folders of installed packages. `getsitepackages` also returns folders that this interpreter does not use.
    import_folders = {os.path.realpath(entry) for entry in sys.path if entry}
    site_packages = [*site.getsitepackages(), site.getusersitepackages()]
    readable += [path for path in site_packages if os.path.realpath(path) in import_folders]
    # The loaded shared libraries: below the interpreter's `lib`, the whole folder of a library. Other folders stay
    # closed: an extension module of the program may lie beside its `.env`.
    folders = [os.path.realpath(Path(prefix, "lib")) for prefix in (sys.prefix, sys.base_prefix)]
    for library in map(Path, _library_files()):
        readable.append(str(library.parent if any(map(library.is_relative_to, folders)) else library))
    # The folders of callboard itself, which may be editable installations; found without importing them.
    specs = [find_spec(name) for name in ("callboard", "callboard_actors")]
    readable += [str(Path(spec.origin).parent) for spec in specs if spec is not None and spec.origin is not None]
    if network:
        import ssl

        certificates = ssl.get_default_verify_paths()
        # TLS needs the certificates of authorities, and names are resolved by the system's configuration.
        readable += _RESOLVER_FILES
        readable += [certificates.cafile or "", certificates.capath or "", certificates.openssl_capath]
    return {os.path.realpath(path) for path in readable if path and Path(path).exists()}


def _library_files() -> set[str]:
    """Return the paths of all shared libraries that this process has loaded, read from `/proc/self/maps`."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = (mapping.split(maxsplit=5)[-1] for mapping in lines if "/" in mapping)
    return {path for path in paths if ".so" in Path(path).name}
