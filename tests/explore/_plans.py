"""Plans: frozen dataclasses of numbers, texts and tuples; how they are written as source, and shrunk."""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from typing import Any, TypeVar

PlanT = TypeVar("PlanT")

WIDTH = 110


def written(value: Any, indent: int = 0) -> str:
    """Return a plan as a Python expression, without fields that have their default."""
    parts, ends = _parts(value)
    if parts is None:
        return repr(value)
    line = ends[0] + ", ".join(name + written(part) for name, part in parts) + ends[1]
    if len(line) + indent <= WIDTH:
        return line
    inner = "".join(f"\n{' ' * (indent + 4)}{name}{written(part, indent + 4)}," for name, part in parts)
    return f"{ends[0]}{inner}\n{' ' * indent}{ends[1].lstrip(',')}"


def _parts(value: Any) -> tuple[list[tuple[str, Any]] | None, tuple[str, str]]:
    if isinstance(value, tuple):
        return [("", part) for part in value], ("(", ",)" if len(value) == 1 else ")")
    if is_dataclass(value):
        parts = [
            (f"{member.name}=", current)
            for member in fields(value)
            if (current := getattr(value, member.name)) != member.default
        ]
        return parts, (f"{type(value).__name__}(", ")")
    return None, ("", "")


def homes_in(value: Any) -> set[tuple[str, str]]:
    """Return the classes that `written` names, each after its module."""
    parts, _ = _parts(value)
    own_home = {(type(value).__module__.rpartition(".")[2], type(value).__name__)} if is_dataclass(value) else set()
    return own_home.union(*(homes_in(part) for _, part in parts or ()))


def shrink(plan: PlanT, fails: Callable[[PlanT], bool], most: int = 300) -> PlanT:
    """Return the smallest plan that still fails, found greedily in at most `most` trials."""
    smaller = smaller_than(plan)
    for _ in range(most):
        if (candidate := next(smaller, None)) is None:
            break
        if fails(candidate):
            plan, smaller = candidate, smaller_than(candidate)
    return plan


def smaller_than(value: Any) -> Iterator[Any]:
    """Yield smaller plans: without half of some items, without one item, or with one value set to its default."""
    if isinstance(value, tuple):
        yield from _shorter(value)
        for index, item in enumerate(value):
            yield from ((*value[:index], small, *value[index + 1 :]) for small in smaller_than(item))
    elif is_dataclass(value) and not isinstance(value, type):
        for member in fields(value):
            for small in _smaller_field(member, getattr(value, member.name)):
                yield replace(value, **{member.name: small})
    elif isinstance(value, (str, bytes)):
        yield from _shorter(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from (type(value)(small) for small in (0, 1) if small < value)


def _smaller_field(member: "Field[Any]", value: Any) -> Iterator[Any]:
    # A number with a default is only replaced by that default; other replacements could lead in circles.
    if member.default is MISSING:
        yield from smaller_than(value)
    elif value != member.default:
        yield member.default
        if isinstance(value, tuple) or is_dataclass(value):
            yield from smaller_than(value)


def _shorter(value: Any) -> Iterator[Any]:
    half = len(value) // 2
    if half > 1:
        yield value[:half]
        yield value[half:]
    yield from (value[:index] + value[index + 1 :] for index in range(min(len(value), 40)))
