"""Check that the packages of an extra are installed, which costs a process no import if they are."""

from importlib.util import find_spec


def check_installed(feature: str, *packages: str, extra: str) -> None:
    """Raise ImportError with the command that installs an extra, if one of its packages is missing."""
    if missing := [package for package in packages if find_spec(package) is None]:
        from callboard.extend import install_command

        raise ImportError(f"{feature} needs {' and '.join(missing)}: {install_command('callboard-actors', extra)}")
