"""Early check for packages that an extra of this distribution installs."""

from importlib import import_module


def needs(whose: str, package: str, *, extra: str) -> None:
    """Import a package that only some installations have.

    Args:
        whose: the user's expression that needs it, such as "RedisLimits(...)".
        package: name of the module.
        extra: of `callboard-actors`, which installs the package.

    Raises:
        ImportError: if it is not installed; the text says how to install it.
    """
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # the package is installed, but a package that it needs is not
        raise ImportError(f"{whose} needs {package}: pip install 'callboard-actors[{extra}]'") from error
