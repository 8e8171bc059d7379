"""Recording options of a run, and the recorder around it."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from callboard._cli._recording_files import recording_name, records_dir
from callboard._cli._shown_text import CommandError
from callboard.telemetry import Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Recording options of the command line."""

    wanted: bool | None = None
    """`None` if the option is not given: then the run is recorded if a directory is known."""
    folder: Path | None = None
    """Directory of recordings; by default beside the database file."""
    capture: bool = False
    """`True` to record arguments and results."""

    def path(self, db: str | None, thread_id: str) -> Path | None:
        """Return the recording file of a thread, or `None` for no recording.

        Raises `CommandError` if a recording is wanted, but no directory is known.
        """
        folder = self.folder or (records_dir(db) if db else None)
        if self.wanted is False or folder is None:
            self._check()
            return None
        return folder / recording_name(thread_id)

    def _check(self) -> None:
        for option, given in (("--record", self.wanted), ("--capture", self.capture)):
            if given:
                raise CommandError(f"{option} needs a recording: --record-to DIR, or --db with the path of a file")


@contextmanager
def recorded(path: Path | None, *, capture: bool = False) -> Generator[None]:
    """Append a recording of the calls inside the block to a file; `None` for no recording.

    Raises `CommandError` if the file cannot be written, or if a package that finds secrets is missing.
    """
    if path is None:
        yield
        return
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(Recorder(path, append=True, capture=capture))
        except FileExistsError as error:
            raise CommandError(f"cannot record to {path}: {path.parent} is no directory") from error
        except ImportError as error:
            raise CommandError(f"cannot record arguments and results: {error}") from error
        except OSError as error:
            raise CommandError(f"cannot record to {path}: {error.strerror or error}") from error
        yield
