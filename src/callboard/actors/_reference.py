"""References to actors: a reference gives access to the handlers of an actor, and to nothing of its state."""

from functools import wraps
from inspect import signature
from typing import Any, NoReturn, cast
from weakref import WeakKeyDictionary

from callboard._util._suggestions import did_you_mean
from callboard.actors._actor import Actor, Handler, S
from callboard.actors._cell import Cell


class Reference:
    """Reference to an actor, valid across restarts. Any task, thread and event loop of the process may use it."""

    __slots__ = ("__cell",)  # a mangled name: handlers may have any name

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
    """Return the `Cell` of the actor to which a reference refers; raise TypeError for any other object."""
    if not isinstance(reference, Reference):
        hint = "; this is the description of one" if isinstance(reference, Actor) else ""
        raise TypeError(f"a reference to an actor is needed, got {reference!r}{hint}")
    return cast("Cell", object.__getattribute__(reference, "_Reference__cell"))


_ASKS = "__callboard_asks__"
"""Name of the attribute in which a reference's method stores the handler that it calls."""


def target_of(method: object) -> tuple[Cell, Handler] | None:
    """Return the actor's `Cell` and the `Handler` that a method of a `Reference` calls; `None` for any other object."""
    reference, handler = getattr(method, "__self__", None), getattr(method, _ASKS, None)
    return (cell_of(reference), handler) if isinstance(reference, Reference) and handler is not None else None


# Weak: a class that a test or a notebook cell defines again can be collected.
_classes: WeakKeyDictionary[type[Actor], type[Reference]] = WeakKeyDictionary()


def reference_to(cell: Cell, kind: type[S]) -> S:
    """Return a reference to the actor of a cell; it has the handlers of the class `kind`, and is typed as `kind`."""
    cls = _classes.get(kind)
    if cls is None:
        methods = {name: _method(handler) for name, handler in kind._handlers.items()}
        # Empty `__slots__`, so that the subclass has no `__dict__`: the cell is the only attribute of a reference.
        cls = type(f"{kind.__name__}Reference", (Reference,), {"__slots__": (), "__doc__": kind.__doc__, **methods})
        _classes[kind] = cls
    return cast("S", cls(cell))


def _method(handler: Handler) -> Any:
    @wraps(handler.fn)
    async def ask(self: Reference, *args: Any, **kwargs: Any) -> Any:
        return await object.__getattribute__(self, "_Reference__cell").ask(handler, args, kwargs)

    ask.__dict__[_ASKS] = handler
    del ask.__dict__["__wrapped__"]  # or `inspect` would show the reply argument of a deferred handler
    own_signature = handler.signature()
    first = next(iter(signature(handler.fn).parameters.values()))
    ask.__dict__["__signature__"] = own_signature.replace(parameters=[first, *own_signature.parameters.values()])
    return ask
