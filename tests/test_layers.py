"""Layers of both distributions, as `docs/explanation/architecture.md` draws them: imports point downward, no cycles."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
ACTORS = Path(__file__).parents[1] / "actors" / "src"

LAYERS = {
    0: ["exceptions", "questions", "commands", "_records", "_util", "_web"],
    1: ["_loops"],
    2: ["_calls"],
    3: ["actors", "extend"],
    4: ["_langgraph", "_langchain"],
    5: ["tools"],
    6: ["middleware", "guards", "conversations"],
    7: ["agent"],
    8: ["telemetry", "testing", "threads"],
    9: ["_cli"],
}
LAYER_OF = {f"callboard.{name}": layer for layer, names in LAYERS.items() for name in names}

ACTOR_LAYERS = {
    0: ["_util"],
    1: ["_engine", "_server"],
    2: ["process", "ray", "redis", "postgres", "http", "python", "mcp"],
    3: ["mcp_service"],
}
ACTOR_LAYER_OF = {f"callboard_actors.{name}": layer for layer, names in ACTOR_LAYERS.items() for name in names}

KNOWN_PEERS = {
    ("_server", "_engine"): "Members of a fleet seal asks and replies as the pickles that engines send.",
    ("python", "process"): "An interpreter is a confined worker process.",
}
"""Imports between rooms of one layer of `callboard_actors`, with their reasons."""

KNOWN_LATE = {
    ("callboard.exceptions", "callboard.tools"): "`CallsInterrupted` is defined beside the questions that it carries."
}
"""Late imports that point upward: from a module to a room. Users find all exceptions in one module."""

LANGCHAIN = ("langchain_core", "langgraph")
FOREIGN = {
    "callboard._records": (*LANGCHAIN, "trio", "asyncio", "anyio"),
    "callboard._loops": LANGCHAIN,
    "callboard._loops._protocol": ("trio", "asyncio"),
    "callboard._loops._watchdog": ("trio", "asyncio"),
    "callboard._loops._asyncio": ("trio",),
    "callboard._loops._worker_threads": ("trio",),
    "callboard._calls": LANGCHAIN,
    "callboard.actors": (*LANGCHAIN, "trio", "asyncio"),
}
"""Packages that a room or module must not import."""

SHOP_WINDOW = "callboard"
LATE_TABLE = "_HOMES"
"""Name of the tables of names that a package loads on first use; `lazy` takes such a table, too."""


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


Modules = Mapping[str, Path]
MODULES = {module_name(path, SOURCE): path for path in sorted(SOURCE.rglob("*.py"))}
INNER = {name: path for name, path in MODULES.items() if name != SHOP_WINDOW}
ACTOR_MODULES = {module_name(path, ACTORS): path for path in sorted(ACTORS.rglob("*.py"))}
ACTOR_INNER = {name: path for name, path in ACTOR_MODULES.items() if name != "callboard_actors"}


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file; many tests look at them, and each file is parsed once."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Return every module that a file imports, also inside functions; `from a import b` gives `a` and `a.b`."""
    targets: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            targets.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, f"{path}: relative import"
            targets.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
    return frozenset(targets)


def is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


@cache
def late_imports_of(path: Path) -> frozenset[str]:
    """Return the strings in tables of late imports: those of `_HOMES = ...` and of `lazy(__name__, ...)`."""
    targets: set[str] = set()
    for node in nodes_of(path):
        is_table = isinstance(node, ast.Assign) and any(is_name(target, LATE_TABLE) for target in node.targets)
        if is_table or (isinstance(node, ast.Call) and is_name(node.func, "lazy")):
            inner = (constant.value for constant in ast.walk(node) if isinstance(constant, ast.Constant))
            targets.update(value for value in inner if isinstance(value, str))
    return frozenset(targets)


def room_of(name: str) -> str:
    """Return the room of a module: the package and the first name below it."""
    return ".".join(name.split(".")[:2])


def imports_within(name: str, modules: Modules) -> set[str]:
    """Return the modules of the same distribution that a module imports, at once or late."""
    late = {target for target in late_imports_of(modules[name]) if (name, room_of(target)) not in KNOWN_LATE}
    return {target for target in {*imports_of(modules[name]), *late} if target in modules and target != name}


def room_imports(modules: Modules) -> dict[str, set[str]]:
    """Return for each room the other rooms that it imports."""
    rooms: dict[str, set[str]] = {}
    for name in modules:
        needed = {room_of(target) for target in imports_within(name, modules)}
        rooms.setdefault(room_of(name), set()).update(needed - {room_of(name)})
    return rooms


def inside(room: str) -> list[str]:
    """Return the modules of a room, or the module of that name."""
    inner_modules = [name for name in MODULES if name == room or name.startswith(f"{room}.")]
    assert inner_modules, f"there is no {room}"
    return inner_modules


def foreign(names: Iterable[str], packages: tuple[str, ...]) -> set[tuple[str, str]]:
    """Return the imports of these packages by these modules."""
    pairs = {(name, target.split(".")[0]) for name in names for target in imports_of(MODULES[name])}
    return {(name, root) for name, root in pairs if root in packages}


def test_a_module_imports_from_its_layer_and_below_only() -> None:
    arrows = {(name, target) for name in INNER for target in imports_within(name, INNER)}

    assert {(name, to) for name, to in arrows if LAYER_OF[room_of(to)] > LAYER_OF[room_of(name)]} == set()


def test_a_module_never_imports_the_package_it_lives_in() -> None:
    """`callboard` is for users. The command line may import it, because it uses public names only."""
    users = {name for name, path in INNER.items() if SHOP_WINDOW in imports_of(path)}

    assert {name for name in users if not name.startswith("callboard._cli")} == set()


def test_a_low_layer_does_not_import_what_it_serves() -> None:
    """The runtime imports no LangChain, and the interface of event loops no event loop."""
    assert set().union(*(foreign(inside(name), packages) for name, packages in FOREIGN.items())) == set()


def reachable_from(names: Iterable[str]) -> set[str]:
    """Return all modules that some modules import, transitively."""
    reachable: set[str] = set()
    due = list(names)
    while due:
        if (module := due.pop()) not in reachable:
            reachable.add(module)
            due += imports_within(module, INNER)
    return reachable


def test_layers_0_to_3_load_no_langchain_transitively() -> None:
    """Supervision works for any call, so a program without LangChain tools does not load LangChain."""
    low = [name for number in range(4) for room in LAYERS[number] for name in inside(f"callboard.{room}")]

    assert foreign(reachable_from(low), LANGCHAIN) == set()


def test_the_lowest_rooms_import_no_other_room() -> None:
    """Every other room may import them, so they can import none; the records import `_util`."""
    rooms = room_imports(INNER)

    assert [rooms[f"callboard.{room}"] for room in ("_util", "_web")] == [set(), set()]
    assert rooms["callboard._records"] == {"callboard._util"}


def test_tables_of_late_imports_are_read() -> None:
    """The tables must name whole modules, because these tests could not read another form."""
    public = {name for name, path in MODULES.items() if LATE_TABLE in path.read_text()}

    assert SHOP_WINDOW in public
    assert {name for name in public if not any(target in MODULES for target in late_imports_of(MODULES[name]))} == set()


def test_every_room_of_the_picture_and_each_known_late_import_exist() -> None:
    """An entry for a room, module or late import that no longer exists would disable a test."""
    assert {room_of(name) for name in INNER} == set(LAYER_OF)
    assert {room_of(name) for name in ACTOR_INNER} == set(ACTOR_LAYER_OF)
    assert {name for name in FOREIGN if name not in MODULES} == set()
    for module, room in KNOWN_LATE:
        assert room in {room_of(target) for target in late_imports_of(MODULES[module])}


def test_no_two_rooms_and_no_two_modules_need_each_other() -> None:
    """Two rooms may import each other although no two modules do.

    Imports inside functions count: their cycles would show in the first call only.
    """
    for modules in (INNER, ACTOR_INNER):
        TopologicalSorter(room_imports(modules)).prepare()  # raises CycleError
    for modules in (INNER, ACTOR_MODULES):
        graph = {name: imports_within(name, modules) for name in modules}
        # `from room import _module` needs the module only, and not the package of the room.
        needed = {
            name: {
                target for target in targets if not any(deeper.startswith(f"{target}.") for deeper in (*targets, name))
            }
            for name, targets in graph.items()
        }
        TopologicalSorter(graph if modules is INNER else needed).prepare()  # raises CycleError


def test_only_one_module_touches_private_langgraph_names() -> None:
    """When LangGraph changes a key, only one module has to change."""
    private = {
        name
        for name, path in INNER.items()
        for target in imports_of(path)
        if target.startswith("langgraph.") and any(part.startswith("_") for part in target.split(".")[1:])
    }

    assert {name.rpartition(".")[0] for name in private} <= {"callboard._langgraph"}


NAMED_TUPLE = {"_replace", "_asdict"}
"""Public methods of named tuples, although their names begin with an underscore."""


def private_names(path: Path) -> Iterator[str]:
    """Return the private names that a module assigns to its own objects."""
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_name(node.value, "self"):
            yield node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


@cache
def private_reads(path: Path) -> frozenset[str]:
    """Return the private attributes that a module reads or sets on objects other than `self`."""
    attributes: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            if ast.unparse(node.value) not in ("self", "cls", "super()"):
                attributes.add(node.attr)
    return frozenset(attributes)


def test_the_agent_reads_no_private_attribute_of_other_rooms_objects() -> None:
    """A room that needs another room's private attribute gets a public way to it, such as `tools/_node`."""
    read = {
        (name, attribute)
        for name in inside("callboard.agent")
        for attribute in private_reads(MODULES[name]) - set(private_names(MODULES[name])) - NAMED_TUPLE
    }

    assert read == set()


def test_nobody_but_the_tools_reads_what_a_node_was_built_with() -> None:
    """Only `ToolNode` reads its setup; other modules use `tools/_node` or public names."""
    readers = {name for name, path in INNER.items() if "_setup" in private_reads(path)}

    assert {name.rpartition(".")[0] for name in readers} == {"callboard.tools"}


def test_rooms_of_the_actors_import_rooms_below_them_only() -> None:
    """Rooms of one layer are independent, because each has its own extra; the known pairs have reasons."""
    arrows = {(room, to) for room, needed in room_imports(ACTOR_INNER).items() for to in needed}
    peers = {(room, to) for room, to in arrows if ACTOR_LAYER_OF[to] >= ACTOR_LAYER_OF[room]}

    assert {(room.partition(".")[2], to.partition(".")[2]) for room, to in peers} == set(KNOWN_PEERS)


def test_customers_use_public_names_only() -> None:
    """If one of these packages needs a private name of callboard, users may need it too, and it should be public."""
    for customer, own_package in ((ACTORS, "callboard_actors"), (SOURCE / "callboard" / "_cli", "callboard._cli")):
        private = {
            f"{path.name}: {target}"
            for path in customer.rglob("*.py")
            for target in imports_of(path)
            if target.startswith("callboard.") and any(part.startswith("_") for part in target.split("."))
            if not target.startswith(own_package)
        }
        assert private == set()


PUBLIC_MODULES = ["callboard", "callboard.extend", "callboard.exceptions", "callboard.middleware", "callboard.guards"]
FOR_OPTIONS = frozenset(
    "check_count check_factor check_seconds check_type has_members_of KeyFunction key_function LimitKey Missing"
    " argument_names check_argument_names check_missing check_tool_names spellings tool_names".split()
)
"""Names that check the options of a constructor, and write their errors."""
KNOWN_PRIVATE = {
    "_supervise": "It is no middleware of a node: it does for LangChain's agent what `ToolNode` does.",
    "_approval": "Its question belongs to its node: its id, its place in LangGraph's scratchpad, its large values.",
}
"""Modules that need private names of lower rooms, with reasons."""
KNOWN_PRIVATE_NAMES = {
    "bind_to_thread": "It also marks the calls around the running one; a user's middleware sees the running one only.",
    "call_context": "It makes the `CallContext` of a request to a model, which has another runtime than a call.",
    "context_of": "It makes the `CallContext` of a key function, which a user's middleware gets from its request.",
    "facts_of": "It reads the record that `with_facts` writes.",
    "has_many": "The measure for copies: other work than that of `run_if_long`.",
    "is_long": "`Cache` has two ways to write a key; with one, `run_if_long` does.",
    "remaining_size": "The measure of `run_if_long`, as a number.",
    "with_facts": "It writes the record that callboard keeps in a message, whose form is callboard's own.",
}
"""Private names that middleware and guards use, with reasons."""


def names_from_below(path: Path) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import from another room; helpers of `_util` know nothing of calls."""
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and node.module and room_of(node.module) in LAYER_OF:
            if room_of(node.module) not in ("callboard._util", "callboard.middleware", "callboard.guards"):
                yield from ((node.module, alias.name) for alias in node.names)


def test_middleware_and_guards_use_public_names_only() -> None:
    """A user can write the same middleware. Each name is public, although its own room is imported, as rule 4 says."""
    public = {id(getattr(module, name)) for module in map(import_module, PUBLIC_MODULES) for name in module.__all__}
    used = {
        (path.stem, name)
        for room in ("middleware", "guards")
        for path in (SOURCE / "callboard" / room).rglob("*.py")
        for module, name in names_from_below(path)
        if id(getattr(import_module(module), name)) not in public and name not in FOR_OPTIONS
    }

    assert {name for stem, name in used if stem not in KNOWN_PRIVATE} == set(KNOWN_PRIVATE_NAMES)
    assert {stem for stem, _ in used} >= set(KNOWN_PRIVATE)


def test_trio_is_imported_by_the_module_that_runs_on_it_only() -> None:
    users = {name for name, _ in foreign(INNER, ("trio",))}

    assert users <= {"callboard._loops._trio", "callboard.testing._clock"}


def test_the_architecture_page_draws_these_layers() -> None:
    page = (SOURCE.parent / "docs" / "explanation" / "architecture.md").read_text()
    picture = page.split("```text")[1].split("```")[0]
    drawn = {
        int(line.split()[0]): {word.strip(",") for word in line.split()[1:]}
        for line in picture.splitlines()
        if line.strip()[:1].isdigit()
    }

    assert drawn == {number: set(names) for number, names in LAYERS.items()}
