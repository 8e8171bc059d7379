"""The layers are what `docs/explanation/architecture.md` says: imports point downward, in a circle never."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
ACTORS = Path(__file__).parents[1] / "actors" / "src"

LAYERS = {
    0: [
        "exceptions",
        "_actor_events",
        "_call_events",
        "_callers",
        "_canonical",
        "_documents",
        "_extras",
        "_fleets",
        "_lazy",
        "_drained",
        "_durations",
        "_statistics",
        "_suggestions",
        "_types",
        "_web",
        "commands",
        "questions",
        "web",
    ],
    1: ["_loops"],
    2: ["_calls"],
    3: ["actors", "engines", "fleets", "limits", "documents"],
    4: ["_langgraph"],
    5: ["tools"],
    6: ["middleware"],
    7: ["agent"],
    8: ["telemetry", "testing", "threads"],
    9: ["_cli"],
}
LAYER_OF = {f"callboard.{name}": layer for layer, names in LAYERS.items() for name in names}

# What a layer must not know of, beside what is above it.
LANGCHAIN = ("langchain_core", "langgraph")
FOREIGN = {
    "callboard._records._policies": (*LANGCHAIN, "callboard"),
    "callboard._loops._protocol": (*LANGCHAIN, "trio", "asyncio"),
    "callboard._loops._watchdog": (*LANGCHAIN, "trio", "asyncio"),
    "callboard._loops._asyncio": (*LANGCHAIN, "trio"),
    "callboard._loops._worker_threads": (*LANGCHAIN, "trio"),
    "callboard.actors": (*LANGCHAIN, "trio", "asyncio"),
}
SHOP_WINDOW = "callboard"


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path, SOURCE): path for path in sorted(SOURCE.rglob("*.py"))}


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, also inside functions; `from a import b` gives `a` and `a.b`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(name: str) -> set[str]:
    return {found for found in imported(MODULES[name]) if found in MODULES and found != name}


def layer(name: str) -> int:
    return LAYER_OF[".".join(name.split(".")[:2])]


INNER = [name for name in MODULES if name != SHOP_WINDOW]


@pytest.mark.parametrize("name", INNER)
def test_a_module_imports_from_its_layer_and_below_only(name: str) -> None:
    """Layers point downward."""
    upward = {found for found in own_imports(name) - {SHOP_WINDOW} if layer(found) > layer(name)}

    assert upward == set()


@pytest.mark.parametrize("name", INNER)
def test_a_module_never_imports_the_package_it_lives_in(name: str) -> None:
    """The shop window is for customers; the command line is one, on the public names."""
    may = name.startswith("callboard._cli")

    assert may or SHOP_WINDOW not in {found for found in imported(MODULES[name]) if found == SHOP_WINDOW}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_low_layer_does_not_know_of_what_it_serves(name: str) -> None:
    """Layer 1 knows no LangChain, the loop's interface no loop."""
    inside = [module for module in MODULES if module == name or module.startswith(f"{name}.")]
    roots = {found.split(".")[0] for module in inside for found in imported(MODULES[module])}

    assert inside
    assert roots.isdisjoint(FOREIGN[name])


def reached(name: str) -> set[str]:
    """The modules that come with one, however long the way."""
    found: set[str] = set()
    due = [name]
    while due:
        if (one := due.pop()) not in found:
            found.add(one)
            due += own_imports(one) - {SHOP_WINDOW}
    return found


@pytest.mark.parametrize(
    "room",
    [
        "callboard._loops",
        "callboard._calls",
        "callboard.actors",
        "callboard.exceptions",
        "callboard._records._policies",
    ],
)
def test_what_is_below_the_tools_loads_no_langchain_by_any_way(room: str) -> None:
    """Supervision is for any call; who uses it alone does not wait for LangChain."""
    inside = {name for name in MODULES if name == room or name.startswith(f"{room}.")}
    foreign = {
        found
        for start in inside
        for name in reached(start)
        for found in imported(MODULES[name])
        if found.split(".")[0] in LANGCHAIN and name != "callboard._util._lazy"
    }

    assert inside
    assert foreign == set()


def test_no_two_rooms_need_each_other() -> None:
    """Modules may be free of circles while their rooms are not."""
    rooms: dict[str, set[str]] = {}
    for name in INNER:
        room = ".".join(name.split(".")[:2])
        needed = {".".join(found.split(".")[:2]) for found in own_imports(name) - {SHOP_WINDOW}}
        rooms.setdefault(room, set()).update(needed - {room})

    TopologicalSorter(rooms).prepare()  # raises CycleError

    assert len(rooms) == sum(map(len, LAYERS.values()))


def test_every_room_of_the_picture_exists() -> None:
    """A name that is gone would exempt nobody, and mislead everybody."""
    rooms = {".".join(name.split(".")[:2]) for name in INNER}

    assert rooms == set(LAYER_OF)
    assert {name for name in FOREIGN if name not in MODULES} == set()


def test_only_one_module_touches_private_langgraph_names() -> None:
    """When LangGraph moves a key, one module has to follow."""
    private = {
        name
        for name in INNER
        for found in imported(MODULES[name])
        if found.startswith("langgraph.") and any(part.startswith("_") for part in found.split(".")[1:])
    }

    assert {name.rpartition(".")[0] for name in private} <= {"callboard._langgraph"}


NAMED_TUPLE = {"_replace", "_asdict"}
"""Methods of named tuples, which are public whatever their names say."""


def private_names(tree: ast.AST) -> Iterator[str]:
    """The private names that a module gives to something of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr
        elif isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target)


def private_reads(tree: ast.AST) -> Iterator[str]:
    """The private attributes that a module reads or sets of something else than `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            if ast.unparse(node.value) not in ("self", "cls", "super()"):
                yield node.attr


@pytest.mark.parametrize("room", ["callboard.agent"])
def test_a_room_reads_no_private_attribute_of_another_ones_objects(room: str) -> None:
    """What it needs and the other does not offer is made a public way, such as `tools/_node`."""
    read = {
        (name, attribute)
        for name in INNER
        if name.startswith(room) and (tree := ast.parse(MODULES[name].read_text()))
        for attribute in set(private_reads(tree)) - set(private_names(tree)) - NAMED_TUPLE
    }

    assert read == set()


def test_nobody_but_the_tools_reads_what_a_node_was_built_with() -> None:
    """`ToolNode` has its setup for itself; others ask `tools/_node`, or its public names."""
    readers = {name for name in INNER if "_setup" in set(private_reads(ast.parse(MODULES[name].read_text())))}

    assert {name.rpartition(".")[0] for name in readers} == {"callboard.tools"}


def test_there_are_no_import_cycles() -> None:
    """A module can be understood after those below it, and without those above."""
    graph = {name: own_imports(name) - {SHOP_WINDOW} for name in INNER}

    TopologicalSorter(graph).prepare()  # raises CycleError

    assert len(graph) == len(INNER)


def test_no_two_modules_of_the_actors_need_each_other() -> None:
    """Also not within functions, where it would be found out by the first call only."""
    modules = {module_name(path, ACTORS): path for path in ACTORS.rglob("*.py")}

    def needed(name: str) -> set[str]:
        found = set(imported(modules[name])) & set(modules) - {name}
        # `from room import _module` needs the module; the room's window is for others.
        return {one for one in found if not any(other.startswith(f"{one}.") for other in (*found, name))}

    TopologicalSorter({name: needed(name) for name in modules}).prepare()  # raises CycleError

    assert len(modules) > 100


@pytest.mark.parametrize("customer", [ACTORS, SOURCE / "callboard" / "_cli"], ids=["actors", "command line"])
def test_customers_use_public_names_only(customer: Path) -> None:
    """What they need and the shop window lacks, others would lack too."""
    files = list(customer.rglob("*.py"))
    private = [
        f"{path.name}: {found}"
        for path in files
        for found in imported(path)
        if found.startswith("callboard.") and any(part.startswith("_") for part in found.split("."))
        if not found.startswith(f"callboard.{customer.name}")  # their own
    ]

    assert files
    assert private == []


def test_trio_is_imported_by_the_module_that_runs_on_it_only() -> None:
    """An asyncio program does not pay for trio."""
    users = {name for name in INNER if any(found.split(".")[0] == "trio" for found in imported(MODULES[name]))}

    assert users <= {"callboard._loops._trio", "callboard.testing._clock"}


LONGEST = 700
"""Lines of a module. One idea stands in one file; a second idea in it has a file of its own long before that."""


def test_no_file_is_longer_than_700_lines() -> None:
    """A longer file has a second idea in it."""
    long = {name: lines for name, path in MODULES.items() if (lines := len(path.read_text().splitlines())) > LONGEST}

    assert not long


def test_the_architecture_page_draws_these_layers() -> None:
    """The picture and the test are one."""
    page = (SOURCE.parent / "docs" / "explanation" / "architecture.md").read_text()
    picture = page.split("```text")[1].split("```")[0]
    drawn = {
        int(line.split()[0]): {word.strip(",") for word in line.split()[1:]}
        for line in picture.splitlines()
        if line.strip()[:1].isdigit()
    }

    assert drawn == {number: set(names) for number, names in LAYERS.items()}
