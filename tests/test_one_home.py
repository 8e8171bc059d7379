"""Each of these questions is answered in one file. Other files import the answer, because copies drift apart."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "callboard"
ACTORS = TESTS.parent / "actors" / "src" / "callboard_actors"

ANSWERS_IN_SOURCE = {
    "until when must code report activity": r"callboard_idle",
    "for which call does code run": r"callboard_supervised",
    "which kinds of entries does a journal have": r'KIND\b.* = "(actor|amend|asked|claim|failed|hold|leave|step|task)"',
    "what does a record say of a call between two runs": r'"(claimed|digests)"[]:]',
    "who makes a batch": r"\bprepare_batch\((?!self\._setup)",
    "which calls have an answer": r"[\[{(][^\]})]*\.tool_call_id\b[^\]})]* for \w+ in "
    r"| for \w+ in [^\n]*\.tool_call_id\b|\.tool_call_id\b *(not )?in "
    r"|\.(add|append|remove|discard|pop)\([^)]*\.tool_call_id\)"
    r"|for message in reversed\((?s:.{1,120})\.tool_call_id ==",
    "what is a key function": r"\bsignature\(key\)|\bkey\(request\b",
    "what may a key function look at": r"\bCallContext\((?!config: )",
    "is a limit shared with other processes": r"\bLimiter\((policy\.)?limit\b"
    r"|\.shared is (not )?None\b(?! and not has_members_of| *:\n *raise)",
    "when does a rate limit count a start": r"\.start_rate_gate\.pass_through\(",
    "is an address public": r"\.(is_global|is_private|is_link_local|is_loopback|sixtofour|teredo)\b",
    "which addresses has a name": r"\bgetaddrinfo\(",
    "when may a server be asked again": r"parsedate_to_datetime",
    "which object does a command line name": r"sys\.path\.insert\(",
    "may an operation begin while something drains": r"callboard_under_way",
}
"""Regular expressions of code that answers a question; `_cli` uses public names only, and is not searched."""

ANSWERS_IN_ACTORS = {
    "which commands has the zygote": r'Struct\("!BQ[dq]"\)',
    "how long may a report to the zygote take": r"(?m)^_?REPORT_TIMEOUT\b",
    "when is an engine open in an event loop": "EventLoopToken",
    "how is a foreign pickle read": r"\(pickle\.Unpickler\)",
    "who calls the C library": r"ctypes\.CDLL\(",
    # Beside it stands the replacement for other systems; elsewhere it would fail on an untested system.
    "what has only Linux": r"os\.memfd_create|fcntl\.F_ADD_SEALS|MSG_CMSG_CLOEXEC|os\.waitid"
    r"|prctl\(_PR_SET_(PDEATHSIG|CHILD)|/children",
}


@cache
def texts_below(folder: Path) -> dict[str, str]:
    """Return the Python files below a folder, `_cli` left out, with their texts."""
    paths = [path for path in folder.rglob("*.py") if "_cli" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in paths}


def files_with(sign: str, folder: Path) -> list[str]:
    """Return the files in whose text a regular expression matches."""
    return [path for path, text in texts_below(folder).items() if re.search(sign, text)]


def test_each_question_is_answered_in_one_file() -> None:
    files_by_question = {
        question: files_with(sign, folder)
        for folder, answers in ((SOURCE, ANSWERS_IN_SOURCE), (ACTORS, ANSWERS_IN_ACTORS))
        for question, sign in answers.items()
    }

    assert {question: files for question, files in files_by_question.items() if len(files) != 1} == {}


def test_the_actors_leave_these_answers_to_others() -> None:
    """`callboard.commands` reads command lines. `# noqa: S301` marks pickles made by the same process or its parent."""
    assert files_with(r"sys\.path\.insert\(", ACTORS) == []
    assert files_with(r"pickle\.loads?\((?![^\n]*noqa: S301 - )", ACTORS) == []


def test_litter_is_looked_for_in_one_place() -> None:
    """The helper knows which switches of the garbage collector show objects that only the collector can free."""
    assert len(files_with(r"gc\.DEBUG_" + "SAVEALL", TESTS)) == 1


def functions_of(text: str) -> list[ast.FunctionDef]:
    return [function for function in ast.parse(text).body if isinstance(function, ast.FunctionDef)]


def shape_of(function: ast.FunctionDef) -> str:
    """Return the code of a function without docstring and annotations, for comparison."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    arguments = ast.unparse(
        ast.arguments([], [ast.arg(argument.arg) for argument in function.args.args], None, [], [], None, [])
    )
    return "\n".join([function.name, arguments, *map(ast.unparse, body)])


def test_what_many_tests_need_is_written_once() -> None:
    """Helpers belong to `tests/helpers.py` or `tests/conftest.py`, because copies drift apart."""
    homes = [TESTS / "helpers.py", TESTS / "conftest.py"]
    shared_functions = [function for home in homes for function in functions_of(home.read_text())]
    shapes = {shape_of(function) for function in shared_functions}
    defined = re.compile(rf"^def ({'|'.join(function.name for function in shared_functions)})\(", re.MULTILINE)

    copies = {
        f"{path.relative_to(TESTS)}: {function.name}"
        for path in TESTS.rglob("*.py")
        if path not in homes and defined.search(text := path.read_text())
        for function in functions_of(text)
        if shape_of(function) in shapes
    }

    assert copies == set()
