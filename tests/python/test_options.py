"""`python_tool` and its actor class have the same options."""

import inspect

from callboard_actors.python import Python, python_tool


def test_the_tool_has_every_option_of_its_actor_with_the_same_default() -> None:
    """Both signatures are written out for type checkers and `help`, and must not drift apart."""
    of_actor, of_tool = inspect.signature(Python).parameters, inspect.signature(python_tool).parameters

    assert {name: of_tool.get(name) for name in of_actor} == dict(of_actor)
