"""Packages that come with an extra: who needs one says so before it is used, and how to install it."""

from importlib import import_module


def require(whose: str, *packages: str, extra: str, instead: str = "") -> None:
    """Import packages that not every installation has.

    Args:
        whose: what needs them, as its user has written it, such as "Cache(...)".
        packages: names of modules.
        extra: of callboard, which installs them.
        instead: how to do without; follows "or".

    Raises:
        ImportError: if some are missing; says how to install them.
    """
    missing = [package for package in packages if not is_installed(package)]
    if missing:
        other = f", or {instead}" if instead else ""
        raise ImportError(f"{whose} needs {' and '.join(missing)}: pip install 'callboard[{extra}]'{other}")


def is_installed(package: str) -> bool:
    """Whether a package can be imported; it is, then, so that no later use of it has to wait."""
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # it is there, and something that it needs is not
        return False
    return True
