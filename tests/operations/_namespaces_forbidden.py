"""Program that confines Python code where namespaces are forbidden, as in a container of Docker or Kubernetes.

The filter of system calls refuses what the default profile of Docker refuses without CAP_SYS_ADMIN: `unshare`,
`mount`, `clone` with a new namespace. `clone3` does not exist there. For x86_64.
"""

import ctypes
import struct

import anyio

from callboard import ToolNode, tool_call
from callboard_actors.process import Confine
from callboard_actors.python import python_tool

_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NEW_NAMESPACES = 0x7E020000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 38, 22


def _forbid_namespaces() -> None:
    program = [
        (_LOAD, 0, 0, 0),  # number of the system call
        (_EQUAL, 0, 1, 272),  # unshare
        (_RETURN, 0, 0, _ERRNO | 1),
        (_EQUAL, 0, 1, 165),  # mount
        (_RETURN, 0, 0, _ERRNO | 1),
        (_EQUAL, 0, 1, 435),  # clone3
        (_RETURN, 0, 0, _ERRNO | 38),
        (_EQUAL, 0, 3, 56),  # clone
        (_LOAD, 0, 0, 16),  # flags of clone
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _ERRNO | 1),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]

    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(Filter(len(program), code)), 0, 0) == 0


async def _run_codes(confine: Confine, *codes: str) -> list[str]:
    node, contents = ToolNode([python_tool(confine=confine)]), []
    async with node:
        for code in codes:
            run = await node.ainvoke([tool_call("run_python", "1", code=code)], {"configurable": {"thread_id": "a"}})
            contents.append(run["messages"][0].content)
    return contents


async def main() -> None:
    for content in await _run_codes(Confine(), "sum(range(10))", "open('/etc/passwd').read()"):
        print(content.splitlines()[-1])


if __name__ == "__main__":
    _forbid_namespaces()
    anyio.run(main)
