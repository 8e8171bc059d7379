"""Check of environment variables that users give for worker processes."""

from collections.abc import Mapping


def variables(where: str, given: object) -> dict[str, str]:
    """Check environment variables that a user gives, and return them; raise TypeError or ValueError for wrong ones.

    `where` names the user's option in errors.
    """
    if not isinstance(given, Mapping):
        # The errors show names and types only: values may be secret keys.
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
