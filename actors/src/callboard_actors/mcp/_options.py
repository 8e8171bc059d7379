"""Checks of `McpServer` options."""

from collections.abc import Mapping


def check_options(name: object, prefix: object, key: object, of_keys: Mapping[str, object]) -> None:
    """Raise `TypeError` for options of a wrong type, and `ValueError` for options that have no effect.

    `of_keys` has the options that need a `key` function.
    """
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(f"McpServer(name=...) is a text, got {name!r}")
    if not isinstance(prefix, str):
        raise TypeError(f"McpServer(prefix=...) is a text, such as 'files_'; got {prefix!r}")
    if key is not None and not callable(key):
        raise TypeError(f"McpServer(key=...) is a function of a run's config, got {key!r}")
    for option, value in of_keys.items():
        if key is None and value is not None:
            raise ValueError(f"McpServer({option}={value!r}) is for connections by key; say key=..., or leave it out")
