"""Command `callboard doctor`: checks versions, extras, confinement and backends, and prints remedies."""

# Other packages are imported inside functions: the command has to report a package that is missing or broken.

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, entry_points, metadata, requires, version
from typing import TYPE_CHECKING, Any, Literal

from callboard._cli._shown_text import count, duration, error_text, one_line

if TYPE_CHECKING:
    from packaging.requirements import Requirement

State = Literal["ok", "absent", "warning", "broken"]
GROUP = "callboard.doctor"
"""Group of entry points with further checks: functions that return name, state, value and remedy of each check."""
OURS = ("callboard", "callboard-actors")
_REINSTALL = "install both distributions again from where they are from, see docs/how-to/install.md"
"""Remedy for our own distributions; pip would look for their names on an index, where anybody could have them."""
_TIMEOUT = 5.0
_LONGEST = 300
"""Maximum length of a text in the table, in characters."""


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check. A check that is "broken" makes the command fail; "absent" and "warning" do not."""

    name: str
    state: State
    value: str
    remedy: str = ""


def run_doctor(*, as_json: bool) -> int:
    """Run all checks, print the results, and return the exit code."""
    groups: dict[str, Callable[[], Iterable[Check]]] = {
        "versions": _versions,
        "extras": _extras,
        "confinement": _confinement,
        "backends": _backends,
    }
    results: dict[str, list[Check]] = {}
    for name, run in groups.items():
        results[name] = []
        try:
            results[name].extend(run())
        except Exception as error:
            results[name].append(Check(name, "broken", error_text(error), _REINSTALL))
    broken = sum(check.state == "broken" for checks in results.values() for check in checks)
    if as_json:
        listed = [{"group": name, **asdict(check)} for name, checks in results.items() for check in checks]
        print(json.dumps({"ok": not broken, "checks": listed}, indent=2))
    else:
        for name, checks in results.items():
            _print_table(name, checks)
        print(f"{count(broken, 'check')} failed." if broken else "All required parts work.")
    return 1 if broken else 0


def main(arguments: Sequence[str]) -> int:
    """Run the command without typer, in an installation without the extra `cli`; return the exit code."""
    parser = argparse.ArgumentParser(prog="callboard doctor", description="Check this installation of callboard.")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    return run_doctor(as_json=parser.parse_args(arguments).json)


def _print_table(group: str, checks: Sequence[Check]) -> None:
    if not checks:
        return
    print(group)
    # Escaped and on one line: texts of other packages cannot control the terminal, nor forge a row.
    names = [one_line(check.name, _LONGEST) for check in checks]
    width = max(map(len, names))
    for name, check in zip(names, checks, strict=True):
        print(f"  {check.state:<7}  {name:<{width}}  {one_line(check.value, _LONGEST)}")
        if check.remedy:
            print(f"{'':{width + 13}}-> {check.remedy}")
    print()


# Versions and extras, from the metadata of the installed distributions.


def _versions() -> Iterator[Check]:
    from packaging.requirements import Requirement  # a requirement of langchain-core

    python = Requirement(f"Python{metadata('callboard')['Requires-Python']}")
    yield _version_check(python, platform.python_version().rstrip("+"))  # "3.13.1+" is built from a repository
    yield Check("platform", "ok", f"{platform.python_implementation()} on {platform.platform()}")
    checked_names: set[str] = set(OURS)
    for distribution in OURS:
        installed = _version_of(distribution)
        if installed is None:
            yield Check(distribution, "absent", "not installed", _REINSTALL)
            continue
        yield Check(distribution, "ok", installed)
        for package, installed in _packages(distribution):
            if package.name not in checked_names or not _is_good(package, installed):
                checked_names.add(package.name)
                yield _version_check(package, installed)


def _version_check(package: "Requirement", installed: str | None) -> Check:
    if _is_good(package, installed):
        return Check(package.name, "ok", f"{installed} ({package.specifier})")
    value = f"{installed} (outside {package.specifier})" if installed else f"not installed ({package.specifier})"
    return Check(package.name, "broken", value, _install(package))


def _extras() -> Iterator[Check]:
    for distribution in filter(_version_of, OURS):
        for extra in metadata(distribution).get_all("Provides-Extra") or ():
            name = f"{distribution}[{extra}]"
            packages = list(_packages(distribution, extra))
            missing = [package.name for package, installed in packages if installed is None]
            wrong = [
                f"{package.name} {installed} (outside {package.specifier})"
                for package, installed in packages
                if installed and not _is_good(package, installed)
            ]
            remedy = _install(*(package for package, installed in packages if not _is_good(package, installed)))
            if missing:
                yield Check(name, "absent", f"missing: {', '.join(missing)}", remedy)
            elif wrong:
                yield Check(name, "warning", ", ".join(wrong), remedy)
            else:
                complete = ", ".join(f"{package.name} {installed}" for package, installed in packages)
                yield Check(name, "ok", complete or "not for this Python and platform")


def _packages(distribution: str, extra: str = "") -> "Iterator[tuple[Requirement, str | None]]":
    """Yield the requirements of a distribution, or only those of an extra, each with the installed version."""
    from packaging.requirements import Requirement

    for package in map(Requirement, requires(distribution) or ()):
        with_extra, without = (
            package.marker is None or package.marker.evaluate({"extra": name}) for name in (extra, "")
        )
        if with_extra and not (extra and without):
            yield package, (installed := _version_of(package.name))
            for inner in package.extras if installed else ():
                yield from _packages(package.name, inner)


def _version_of(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _is_good(package: "Requirement", installed: str | None) -> bool:
    return installed is not None and package.specifier.contains(installed, prereleases=True)


def _install(*packages: "Requirement") -> str:
    return f"pip install {' '.join(repr(str(package).partition(';')[0]) for package in packages)}"


# Confinement and backends.


def _confinement() -> Iterator[Check]:
    name = "Confine(...)"
    checks = list(entry_points(group=GROUP))
    if not checks:
        yield Check(name, "absent", "comes with callboard-actors", _REINSTALL)
    for entry in checks:
        try:
            yield from (Check(*result) for result in entry.load()())
        except ImportError as error:  # worker processes need a POSIX system
            yield Check(name, "absent", str(error))


def _backends() -> Iterator[Check]:
    for name in ("asyncio", "uvloop", "trio"):
        if name == "uvloop" and _version_of(name) is None:
            # The extra has no packages where uvloop does not exist, such as on Windows: there is nothing to install.
            packages = [package for package, _ in _packages("callboard", name)]
            result = ("not installed", _install(*packages)) if packages else ("not for this system",)
            yield Check(name, "absent", *result)
            continue
        try:
            took = _run_agent("trio" if name == "trio" else "asyncio", {"use_uvloop": True} if name == "uvloop" else {})
        except Exception as error:
            remedy = "pip install --force-reinstall uvloop" if name == "uvloop" else _REINSTALL
            yield Check(name, "broken", error_text(error), remedy)
        else:
            yield Check(name, "ok", f"an agent called a tool, {duration(took)}")


def _run_agent(backend: str, options: dict[str, Any]) -> float:
    """Run an agent that calls a tool, and return its duration in seconds; raise an error if its messages are wrong."""
    import anyio.lowlevel
    from langsmith import tracing_context

    from callboard import create_react_agent
    from callboard.testing import ScriptedModel, calls

    async def ping() -> str:
        """Let the event loop run once, as a tool that waits does, and return "pong"."""
        await anyio.lowlevel.checkpoint()
        return "pong"

    agent = create_react_agent(ScriptedModel([calls("ping"), "Done."]), [ping])

    async def ask() -> Any:
        with anyio.fail_after(_TIMEOUT):
            return await agent.ainvoke({"messages": [("user", "ping?")]})

    start = time.perf_counter()
    with tracing_context(enabled=False):  # nothing is sent to LangSmith, whatever the environment says
        state = anyio.run(ask, backend=backend, backend_options=options)
    contents = [message.content for message in state["messages"]]
    if contents != ["ping?", "", "pong", "Done."]:
        raise RuntimeError(f"the messages of the agent are {contents}")
    return time.perf_counter() - start
