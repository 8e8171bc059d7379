"""Command line `callboard`. Its dependencies come with `callboard[cli]`, and are imported when it runs."""

import sys

_NEEDED = frozenset({"rich", "typer", "httpx2"})


def main() -> None:
    """Run the command line. Entry point of the console script `callboard`."""
    try:
        from callboard._cli._app import app

        app()
    except ImportError as error:
        # The command that says what is wrong with an installation runs without these packages.
        if sys.argv[1:2] == ["doctor"]:
            from callboard._cli._doctor import main as doctor

            sys.exit(doctor(sys.argv[2:]))
        missing = (error.name or "").partition(".")[0]
        if missing not in _NEEDED or not isinstance(error, ModuleNotFoundError):
            raise  # an error of the user's module or of callboard itself
        from callboard.extend import install_command

        sys.exit(f"The callboard command needs {missing}: {install_command('callboard', 'cli')}")
    except KeyboardInterrupt:
        sys.exit(130)
