"""Command line `callboard`. Its dependencies come with `callboard[cli]`, and are imported when it runs."""

import os
import sys

_NEEDED = frozenset({"rich", "typer", "httpx2"})


def main() -> None:
    """Run the command line. Entry point of the console script `callboard`."""
    _open_closed_streams()
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


def _open_closed_streams() -> None:
    """Open each standard stream that the caller has closed, as some schedulers do, on the null device."""
    # Not only because Python has `None` then: the next file that is opened, such as a recording, would get the number
    # of the stream, and texts that C libraries write to stderr would stand in it.
    for name, flag, mode in (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_WRONLY, "w"), ("stderr", os.O_WRONLY, "w")):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, flag)
            os.set_inheritable(fd, True)  # child processes, such as MCP servers, need their streams, too
            setattr(sys, name, open(fd, mode, closefd=False))  # noqa: SIM115 (until the process ends)
