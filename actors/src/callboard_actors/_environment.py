"""Environment variables that somebody names for processes of ours."""

from collections.abc import Mapping


def variables(where: str, given: object) -> dict[str, str]:
    """What a process can have of it: all, or an error now, and not when the process is started.

    Args:
        where: the option, for errors. They show no values, because there are keys among them.
        given: names and texts.

    Raises:
        TypeError: it is something else.
        ValueError: no process can have a variable of that name, or such a text.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"{where} is a mapping of names to texts, got one of type {type(given).__name__}")
    found: dict[str, str] = {}
    for name, text in given.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(
                f"{where} has {name!r} with a value of type {type(text).__name__}, and both have to be strings"
            )
        if not name or "=" in name or "\0" in name + text:
            raise ValueError(f"{where} has {name!r} with a text or a name that no process can have")
        found[name] = text
    return found
