"""Command line `callboard`. Its dependencies come with `callboard[cli]`, and are imported when it runs."""

import sys

_NEEDED = frozenset({"rich", "typer", "httpx2"})


def main() -> None:
    """Run the command line. Entry point of the console script `callboard`."""
    try:
        from callboard._cli._app import app

        app()
    except ModuleNotFoundError as error:
        if sys.argv[1:2] == [
            "doctor"
        ]:  # needs no package outside the standard library, and names those that are missing
            from callboard._cli._doctor import main as doctor

            sys.exit(doctor(sys.argv[2:]))
        missing = (error.name or "").partition(".")[0]
        if missing not in _NEEDED:  # an error of the user's module or of callboard itself
            raise
        sys.exit(f"The callboard command needs {missing}: pip install 'callboard[cli]'")
    except KeyboardInterrupt:
        sys.exit(130)
