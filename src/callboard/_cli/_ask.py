"""Questions of a run, asked at the terminal."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from langgraph.types import Interrupt
from rich.console import Console

from callboard._cli._shown_text import as_json, as_text, named, printable
from callboard._cli._signals import attentive
from callboard.questions import Action, Answer, Word, approval_in, free_answer

ReadLine = Callable[[str, str], str]
"""Function from a prompt and an editable initial text to the line read; raises EOFError at the end of input."""

_WHAT_FOR: Mapping[Word, str] = {
    "accept": "run it as it is",
    "edit": "run it with other arguments",
    "respond": "do not run it; your text is its result",
    "ignore": "do not run it",
}


def line_reader(console: Console) -> ReadLine:
    """Return a function that reads lines from the terminal, and writes its prompts to the console."""

    def read(prompt: str, start: str) -> str:
        if not (sys.stdout.isatty() and console.file is sys.stdout):
            console.print(prompt, end="")
            with attentive():
                line = sys.stdin.readline()
            if not line:
                raise EOFError
            return line.rstrip("\n")
        if sys.platform != "win32":
            with suppress(ImportError):
                import readline

                # A C function, and no Python code: readline would drop an exception that a signal handler raises in it.
                readline.set_startup_hook(partial(readline.insert_text, start))
                try:
                    with attentive():
                        return input(prompt)
                finally:
                    readline.set_startup_hook()
        with attentive():
            return input(prompt)

    return read


class Asker:
    """Dialogue that asks the questions of a run one after the other."""

    def __init__(self, console: Console, read: ReadLine) -> None:
        self._console = console
        self._read = read

    def ask(self, questions: Sequence[Interrupt]) -> dict[str, Any]:
        """Ask all questions, and return the answers by question id; raise EOFError at the end of input."""
        answers: dict[str, Any] = {}
        for number, question in enumerate(questions, start=1):
            self._console.print()
            if len(questions) > 1:
                self._console.print(f"Question {number} of {len(questions)}", style="bold")
            answers[question.id] = self._answer(question)
        return answers

    def confirm(self, what: str) -> bool:
        """Ask a yes/no question, and return whether the answer is yes; raise EOFError at the end of input."""
        self._console.print()
        while True:
            said = self._read(f"{what} [yes/no] ", "").strip().lower()
            if said and said in ("yes"[: len(said)], "no"[: len(said)]):
                return said[0] == "y"

    def _answer(self, question: Interrupt) -> Any:
        approval = approval_in(question.value)
        if approval is None or any(not action.allowed for action in approval.actions):
            self._console.print(as_text(question.value))
            return free_answer(self._text("answer (JSON, or text): "), question)
        return approval.encode([self._decided(action) for action in approval.actions])

    def _decided(self, action: Action) -> Answer:
        show(self._console, action)
        for word in action.allowed:
            self._console.print(f"  {word:<8}{_WHAT_FOR[word]}", style="dim")
        while True:
            word = self._chosen(action.allowed)
            if word == "edit":
                if (args := self._edited(action.args)) is not None:
                    return word, args
            elif word == "respond":
                return word, self._text("text: ")
            elif word == "ignore":
                return word, self._read("reason (or nothing): ", "").strip() or None
            else:
                return word, None

    def _chosen(self, allowed: Sequence[Word]) -> Word:
        while True:
            said = self._read(f"{'/'.join(allowed)}? ", "").strip().lower()
            for word in allowed:
                if said and word.startswith(said):
                    return word
            self._console.print(f"Answer with {' or '.join(allowed)}; the first letter will do.")

    def _text(self, prompt: str) -> str:
        while not (text := self._read(prompt, "").strip()):
            pass
        return text

    def _edited(self, args: Mapping[str, Any]) -> dict[str, Any] | None:
        """Read edited arguments; return `None` for an empty line, which goes back to the choice."""
        start = printable(as_json(args))
        while text := self._read("arguments (nothing: go back): ", start).strip():
            try:
                edited = json.loads(text)
            except ValueError as error:
                self._console.print(f"That is no JSON: {error}")
                start = text
                continue
            if isinstance(edited, dict):
                return edited
            self._console.print('The arguments are a JSON object, such as {"path": "a.txt"}.')
            start = text
        return None


def show(console: Console, action: Action) -> None:
    """Print an action with all of its arguments, uncut: a person must see everything that they approve."""
    console.print(named(action.name), style="bold")
    if action.description:
        console.print(printable(action.description.strip()), style="dim")
    console.print(as_text(dict(action.args)))
