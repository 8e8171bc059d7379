"""Command lines without a shell: the program of a command, and the shell syntax that is refused."""

import shlex
import shutil
from collections.abc import Mapping, Sequence


class RefusedError(Exception):
    """Command that is not run; the text is for the model."""


_SHELL_ONLY = frozenset("|&;<>()$`*?[\n")
_AT_BEGIN = frozenset("~#")
"""Characters with a meaning for a shell at the beginning of a word only."""


def found_programs(allow: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the path of each allowed program; raise ValueError if one does not exist."""
    found: dict[str, str] = {}
    for name in allow:
        path = shutil.which(name, path=env.get("PATH"))
        if path is None:
            raise ValueError(f"Shell(allow=[{name!r}, ...]): there is no such program on PATH={env.get('PATH')!r}")
        found[name] = path
    return found


def argv_of(command: str, programs: Mapping[str, str]) -> list[str]:
    """Return the program of a command, and its arguments; raise RefusedError for shell syntax or another program."""
    allowed = f"Allowed: {', '.join(programs)}, one of them in a call, with its arguments and without a shell."
    if (sign := _first_of_shell(command)) is not None:
        raise RefusedError(
            f"Refused: there is no shell here, which {sign!r} is for; in single quotes it stands for itself. {allowed}"
        )
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise RefusedError(f"Refused: the command cannot be read: {error}. {allowed}") from None
    if not words:
        raise RefusedError(f"Refused: the command is empty. {allowed}")
    if words[0] not in programs:
        raise RefusedError(f"Refused: {words[0]!r:.80} is not allowed. {allowed}")
    return [programs[words[0]], *words[1:]]


def _first_of_shell(command: str) -> str | None:
    """Return the first character that a shell would interpret."""
    quote = ""
    is_begin = True
    at = 0
    while at < len(command):
        sign = command[at]
        if quote == "'":
            quote = "" if sign == "'" else quote
        elif sign == "\\":
            at += 1
        elif quote == '"':
            if sign in "$`":
                return sign
            quote = "" if sign == '"' else quote
        elif sign in "'\"":
            quote = sign
        elif sign in _SHELL_ONLY or (is_begin and sign in _AT_BEGIN) or _is_braces(command, at):
            return sign
        is_begin = not quote and sign in " \t"
        at += 1
    return None


def _is_braces(command: str, at: int) -> bool:
    """Return whether a shell would expand braces here; `{}` is a placeholder of `find`."""
    return command[at] == "{" and command[at : at + 2] != "{}"
