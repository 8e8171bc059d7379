"""Packages that come with an extra of this distribution: who needs one says so early, and how to install it."""

from importlib import import_module


def needs(whose: str, package: str, *, extra: str) -> None:
    """Import a package that not every installation has.

    Args:
        whose: what needs it, as its user has written it, such as "RedisLimits(...)".
        package: the name of the module.
        extra: of `callboard-actors`, which installs it.

    Raises:
        ImportError: it is not installed; says how to install it.
    """
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # it is there, and something that it needs is not
        raise ImportError(f"{whose} needs {package}: pip install 'callboard-actors[{extra}]'") from error
