"""Imports of optional packages, with an error that names the extra to install."""

from importlib import import_module


def require(whose: str, *packages: str, extra: str, instead: str = "") -> None:
    """Import optional packages for the feature `whose`; raise an ImportError that names the extra to install."""
    missing = [package for package in packages if not is_installed(package)]
    if missing:
        other = f", or {instead}" if instead else ""
        raise ImportError(f"{whose} needs {' and '.join(missing)}: pip install 'callboard[{extra}]'{other}")


def is_installed(package: str) -> bool:
    """Import a package, and return whether it is installed. The first use of the package then needs no import."""
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # the package is installed, but one of its own imports is missing
        return False
    return True
