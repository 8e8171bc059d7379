"""Imports of optional packages, with an error that names the packages to install."""

import re
from importlib import import_module
from importlib.metadata import requires


def install_command(distribution: str, extra: str) -> str:
    """Return the command that installs the packages of an extra, with their versions, for a message of an error.

    It does not name the distribution: one that is installed from its source has no name on an index, where another
    project could take it.

    Args:
        distribution: installed distribution, such as "callboard".
        extra: name of the extra.

    Raises:
        PackageNotFoundError: if the distribution is not installed.
    """
    of_extra = re.compile(rf"(.+?); .*\bextra == ['\"]{re.escape(extra)}['\"]")
    matches = map(of_extra.fullmatch, requires(distribution) or ())
    return f"pip install {' '.join(repr(requirement[1]) for requirement in matches if requirement)}"


def require(whose: str, *packages: str, extra: str, instead: str = "") -> None:
    """Import optional packages for the feature `whose`; raise an ImportError that names the packages to install."""
    missing = [package for package in packages if not is_installed(package)]
    if missing:
        alternative = f", or {instead}" if instead else ""
        raise ImportError(f"{whose} needs {' and '.join(missing)}: {install_command('callboard', extra)}{alternative}")


def is_installed(package: str) -> bool:
    """Import a package, and return whether it is installed. The first use of the package then needs no import."""
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # the package is installed, but one of its own imports is missing
        return False
    return True
