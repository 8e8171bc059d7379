"""The `callboard` command. What it needs comes with `callboard[cli]` and is imported when it runs."""

import sys

_NEEDED = frozenset({"rich", "typer", "httpx2"})


def main() -> None:
    """Run the command line; the console script `callboard`."""
    try:
        from callboard._cli._app import app

        app()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _NEEDED:
            raise
        sys.exit(f"The callboard command needs {missing}: pip install 'callboard[cli]'")
    except KeyboardInterrupt:
        sys.exit(130)
