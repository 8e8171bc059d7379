"""Each question is answered in one module, its home; other modules import the answer."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "callboard"
ACTORS = TESTS.parent / "actors" / "src" / "callboard_actors"

CUSTOMERS = ("_cli/",)
"""Rooms that use public names only. They may look at states in their own way."""


@dataclass(frozen=True, slots=True)
class Home:
    """One question and the module that answers it: the module that defines the names. Its file may have any name.

    Args:
        question: the question, in words.
        names: names that the module defines for callers; each is defined in this one module only.
        signs: regular expressions of code that answers the question; they match in this module and those of `CUSTOMERS`
            only.
    """

    question: str
    names: tuple[str, ...]
    signs: tuple[str, ...] = ()


HOMES = [
    Home(
        "Which text does a model read of a result, and how is a large one written?",
        ("as_content", "to_text", "takes_long", "write_in_portions"),
    ),
    Home(
        "What of a conversation is still as it was stored?",
        ("StoredConversation", "StoredConversations"),
        (r"\.begins\(",),
    ),
    Home(
        "Which bytes are a message, and how does a list of them begin?",
        ("array_header", "fields_of_all", "has_fields_only", "items_of"),
        (r'"model_validate_json"', r"\\xdc"),
    ),
    Home(
        "How is somebody else's checkpointer or store awaited?",
        ("AwaitedSaver",),
    ),
    Home(
        "Which question does an answer belong to?",
        ("answers_by_id", "is_by_id"),
    ),
    Home(
        "Is the package of an extra installed, and what is said if it is not?",
        ("is_installed", "require"),
    ),
    Home(
        "What may a call end with, and which messages are in it?",
        ("CallNext", "Item", "Output", "entries_in", "is_output", "items_in", "with_entries"),
    ),
    Home(
        "What becomes of a call that was begun and never ended, and who says so?",
        ("UNKNOWN", "question_about", "unknown_text"),
    ),
    Home(
        "What is known of a tool?",
        ("ToolFacts",),
        (r"dict\[str, Plan\]", r"weakref\.ref\[BaseTool\]"),
    ),
    Home(
        "What ends a block whose time is over, and what does it raise?",
        ("TimeLimit",),
        (r"if not scope\.cancel_called",),
    ),
    Home(
        "Is what runs here alive, and until when does it have to say so?",
        ("IdleScope", "report_activity", "is_put_off", "until_idle"),
        (r"callboard_idle",),
    ),
    Home(
        "What does the code that runs here work for, and how far is it?",
        ("OnProgress", "Progress", "progress", "reporter"),
        (r"callboard_supervised",),
    ),
    Home(
        "By what does a service know a call again?",
        ("current_key", "idempotency_key", "key_of"),
    ),
    Home(
        "How often is somebody told of what comes all the time?",
        ("PAUSE", "Throttle"),
    ),
    Home(
        "How much time has a call?",
        ("CallTime",),
    ),
    Home(
        "What can happen to a thread, and how is it stored?",
        ("ActorState", "Amended", "Claimed", "Failed", "Finished", "Held", "Left", "Stepped", "entry_of"),
        (r'"kind": "(actor|amend|asked|claim|failed|hold|leave|step|task)"', r'\["kind"\] (==|!=|in|not in) '),
    ),
    Home(
        "Which states of actors belong to a place, and with which result are they stored?",
        ("ActorStates", "KeptStates", "StateAt"),
    ),
    Home(
        "Which instance of an actor is that of a thread, and is its state that of the place?",
        ("InThread", "JournalSnapshots", "own_key"),
    ),
    Home(
        "What is known of a call between two runs?",
        ("CallRecord", "NOTHING_KNOWN", "NOT_YET"),
        (
            r'"(answers|claimed|digests|output|pending)" (not )?in ',  # whether a record has an entry, asked of a dict
            r'\["(claimed|digests|pending)"\]',
            r'\{"format": FORMAT, "keys": (?!self\._keys, "calls": self\._stored, \*\*run\})',  # a forged ledger
        ),
    ),
    Home(
        "What does an agent need of a tool node beside its public names?",
        ("NodeAccess",),
        (r"\bToolBatch\((?!self\._setup)",),
    ),
    Home(
        "Which calls are open?",
        (
            "Exchange",
            "answer_of",
            "answered_ids",
            "answers_to",
            "asked_at",
            "calls_in",
            "each_without_answer",
            "exchanges_in",
            "id_of",
            "is_whole",
            "last_reply",
            "matching",
            "seeking",
            "unanswered",
            "without_answer",
        ),
        (
            r"[\[{(][^\]})]*\.tool_call_id\b[^\]})]* for \w+ in ",  # ids of calls that messages answer
            r"\.tool_call_id\b *(not )?in ",  # test whether an answer's id is an id of a call
            r"\.(add|append|remove|discard|pop)\([^)]*\.tool_call_id\)",  # set of such ids, or the rest of one
            r" for \w+ in [^\n]*\.tool_call_id\b",  # messages with the id of a call
            r"for message in reversed\((?s:.{1,120})\.tool_call_id ==",  # conversation that is read from its end
        ),
    ),
    Home(
        "What is a key function called with, and what is no key function?",
        ("KeyFunction", "key_function"),
        (r"\b_?key(_function)?\((self\._)?call\b", r"\bkey\(request\b", r"\bsignature\(key\)"),
    ),
    Home(
        "What may a key look at besides the call?",
        ("call_context", "context_of"),
        (r"\bCallContext\((?!config: )",),
    ),
    Home(
        "Is a limit kept in this process, or shared with others?",
        ("SharedLimiter", "SharedPermit", "limiter_of"),
        (
            r"\bLimiter\((policy\.)?limit\b",
            r"\bWanted\(limit=",
            r"\.shared is (not )?None\b(?! and not has_members_of| *:\n *raise)",
        ),
    ),
    Home(
        "Which addresses and names does the whole Internet know?",
        ("is_public", "is_public_address", "literal"),
        (r"\.(is_global|is_private|is_link_local|is_loopback|sixtofour|teredo)\b",),
    ),
    Home(
        "Which addresses has a name?",
        ("Resolver", "system_resolver"),
        (r"\bgetaddrinfo\(",),
    ),
    Home(
        "When does a server want to be asked again?",
        ("retry_after",),
        (r"parsedate_to_datetime",),
    ),
    Home(
        "What does `module:name` on a command line name?",
        ("NotThereError", "load_named"),
        (r"sys\.path\.insert\(",),
    ),
    Home(
        "When does a start count at the limits at which somebody has places?",
        ("count_start",),
        (r"\.starts\.pass_through\(",),
    ),
    Home(
        "May something begin, and what becomes of what runs, where something is drained?",
        ("InFlight", "Operation", "operations"),
        (r"callboard_under_way",),
    ),
    Home(
        "How did a call or a run end?",
        ("has_failed", "outcome_of", "outcome_of_run"),
    ),
    Home(
        "Where is a call now?",
        ("FAILURES", "CallPlace", "CallTracker", "Outcome", "TrackedCall"),
        (r"event\.phase == \"(queued|started|attempt_ended)\"",),
    ),
]


def definitions(tree: ast.Module) -> Iterator[str]:
    """Functions, classes and constants at the top level of a module."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


@cache
def modules() -> Mapping[str, tuple[str, frozenset[str]]]:
    """Text and top-level definitions of each source file."""
    texts = {path.relative_to(SOURCE).as_posix(): path.read_text() for path in SOURCE.rglob("*.py")}
    return {place: (text, frozenset(definitions(ast.parse(text)))) for place, text in texts.items()}


def homes_of(home: Home) -> set[str]:
    """Return the modules that define a name of the question."""
    return {place for place, (_, defined) in modules().items() if defined.intersection(home.names)}


def copies_of(home: Home) -> Iterator[str]:
    """Yield a message for each name that is not defined once, and for each second answer to the question."""
    places = homes_of(home)
    if missing := set(home.names) - {name for place in places for name in modules()[place][1]}:
        yield f"no module defines {missing}, which answer {home.question!r}"
    if len(places) > 1:
        yield f"{sorted(places)} define names that answer {home.question!r}: define all of them in one module"
    for place, (text, _) in modules().items():
        if place in places or place.startswith(CUSTOMERS):
            continue
        for sign in home.signs:
            if found := re.search(sign, text):
                yield f"{place}: {found[0]!r} answers {home.question!r} again; import it from {sorted(places)}"


def test_each_question_is_answered_in_one_module() -> None:
    """Two implementations of one question drift apart; this has happened to seven questions."""
    assert [copy for home in HOMES for copy in copies_of(home)] == []


def test_no_name_belongs_to_two_questions() -> None:
    """If two questions shared a name, the home of one would depend on the other."""
    names = [name for home in HOMES for name in home.names]

    assert len(names) == len(set(names))


def shape_of(function: ast.FunctionDef) -> str:
    """Return the code of a function without docstring and annotations, for comparison."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    arguments = ast.unparse(ast.arguments([], [ast.arg(one.arg) for one in function.args.args], None, [], [], None, []))
    return "\n".join([function.name, arguments, *map(ast.unparse, body)])


def test_what_many_tests_need_is_written_once() -> None:
    """Helpers belong to `tests/helpers.py` or `tests/conftest.py`, because copies drift apart."""
    homes = [TESTS / "helpers.py", TESTS / "conftest.py"]
    shapes = {
        shape_of(one) for home in homes for one in ast.parse(home.read_text()).body if isinstance(one, ast.FunctionDef)
    }

    copies = {
        f"{path.relative_to(TESTS)}: {one.name}"
        for path in TESTS.rglob("*.py")
        if path not in homes
        for one in ast.parse(path.read_text()).body
        if isinstance(one, ast.FunctionDef) and shape_of(one) in shapes
    }

    assert copies == set()


def files_with(sign: str, folder: Path) -> list[str]:
    """Return the Python files below a folder in which a regular expression matches."""
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if re.search(sign, path.read_text())]


def test_litter_is_looked_for_in_one_place() -> None:
    """The helper knows which switches of the garbage collector show objects that only the collector can free."""
    assert len(files_with(r"gc\.DEBUG_" + "SAVEALL", TESTS)) == 1


@pytest.mark.parametrize("sign", [r'Struct\("!BQ[dq]"\)', r"(?m)^_?TO_TELL\b"], ids=["commands", "time to report"])
def test_commands_to_the_zygote_and_its_reports_have_one_home(sign: str) -> None:
    """Pool and zygote use the same list of commands and the same time limit for reports."""
    assert len(files_with(sign, ACTORS)) == 1


def test_the_actors_ask_the_core_what_a_command_line_names() -> None:
    """`callboard.commands` has better error messages than a copy of it."""
    assert files_with(r"sys\.path\.insert\(", ACTORS) == []


def test_engines_of_the_actors_are_opened_in_one_place() -> None:
    """An engine is opened by several users, in several event loops, and closed in any order."""
    assert len(files_with("EventLoopToken", ACTORS)) == 1


def test_pickles_of_others_are_read_in_one_place() -> None:
    """Code that reads a pickle decides whom to trust; other modules call this one.

    `# noqa: S301` marks the few lines that read a pickle made by their own process or its parent.
    """
    assert len(files_with(r"\(pickle\.Unpickler\)", ACTORS)) == 1
    assert len(files_with(r"pickle\.loads?\((?![^\n]*noqa: S301 - )", ACTORS)) == 0


def test_the_kernel_is_asked_in_one_place() -> None:
    """One module calls the C library, and checks its errors."""
    assert len(files_with(r"ctypes\.CDLL\(", ACTORS)) == 1


def test_what_only_linux_has_is_asked_for_in_one_place() -> None:
    """There it stands beside the replacement for other systems; elsewhere it would fail on an untested system."""
    signs = (
        r"os\.memfd_create|fcntl\.F_ADD_SEALS|MSG_CMSG_CLOEXEC|os\.waitid|prctl\(_PR_SET_(PDEATHSIG|CHILD)|/children"
    )

    assert len(files_with(signs, ACTORS)) == 1
