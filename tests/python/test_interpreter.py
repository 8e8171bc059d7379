"""The interpreter without a tool or process: code in, a record out."""

import os
import re
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard_actors._util._excerpts import Excerpt, clean_text
from callboard_actors.python._interpreter import Interpreter

MARKS_OF_A_WHOLE_LINE = "    ~~~~~~^^^^^^\n" if sys.version_info >= (3, 13) else ""
"""Marks below a call that fills its line; Python before 3.13 has none."""


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch) -> Iterator[Interpreter]:
    monkeypatch.setattr("callboard_actors.python._interpreter._MAX_VALUE", 1000)
    interpreter = Interpreter(max_output=1000)
    yield interpreter
    interpreter.close()


def exit_code(code: str) -> int:
    """Run code in a process of its own."""
    return subprocess.run([sys.executable, "-c", code], timeout=60, check=False, capture_output=True).returncode


def test_names_stay_and_the_last_expression_is_shown(python: Interpreter) -> None:
    """Variables stay between cells, as in a Jupyter notebook."""
    assert python.run("x = 20")["value"] is None
    record = python.run("x += 1\nx * 2")

    assert (record["value"], record["output"], record["error"]) == ("42", "", "")
    assert python.run("")["value"] is None


def test_names_are_gone_where_no_state_is_kept() -> None:
    """With `keeps_state=False` each cell starts without variables of the earlier ones."""
    python = Interpreter(keeps_state=False)
    python.run("x = 1")

    assert python.run("x")["error"].endswith("NameError: name 'x' is not defined")
    python.close()


def test_all_that_is_written_is_there_in_its_order(python: Interpreter) -> None:
    """Output of Python, C code and child processes is recorded in the order in which it was written."""
    code = (
        "import os, sys, subprocess\n"
        "print('one'); print('two', file=sys.stderr); os.write(1, b'three\\n')\n"
        "subprocess.run(['echo', 'four']); os.system('echo five >&2'); print('six', end='')"
    )

    assert python.run(code)["output"] == "one\ntwo\nthree\nfour\nfive\nsix"
    assert python.run("print('seven')")["output"] == "seven\n"


def test_output_is_kept_at_both_ends(python: Interpreter) -> None:
    """Memory stays bounded whatever is printed."""
    output = python.run("for n in range(20_000): print(n)")["output"]

    assert output.startswith("0\n1\n2\n")
    assert output.endswith("\n19998\n19999\n")
    assert "bytes left out" in output
    assert len(output) < 1100


def test_a_traceback_has_the_lines_of_the_code_and_no_others(python: Interpreter) -> None:
    """Frames of the interpreter or of a library do not help a model."""
    python.run("def divide(a, b):\n    return a / b")
    error = python.run("import json\ndivide(1, 0)")["error"]

    assert error == (
        "Traceback (most recent call last):\n"
        '  File "<cell 2>", line 2, in <module>\n'
        f"    divide(1, 0)\n{MARKS_OF_A_WHOLE_LINE}"
        '  File "<cell 1>", line 2, in divide\n'
        "    return a / b\n"
        "           ~~^~~\n"
        "ZeroDivisionError: division by zero"
    )
    inside = python.run("import json\njson.loads('{')")["error"]
    assert "json/" not in inside
    assert '"<cell 3>", line 2' in inside


def test_causes_and_groups_are_told(python: Interpreter) -> None:
    """Causes and sub-exceptions often tell more than the outer exception."""
    error = python.run("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ExceptionGroup('g', [KeyError(1)])")

    assert "ZeroDivisionError" in error["error"]
    assert "KeyError: 1" in error["error"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = (", "SyntaxError"),
        ("\0", "null byte"),
        ("raise SystemExit(3)", "SystemExit(3) [the cell ended there. The interpreter goes on"),
        ("import sys; sys.exit()", "SystemExit(None)"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("def f(): f()\nf()", "RecursionError"),
        ("(" * 2000 + ")" * 2000, "Error"),
        ("class E(Exception):\n    def __str__(self): raise SystemExit\nraise E", "E"),
        ("class M(type):\n    __name__ = 1\nclass E(Exception, metaclass=M): pass\nraise E('x')", "E"),
    ],
)
def test_what_ends_a_cell_is_told_and_ends_no_more(python: Interpreter, code: str, expected: str) -> None:
    """The next cell finds the variables unchanged."""
    python.run("x = 42")
    record = python.run(code)

    assert expected in record["error"]
    assert len(record["error"]) < 6000
    assert python.run("x")["value"] == "42"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("class A:\n    def __repr__(self): raise ValueError\nA()", "<A, whose repr raised ValueError>"),
        ("class A:\n    def __repr__(self): raise SystemExit\nA()", "<A, whose repr raised SystemExit>"),
        ("class A:\n    def __repr__(self): return 1\nA()", "<A, whose repr raised TypeError>"),
        (
            "class S(str):\n    def __len__(self): return 1\nclass A:\n    def __repr__(self): return S('abc')\nA()",
            "abc",
        ),
        ("'\\ud800'", "'\\ud800'"),
    ],
)
def test_a_value_that_cannot_be_shown_is_told(python: Interpreter, code: str, expected: str) -> None:
    """A value's `repr` is code of the cell and may raise anything."""
    assert python.run(code)["value"] == expected


def test_a_large_value_is_shown_at_both_ends(python: Interpreter) -> None:
    """A `repr` of many megabytes is cut in its middle."""
    value = python.run("'ä' * 10_000_000")["value"]

    assert value is not None
    assert value.startswith("'ää")
    assert value.endswith("ää'")
    assert "left out" in value
    assert len(value) < 1100


def test_await_works_at_the_top_and_tasks_go_on_in_the_next_cell(python: Interpreter) -> None:
    """All cells of an interpreter run on one event loop."""
    python.run("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 42")
    assert python.run("await asyncio.sleep(0)\nt = asyncio.ensure_future(f())")["error"] == ""
    assert python.run("await t")["value"] == "42"
    error = python.run("async def g():\n    1 / 0\nawait g()")["error"]
    assert error.splitlines()[1:3] == ['  File "<cell 4>", line 3, in <module>', "    await g()"]


@pytest.mark.parametrize(
    "code",
    [
        "import builtins\ndel builtins.len, builtins.print, builtins.Exception",
        "import builtins\nbuiltins.__dict__.clear()",
        "import builtins\nbuiltins.open = builtins.isinstance = None",
        "import os\nos.close(1); os.close(2)",
        "import sys\nsys.stdout = sys.stderr = None",
        "import sys\nclass A:\n    def flush(self): raise SystemExit\nsys.stdout = A()",
        "import sys\nsys.stdout.close()",
        "import sys\nsys.stdout.buffer.close()",
        "import sys\nsys.stdout.detach()",
        "import sys\nsys.stdout.reconfigure(encoding='utf-16', newline='\\r\\n', write_through=False)",
        "import sys\nsys.stdout.write = None",
        "import sys\nsys.setrecursionlimit(50)",
        "import os\nos.dup2(0, 1)",
        "import sys\nsys.modules.pop('__main__')",
        "import os\nos.system('sleep 1 &')",
        "import os\nos.chdir('/')\nprint('x' * 10_000_000)",
        "globals().clear()",
    ],
)
def test_a_cell_that_breaks_things_breaks_them_for_itself_only(python: Interpreter, code: str) -> None:
    """The next cell has a working interpreter again."""
    directory = Path.cwd()
    try:
        python.run(code)
        record = python.run("print(len('four')); isinstance(1, int)")
        assert (record["output"], record["value"], record["error"]) == ("4\n", "True", "")
    finally:
        os.chdir(directory)
    assert sys.stdout is not None


@pytest.mark.parametrize(
    "code",
    ["pass", "import sys; sys.stdout.close()", "import io, sys; sys.stdout = io.StringIO()"],
    ids=["left alone", "closed", "replaced"],
)
def test_a_thread_that_prints_when_its_cell_ends_crashes_nothing(code: str) -> None:
    """CPython's `print` holds no reference to its stream while writing, so streams of cells must never be freed."""
    cell = f"{code}\nimport threading; threading.Thread(target=print, args=('t',)).start()"
    rounds = (
        "from callboard_actors.python._interpreter import Interpreter\n"
        "python = Interpreter()\n"
        f"for _ in range(50): python.run({cell!r})\n"
        "assert python.run('6 * 7')['value'] == '42'\n"
        "python.close()\n"
    )
    assert exit_code(rounds) == 0


def test_a_thread_of_a_former_cell_prints_to_the_cell_that_runs(python: Interpreter) -> None:
    """Between two cells there is no record to which a thread's output could go."""
    python.run(
        "import threading\ngo, done = threading.Event(), threading.Event()\n"
        "def late():\n    go.wait()\n    print('late')\n    done.set()\nthreading.Thread(target=late).start()"
    )

    assert python.run("go.set(); done.wait(10)")["output"] == "late\n"


def test_what_a_cell_defines_belongs_to_main(python: Interpreter) -> None:
    """Classes of a cell can be pickled, and `if __name__ == "__main__"` is true."""
    code = (
        "import pickle, dataclasses\n@dataclasses.dataclass\nclass A:\n    x: 'int' = 1\n"
        "if __name__ == '__main__':\n    print(pickle.loads(pickle.dumps(A())))"
    )

    assert python.run(code)["output"] == "A(x=1)\n"


def test_a_late_cell_is_interrupted_and_names_stay(python: Interpreter) -> None:
    """`except Exception` does not catch the interruption."""
    python.run("x = 42")
    record = python.run("while True:\n    try:\n        x\n    except Exception:\n        pass", 0.2)

    assert record["error"].endswith("[interrupted after its 0.2 s. The interpreter goes on, and its names stay.]")
    assert '"<cell 2>"' in record["error"]
    assert python.run("x")["value"] == "42"


def test_one_that_is_deaf_to_that_is_killed_by_the_kernel() -> None:
    """The kernel's timer works even if the interpreter runs no Python code any more."""
    code = (
        "from callboard_actors.python._interpreter import Interpreter\n"
        "Interpreter(grace=0.2).run('10 ** 10 ** 9', 0.2)\n"
    )
    assert exit_code(code) == -14


class _Figure:
    def __init__(self, size: int) -> None:
        self.size = size

    def savefig(self, file, *, format, dpi) -> None:
        if self.size < 0:
            raise ValueError("it has no colour of that name")
        file.write(b"P" * (self.size * dpi // 100))


def _pyplot(monkeypatch: pytest.MonkeyPatch, *sizes: int) -> dict[int, _Figure]:
    """Return a replacement for `matplotlib.pyplot`; the real one is not installed for tests."""
    figures = {number: _Figure(size) for number, size in enumerate(sizes, 1)}
    pyplot = types.ModuleType("matplotlib.pyplot")
    pyplot.get_fignums = lambda: list(figures)
    pyplot.figure = figures.__getitem__
    pyplot.close = lambda figure: figures.clear()
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", pyplot)
    return figures


def test_figures_come_back_within_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large figure is drawn smaller, one over the budget is only described, and all figures are closed."""
    figures = _pyplot(monkeypatch, 50, 150, 5000, -1, 50)
    monkeypatch.setattr("callboard_actors.python._interpreter._MAX_PICTURE", 100)
    python = Interpreter(pictures=4)
    record = python.run("1")
    python.close()

    assert [len(picture) for picture in record["pictures"]] == [68, 100]
    assert record["notes"] == [
        "[figure 3 is not shown: as PNG it has more than 100 bytes]",
        "[figure 4 cannot be drawn: ValueError: it has no colour of that name]",
        "[1 more figures are not shown; no more than 4 are]",
    ]
    assert figures == {}


def test_nothing_of_matplotlib_is_loaded_by_us(python: Interpreter) -> None:
    """Importing matplotlib takes a second, and most cells draw nothing."""
    python.run("1")

    assert "matplotlib" not in sys.modules


# Cleaning of output for models.


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07plain", "red plain"),
        ("\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("10%\r50%\r100%\ndone\r\n", "100%\ndone\n"),
        ("b\x08bo\x08ol\x08ld", "bold"),
        ("a\x00b\x07c\x9b1md\x7f\te", "abcd\te"),
        ("cut \x1b[3", "cut "),
        ("cut \x1b", "cut "),
        ("an \x1b(Bascii", "an ascii"),
    ],
)
def test_escapes_and_control_characters_are_gone(written: str, read: str) -> None:
    """The model reads the text that a terminal would finally show."""
    assert clean_text(written) == read


@given(st.text(alphabet="ab\n\x08"))
def test_a_backspace_takes_away_the_character_before_it(written: str) -> None:
    """The result equals that of applying backspaces one by one, in linear time; a backspace never leaves its line."""
    expected = written
    while (shorter := re.sub("[^\n\x08]\x08", "", expected)) != expected:
        expected = shorter

    assert clean_text(written) == expected.replace("\x08", "")


def test_backspaces_take_no_time_that_grows_with_their_square() -> None:
    """The text is cleaned on the event loop, so quadratic time would block it."""
    begun = time.process_time()
    assert clean_text("tea" + "x" * 300_000 + "\x08" * 300_000) == "tea"

    assert time.process_time() - begun < 5


@given(st.text())
def test_nothing_but_text_is_left(text: str) -> None:
    """No control characters are left, whatever the input is."""
    assert all(sign in "\n\t" or not (ord(sign) < 32 or 127 <= ord(sign) < 160) for sign in clean_text(text))


@given(st.text(alphabet="aä€😀", min_size=1, max_size=60), st.data())
def test_no_character_is_cut(text: str, data: st.DataObject) -> None:
    """Half of a UTF-8 character would be decoded to a character that the command did not write."""
    encoded = text.encode()
    end = data.draw(st.integers(0, len(encoded)))
    begin = data.draw(st.integers(end, len(encoded)))
    read = Excerpt(encoded[:end], begin - end, encoded[begin:]).text()

    assert "\ufffd" not in read
    if begin == end:
        assert read == text
    else:
        head, tail = read.split(f"[... {begin - end:,} bytes left out ...]\n")
        assert text.startswith(head.removesuffix("\n"))
        assert text.endswith(tail)
