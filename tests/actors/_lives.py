"""Events in the lives of the actors of a test, in their order; `conftest` clears them before each test."""

lives: list[str] = []
