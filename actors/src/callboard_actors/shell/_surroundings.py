"""Environment of commands: without secrets of this process, and without programs that wait for a person."""

import os
from collections.abc import Mapping

_PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR")
_NOBODY_IS_THERE = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "EDITOR": "false",
    "VISUAL": "false",
    "GIT_EDITOR": "false",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "false",
    "SSH_ASKPASS": "false",
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PYTHONUNBUFFERED": "1",  # otherwise stderr would come before earlier output
}


def surroundings(own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of commands.

    From this process they inherit paths, the user and the language; others, such as keys, must be given.
    """
    kept = {name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith("LC_")}
    return {"PATH": os.defpath, **kept, **_NOBODY_IS_THERE, **own}
