"""What others hold of an actor: its handlers, and nothing of its state."""

from functools import wraps
from inspect import signature
from typing import Any, NoReturn, cast
from weakref import WeakKeyDictionary

from callboard._suggestions import did_you_mean
from callboard.actors._actor import Actor, Handler, S
from callboard.actors._cell import Cell


class Reference:
    """A way to an actor, through all of its lives; may be used in any task, thread and event loop of the process."""

    __slots__ = ("__cell",)  # a name of its own, for a handler may have any other

    def __init__(self, cell: Cell) -> None:
        object.__setattr__(self, "_Reference__cell", cell)

    def __getattr__(self, name: str) -> NoReturn:
        kind = cell_of(self).kind
        hint = did_you_mean(name, kind._handlers)
        raise AttributeError(
            f"a reference to {kind.__name__} has its handlers only ({', '.join(kind._handlers) or 'it has none'}); "
            f"{name!r} is none of them{hint}"
        )

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"the state of {cell_of(self).name} belongs to its own task; {name!r} is set in a handler")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"nothing of {self!r} can be deleted; got {name!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and cell_of(self) is cell_of(other)

    def __hash__(self) -> int:
        return hash(cell_of(self))

    def __repr__(self) -> str:
        return f"<reference to {cell_of(self).name}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} belongs to this process; it cannot be pickled")

    def __copy__(self) -> "Reference":
        return self

    def __deepcopy__(self, memo: object) -> "Reference":
        return self


def cell_of(reference: object) -> Cell:
    """The actor that a reference leads to.

    Raises:
        TypeError: for what is no reference.
    """
    if not isinstance(reference, Reference):
        hint = "; this is the description of one" if isinstance(reference, Actor) else ""
        raise TypeError(f"a reference to an actor is needed, got {reference!r}{hint}")
    return cast("Cell", object.__getattribute__(reference, "_Reference__cell"))


_ASKS = "__callboard_asks__"
"""On a method of a reference: the handler that it asks for."""


def asked_by(method: object) -> tuple[Cell, Handler] | None:
    """Return the actor and the handler that a bound method of a reference asks; `None` for another object."""
    reference, handler = getattr(method, "__self__", None), getattr(method, _ASKS, None)
    return (cell_of(reference), handler) if isinstance(reference, Reference) and handler is not None else None


def reference_to(cell: Cell, kind: type[S]) -> S:
    """A reference, with the methods of the class; the type is that of the actor, for it has the same handlers."""
    return cast("S", _class_for(kind)(cell))


_classes: WeakKeyDictionary[type[Actor], type[Reference]] = WeakKeyDictionary()


def _class_for(kind: type[Actor]) -> type[Reference]:
    known = _classes.get(kind)
    if known is None:
        methods = {name: _method(handler) for name, handler in kind._handlers.items()}
        # Without `__slots__` in the way of the base's: a reference has one attribute, its cell.
        known = type(f"{kind.__name__}Reference", (Reference,), {"__slots__": (), "__doc__": kind.__doc__, **methods})
        _classes[kind] = known
    return known


def _method(handler: Handler) -> Any:
    @wraps(handler.fn)
    async def ask(self: Reference, *args: Any, **kwargs: Any) -> Any:
        return await object.__getattribute__(self, "_Reference__cell").ask(handler, args, kwargs)

    ask.__dict__[_ASKS] = handler
    del ask.__dict__["__wrapped__"]  # its signature has the reply of a deferred handler
    own = handler.signature()
    first = next(iter(signature(handler.fn).parameters.values()))
    ask.__dict__["__signature__"] = own.replace(parameters=[first, *own.parameters.values()])
    return ask
