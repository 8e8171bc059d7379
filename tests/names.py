"""Count of identifiers that explain nothing: `python -m tests.names` prints it, and fails above the limits.

Vague bindings are variables, parameters and attributes named by a pronoun, an adverb or a bare participle ("one",
"found", "kept"), as a share of all bindings. Participles are functions, properties left out, that are named by one
("_ended") in place of a verb, as a share of all functions. trio, anyio, httpx and pydantic-ai have 0.1 to 0.7 % and 0.4
to 2.3 %.
"""

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
VAGUE = frozenset(
    "one ones given found known around here there other others own said told whole left rest what how where who at way "
    "words place places mine theirs ours them some more most shown named wanted made kept thing things work room rooms "
    "line alike taken held asked heard sent seen meant met lent ready whom which such same all_of both any_of it its "
    "again already still yet till within beyond beside".split()
)
IRREGULAR = frozenset(
    "ran kept told found made held sent left shown given known said taken written begun gone done seen met cut lent "
    "meant heard lost built read_ grown drawn worn let_ fed bound".split()
)
NO_PARTICIPLES = frozenset("need feed seed embed shed speed exceed proceed red bed shared indeed".split())
GROUPS: tuple[tuple[tuple[str, ...], float, float], ...] = (
    (("src", "actors/src"), 1.0, 3.0),
    (("tests", "examples", ".ci"), 2.0, 3.0),
)
"""Folders that are counted together, with the limits of their vague bindings and of their participles, in percent.

Tests read texts line by line, and call tools whose parameters have the words of a model.
"""


def is_participle(name: str) -> bool:
    """Return whether the first word of a function's name is a past participle."""
    word = name.strip("_").split("_")[0]
    return word in IRREGULAR or (word.endswith("ed") and word not in NO_PARTICIPLES)


def bindings_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each variable, parameter and attribute that is bound in a syntax tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
            yield node.lineno, node.arg


def functions_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each function in a syntax tree that is neither a property nor special."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and not node.name.startswith("__")
            and not any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
        ):
            yield node.lineno, node.name


def measure(folders: Iterable[Path], *, shows_places: bool) -> tuple[float, float]:
    """Return the percentages of vague bindings and of participles among the functions in folders."""
    counts: Counter[str] = Counter()
    for path in sorted(file for folder in folders for file in folder.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for kind, names, is_unclear in (
            ("bindings", bindings_in(tree), lambda name: name.strip("_") in VAGUE),
            ("functions", functions_in(tree), is_participle),
        ):
            for line, name in names:
                counts[kind] += 1
                if is_unclear(name):
                    counts[f"unclear {kind}"] += 1
                    if shows_places:
                        print(f"{path}:{line}: {name}")
    vague = 100 * counts["unclear bindings"] / counts["bindings"]
    return vague, 100 * counts["unclear functions"] / counts["functions"]


def main() -> None:
    """Print both shares and where the names are; exit with 1 above a limit."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--show", action="store_true", help="print the place of each name")
    options = parser.parse_args()
    is_within = True
    for folders, most_vague, most_participles in GROUPS:
        vague, participles = measure((ROOT / folder for folder in folders), shows_places=options.show)
        print(
            f"{', '.join(folders)}: vague {vague:.2f} % of the bindings (limit {most_vague:g}), "
            f"participles {participles:.2f} % of the functions (limit {most_participles:g})"
        )
        is_within = is_within and vague <= most_vague and participles <= most_participles
    sys.exit(0 if is_within else 1)


if __name__ == "__main__":
    main()
