"""callboard beside other frameworks, measured in an environment of its own: `python -m tests.rivals`."""
