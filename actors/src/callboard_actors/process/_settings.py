"""Options of a pool, shared by the pool, its zygotes and its workers."""

import resource
import sys
from dataclasses import dataclass
from typing import Literal

from callboard_actors._engine import _kernel
from callboard_actors._engine._main_module import MainModule
from callboard_actors._util._options import check_counts, check_seconds
from callboard_actors.process._confinement._confine import Confine

# Fewer files than this, and a worker fails before its first call.
_MIN_FILES = 16
_CONFINED_FILES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Validated options of a pool; see `Processes` for the meaning of each option."""

    workers: int
    start: Literal["fork", "spawn"]
    preload: tuple[str, ...]
    grace: float
    max_calls: int | None
    memory: int | None
    cpu: int | None
    files: int | None
    max_result: int
    max_output: int
    start_timeout: float
    confine: Confine | None

    def __post_init__(self) -> None:
        counts = [(name, getattr(self, name), 1) for name in ("max_calls", "memory", "cpu", "files")]
        counts = [(name, count, minimum) for name, count, minimum in counts if count is not None]
        counts += [(name, getattr(self, name), 1) for name in ("workers", "max_result", "max_output")]
        check_counts("Processes", counts)
        hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        files = self.files
        if files is not None and files < _MIN_FILES:
            raise ValueError(f"files={files} is less than {_MIN_FILES}, which a worker and its modules need themselves")
        if files is not None and hard_limit != resource.RLIM_INFINITY and files > hard_limit:
            raise ValueError(f"files={files} is more than the {hard_limit} that this process may have itself")
        # Options that this operating system cannot enforce.
        system = f"and this is {sys.platform}"
        if self.start not in ("fork", "spawn"):
            raise ValueError(f"start={self.start!r} is neither 'fork' nor 'spawn'")
        if self.start == "fork" and not _kernel.FORKS:
            raise ValueError(f"start='fork' is for Linux, {system}; leave it out, and workers are new interpreters")
        if self.memory is not None and not _kernel.LIMITS_MEMORY:
            raise ValueError(f"memory={self.memory} needs a kernel that keeps RLIMIT_AS, {system}, which does not")
        if self.confine is not None:
            if not isinstance(self.confine, Confine):
                raise TypeError(f"confine={self.confine!r} is no Confine")
            if not _kernel.FORKS:
                raise ValueError(f"confine= needs Linux, whose Landlock and seccomp keep what it says, {system}")
            if self.start != "fork":
                raise ValueError(
                    f"confine= needs start='fork', not {self.start!r}: what workers may use is opened before they run"
                )
            if self.max_calls not in (None, 1) and not self.confine.reuse:
                raise ValueError(f"max_calls={self.max_calls} needs Confine(reuse=True): else a worker serves one call")
            if self.cpu is not None and self.confine.reuse:
                raise ValueError(
                    f"cpu={self.cpu} needs Confine(reuse=False): a call could lift the limit of the next one"
                )
        check_seconds("Processes", least=0.0, grace=self.grace, start_timeout=self.start_timeout)

    @property
    def serves_once(self) -> bool:
        """`True` if a worker serves only one call, because untrusted code may remain in the worker after the call."""
        return self.confine is not None and not self.confine.reuse

    @property
    def max_files(self) -> int | None:
        """Maximum number of open files of a worker; `None` if an unconfined worker keeps this process's limit."""
        # Each file may be a socket with a full buffer: kernel memory that `memory` does not count.
        if self.files is not None or self.confine is None:
            return self.files
        hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        return _CONFINED_FILES if hard_limit == resource.RLIM_INFINITY else min(_CONFINED_FILES, hard_limit)

    @property
    def last_grace(self) -> float:
        """Seconds that an idle worker has for clean-up before it is killed; zero for confined workers."""
        return self.grace if self.confine is None else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings that a pool sends to a zygote or to a worker's new interpreter, as the first message."""

    parent: int
    """Process id of the zygote's parent, the pool's process."""
    backend: str
    """Event loop of async functions: "asyncio" or "trio"."""
    options: PoolOptions
    optional_modules: tuple[str, ...] = ()
    """Names of optional modules, which are preloaded if they can be imported."""
    is_quiet: bool = False
    """`True` to print nothing about optional modules that cannot be loaded: another interpreter has printed it."""
    main: MainModule | None = None
    """Main module of the pool's program, if workers can load it."""
