"""Names of tools, as options take them."""

from collections.abc import Collection


def tool_names(option: str, given: object) -> frozenset[str]:
    """The names.

    Raises:
        TypeError: for one name instead of several, or tools instead of their names.
    """
    if not isinstance(given, str) and isinstance(given, Collection):
        names = [name for name in given if isinstance(name, str)]
        if len(names) == len(given):
            return frozenset(names)
    raise TypeError(f"{option} takes names of tools, such as ['search']; got {given!r}")
