"""Each question has one home: the module that answers it. Who else asks, imports the answer."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "callboard"

CUSTOMERS = ("_cli/",)
"""Rooms that have public names only; how they tell what they show of a state is theirs."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where a question is answered.

    Args:
        question: what callers want to know.
        module: the file that answers it, relative to `src/callboard`.
        names: what it defines for those who ask; nobody else defines anything of that name.
        signs: regular expressions of code that answers the question by itself; they match in no other file but those
            of customers.
    """

    question: str
    module: str
    names: tuple[str, ...]
    signs: tuple[str, ...] = ()


HOMES = [
    Home(
        "Which text does a model read of a result, and how is a large one written?",
        "tools/_large_values.py",
        ("as_content", "in_words", "takes_long", "writing"),
    ),
    Home(
        "What of a conversation is still as it was stored?",
        "_langgraph/_conversation_cache.py",
        ("StoredConversation", "StoredConversations"),
        (r"\.begins\(",),
    ),
    Home(
        "Which bytes are a message, and how does a list of them begin?",
        "_langgraph/_message_cache.py",
        ("array_header", "fields_of_all", "has_fields_only", "items_of"),
        (r'"model_validate_json"', r"\\xdc"),
    ),
    Home(
        "How is somebody else's checkpointer or store awaited?",
        "_langgraph/_savers.py",
        ("AwaitedSaver",),
    ),
    Home(
        "Which question does an answer belong to?",
        "tools/_ledger.py",
        ("answers_by_id", "is_by_id"),
    ),
    Home(
        "Is the package of an extra installed, and what is said if it is not?",
        "_extras.py",
        ("is_installed", "require"),
    ),
    Home(
        "What may a call end with, and which messages are in it?",
        "tools/_results.py",
        ("CallNext", "Item", "Output", "entries_in", "is_output", "items_in", "with_entries"),
    ),
    Home(
        "What becomes of a call that was begun and never ended, and who says so?",
        "tools/_unknown_outcome.py",
        ("UNKNOWN", "question_about", "said_of"),
    ),
    Home(
        "What is known of a tool?",
        "tools/_plan.py",
        ("ToolFacts",),
        (r"dict\[str, Plan\]", r"weakref\.ref\[BaseTool\]"),
    ),
    Home(
        "What ends a block whose time is over, and what does it raise?",
        "_loops/_deadline.py",
        ("TimeLimit",),
        (r"if not scope\.cancel_called",),
    ),
    Home(
        "Is what runs here alive, and until when does it have to say so?",
        "_loops/_idle.py",
        ("IdleScope", "alive", "is_put_off", "until_idle"),
        (r"callboard_idle",),
    ),
    Home(
        "What does the code that runs here work for, and how far is it?",
        "_calls/_progress.py",
        ("OnProgress", "Progress", "progress", "reporter"),
        (r"callboard_supervised",),
    ),
    Home(
        "By what does a service know a call again?",
        "_calls/_idempotency.py",
        ("current_key", "idempotency_key", "key_of"),
    ),
    Home(
        "How often is somebody told of what comes all the time?",
        "_calls/_progress.py",
        ("PAUSE", "Throttle"),
    ),
    Home(
        "How much time has a call?",
        "_calls/_call.py",
        ("CallTime",),
    ),
    Home(
        "What can happen to a thread, and how is it stored?",
        "conversations/_journal_entries.py",
        ("ActorState", "Amended", "Claimed", "Failed", "Finished", "Held", "Left", "Stepped", "entry_of"),
        (r'"kind": "(actor|amend|asked|claim|failed|hold|leave|step|task)"', r'\["kind"\] (==|!=|in|not in) '),
    ),
    Home(
        "Which states of actors belong to a place, and with which result are they stored?",
        "conversations/_actor_states.py",
        ("ActorStates", "KeptStates", "StateAt"),
    ),
    Home(
        "Which instance of an actor is that of a thread, and is its state that of the place?",
        "actors/_snapshots.py",
        ("InThread", "JournalSnapshots", "own_key"),
    ),
    Home(
        "What is known of a call between two runs?",
        "tools/_call_record.py",
        ("CallRecord", "NOTHING_KNOWN", "NOT_YET"),
        (
            r'"(answers|claimed|digests|output|pending)" (not )?in ',  # whether a record has something, asked of a dict
            r'\["(claimed|digests|pending)"\]',
            r'\{"format": FORMAT, "keys": (?!self\._keys, "calls": self\._stored, \*\*run\})',  # a forged ledger
        ),
    ),
    Home(
        "What does an agent need of a tool node beside its public names?",
        "tools/_node.py",
        ("Workings",),
        (r"\bToolBatch\((?!self\._setup)",),
    ),
    Home(
        "Which calls are open?",
        "tools/_unanswered.py",
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
            r"[\[{(][^\]})]*\.tool_call_id\b[^\]})]* for \w+ in ",  # the ids that messages answer
            r"\.tool_call_id\b *(not )?in ",  # whether one of them is among those of calls
            r"\.(add|append|remove|discard|pop)\([^)]*\.tool_call_id\)",  # a set of them, or what is left of one
            r" for \w+ in [^\n]*\.tool_call_id\b",  # the messages with the id of a call
            r"for message in reversed\((?s:.{1,120})\.tool_call_id ==",  # a conversation read from its end
        ),
    ),
    Home(
        "What is a key function called with, and what is no key function?",
        "_types.py",
        ("KeyFunction", "key_function"),
        (r"\b_?key(_function)?\((self\._)?call\b", r"\bkey\(request\b", r"\bsignature\(key\)"),
    ),
    Home(
        "What may a key look at besides the call?",
        "tools/_vocabulary.py",
        ("call_context", "context_of"),
        (r"\bCallContext\((?!config: )",),
    ),
    Home(
        "Is a limit kept in this process, or shared with others?",
        "_calls/_shared_limits.py",
        ("SharedLimiter", "SharedPlace", "limiter_of"),
        (
            r"\bLimiter\((policy\.)?limit\b",
            r"\bWanted\(limit=",
            r"\.shared is (not )?None\b(?! and not has_members_of| *:\n *raise)",
        ),
    ),
    Home(
        "Which addresses and names does the whole Internet know?",
        "_web/_addresses.py",
        ("is_public", "is_public_address", "literal"),
        (r"\.(is_global|is_private|is_link_local|is_loopback|sixtofour|teredo)\b",),
    ),
    Home(
        "Which addresses has a name?",
        "_web/_resolver.py",
        ("Resolver", "system_resolver"),
        (r"\bgetaddrinfo\(",),
    ),
    Home(
        "When does a server want to be asked again?",
        "_web/_retry_after.py",
        ("retry_after",),
        (r"parsedate_to_datetime",),
    ),
    Home(
        "What does `module:name` on a command line name?",
        "commands.py",
        ("NotThereError", "load_named"),
        (r"sys\.path\.insert\(",),
    ),
    Home(
        "When does a start count at the limits at which somebody has places?",
        "_calls/_shared_limits.py",
        ("count_start",),
        (r"\.starts\.pass_through\(",),
    ),
    Home(
        "May something begin, and what becomes of what runs, where something is drained?",
        "_calls/_draining.py",
        ("UnderWay", "Undertaking", "undertakings"),
        (r"callboard_under_way",),
    ),
    Home(
        "How did a call or a run end?",
        "telemetry/_outcome.py",
        ("has_failed", "outcome_of", "outcome_of_run"),
    ),
    Home(
        "Where is a call now?",
        "telemetry/_tracker.py",
        ("FAILURES", "CallPlace", "CallTracker", "Outcome", "TrackedCall"),
        (r"event\.phase == \"(queued|started|attempt_ended)\"",),
    ),
]


def definitions(tree: ast.Module) -> Iterator[str]:
    """The functions, classes and constants at the top of a module."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


@cache
def modules() -> Mapping[str, tuple[str, frozenset[str]]]:
    """The text of each file of the source, and what is defined at its top."""
    texts = {path.relative_to(SOURCE).as_posix(): path.read_text() for path in SOURCE.rglob("*.py")}
    return {place: (text, frozenset(definitions(ast.parse(text)))) for place, text in texts.items()}


def copies_of(home: Home) -> Iterator[str]:
    """Where a question is answered a second time, in words."""
    if missing := set(home.names) - modules()[home.module][1]:
        yield f"{home.module} has no {missing}, which answer {home.question!r}"
    for place, (text, defined) in modules().items():
        if place == home.module:
            continue
        if twice := set(home.names) & defined:
            yield f"{place} defines {twice}; {home.module} has it: import it"
        for sign in home.signs if not place.startswith(CUSTOMERS) else ():
            if found := re.search(sign, text):
                yield f"{place}: {found[0]!r} answers {home.question!r} again; import it from {home.module}"


def test_each_question_is_answered_in_one_module() -> None:
    """A second answer drifts from the first; so did seven of them, once."""
    assert [copy for home in HOMES for copy in copies_of(home)] == []


def shape_of(function: ast.FunctionDef) -> str:
    """What a function does: without its docstring and its annotations."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    arguments = ast.unparse(ast.arguments([], [ast.arg(one.arg) for one in function.args.args], None, [], [], None, []))
    return "\n".join([function.name, arguments, *map(ast.unparse, body)])


def test_what_many_tests_need_is_written_once() -> None:
    """`tests/helpers.py` has it, or `tests/conftest.py`; a copy would drift, as those of the source did."""
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


def test_litter_is_looked_for_in_one_place() -> None:
    """What only the collector can free, and with which of its switches that is seen."""
    sign = "gc.DEBUG_" + "SAVEALL"
    assert [path.name for path in TESTS.rglob("*.py") if sign in path.read_text()] == ["helpers.py"]


def test_commands_to_the_zygote_and_its_reports_have_one_home() -> None:
    """Both of its ends had lists of their own, and so had the time that it has to tell of an end."""
    process = TESTS.parent / "actors" / "src" / "callboard_actors" / "process"

    for sign, home in [(r'Struct\("!BQ[dq]"\)', "_commands.py"), (r"(?m)^_?TO_TELL\b", "_errors.py")]:
        assert [path.name for path in process.rglob("*.py") if re.search(sign, path.read_text())] == [home]


def test_the_actors_ask_the_core_what_a_command_line_names() -> None:
    """They had a copy, which told less of what is there."""
    actors = TESTS.parent / "actors" / "src"

    assert [path.name for path in actors.rglob("*.py") if "sys.path.insert(" in path.read_text()] == []


def test_engines_of_the_actors_are_opened_in_one_place() -> None:
    """By several, in each event loop, left in any order: that is difficult enough once."""
    actors = TESTS.parent / "actors" / "src"

    assert [path.name for path in actors.rglob("*.py") if "EventLoopToken" in path.read_text()] == ["_openings.py"]


def test_what_comes_from_elsewhere_is_unpickled_by_one_room() -> None:
    """Whoever reads a pickle decides whom to trust; engines beside `process` ask that room."""
    actors = TESTS.parent / "actors" / "src" / "callboard_actors"
    readers = {path.parent.name for path in actors.rglob("*.py") if "import pickle" in path.read_text()}

    assert readers == {"process"}


def test_the_kernel_is_asked_in_one_place() -> None:
    """Whoever calls into the C library by himself forgets some day to look at its errors."""
    actors = TESTS.parent / "actors" / "src"

    assert [path.name for path in actors.rglob("*.py") if "ctypes.CDLL(" in path.read_text()] == ["_libc.py"]


def test_what_only_linux_has_is_asked_for_in_one_place() -> None:
    """There it stands beside what others have for it; elsewhere it would end a pool on a system that nobody tried."""
    process = TESTS.parent / "actors" / "src" / "callboard_actors" / "process"
    signs = (
        r"os\.memfd_create|fcntl\.F_ADD_SEALS|MSG_CMSG_CLOEXEC|os\.waitid|prctl\(_PR_SET_(PDEATHSIG|CHILD)|/children"
    )

    assert [path.name for path in process.glob("*.py") if re.search(signs, path.read_text())] == ["_kernel.py"]
