"""The argument `module:name` of a command line is resolved for commands."""

import sys
from pathlib import Path

import pytest

from callboard.commands import NotThereError, load_named


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module, which is removed from `sys.modules` after the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "for_a_command", raising=False)
    (tmp_path / "for_a_command.py").write_text("class Trip:\n    tools = ['search']\n")
    return tmp_path


def test_a_name_with_dots_is_found_with_its_module(folder: Path) -> None:
    """A name may have dots; without a name the module is returned, and the command decides what to offer."""
    module, tools = load_named("for_a_command:Trip.tools", folder, example="tools")

    assert (module.__name__, tools) == ("for_a_command", ["search"])
    assert load_named("for_a_command", folder, example="tools") == (module, module)


def test_what_is_not_in_a_module_is_told_with_the_module(folder: Path) -> None:
    """The error lists the names of the module, or the modules of the folder if the module is missing."""
    with pytest.raises(NotThereError, match="for_a_command has no 'Trap'") as in_module:
        load_named("for_a_command:Trap", folder, example="tools")
    with pytest.raises(NotThereError, match=r"looked in .* first \(its modules: for_a_command\)") as nowhere:
        load_named("for_no_command:Trip", folder, example="tools")

    assert in_module.value.module is sys.modules["for_a_command"]
    assert nowhere.value.module is None


def test_an_error_of_the_module_is_its_own(folder: Path) -> None:
    """If the module exists but one of its imports fails, the error names the missing import and not the module."""
    (folder / "for_a_command.py").write_text("import there_is_no_such_module\n")

    with pytest.raises(ModuleNotFoundError, match="there_is_no_such_module"):
        load_named("for_a_command:Trip", folder, example="tools")


@pytest.mark.parametrize("code", ["", "0", "3", "'no key'"])
def test_a_module_that_ends_the_process_is_an_error(folder: Path, code: str) -> None:
    """The command would end with the code of the module: 0 as if the agent had answered, 3 as if it asked a person."""
    (folder / "for_a_command.py").write_text(f"import sys\nsys.exit({code})\n")

    with pytest.raises(ImportError, match=r"for_a_command calls sys.exit\(.*if __name__"):
        load_named("for_a_command:Trip", folder, example="tools")


@pytest.mark.parametrize("name", ["calendar", "email", "sys"])
@pytest.mark.parametrize("file", ["{}.py", "{}/__init__.py"])
def test_a_file_that_a_loaded_module_hides_is_told(folder: Path, name: str, file: str) -> None:
    """The error listed the names of the other module, in which a user does not look for an agent."""
    path = folder / file.format(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text("tools = ['search']\n")

    with pytest.raises(NotThereError, match=rf"{name}.* cannot be imported, because .*rename the file"):
        load_named(f"{name}:tools", folder, example="tools")


def test_a_module_of_the_folder_is_loaded_whatever_stands_beside_it(folder: Path) -> None:
    """A package hides a module of its name, and a module may put another object in its own place."""
    (folder / "for_a_command.py").write_text("Trip = 'module'\n")
    (folder / "for_a_command").mkdir()
    (folder / "for_a_command" / "__init__.py").write_text("Trip = 'package'\n")
    replacement = "import sys, types\nsys.modules[__name__] = types.SimpleNamespace(Trip='object')\n"
    (folder / "replaces_itself.py").write_text(replacement)

    assert load_named("for_a_command:Trip", folder, example="tools")[1] == "package"
    assert load_named("replaces_itself:Trip", folder, example="tools")[1] == "object"
