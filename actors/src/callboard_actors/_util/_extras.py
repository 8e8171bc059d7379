"""Early check for packages that an extra of this distribution installs."""

from importlib import import_module


def needs(whose: str, package: str, *, extra: str) -> None:
    """Import a package that an extra installs; raise ImportError with the command that installs it.

    Args:
        whose: the user's expression that needs it, such as "RedisLimits(...)".
        package: name of the module.
        extra: name of the extra of `callboard-actors`.
    """
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # the package is installed, but a package that it needs is not
        raise ImportError(f"{whose} needs {package}: pip install 'callboard-actors[{extra}]'") from error
