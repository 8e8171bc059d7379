"""Whether a run is recorded, and where to."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from callboard._cli._recording_files import recording_name, records_dir
from callboard._cli._shown_text import CommandError
from callboard.telemetry import Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What the command line says about recording a run."""

    wanted: bool | None = None
    """`None` if it does not say; then there is one where a place for it is known."""
    folder: Path | None = None
    """Where recordings are kept; by default beside the database."""
    capture: bool = False
    """Whether arguments and results are to be in it."""

    def path(self, db: str | None, thread_id: str) -> Path | None:
        """The file for the calls of a conversation; `None` for no recording.

        Args:
            db: where the conversation is kept, if it is.
            thread_id: its name.

        Raises:
            CommandError: if there is to be one, and nobody has said where.
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
    """Record the calls that are started inside the block.

    Args:
        path: a file, to which it is added; `None` for no recording.
        capture: whether arguments and results are recorded, too.

    Raises:
        CommandError: if the file cannot be written, or what finds secrets is not installed.
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
