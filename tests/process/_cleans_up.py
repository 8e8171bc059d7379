"""Async tools with clean-up, in a module that workers can load."""

import pathlib

import anyio

import callboard
from callboard import cleanup


async def hold(folder: str) -> str:
    """Hold something until it is cancelled, then say so in a file."""
    (pathlib.Path(folder) / "began").touch()
    try:
        await anyio.sleep(3600)
    finally:
        with cleanup():
            (pathlib.Path(folder) / "cleaned").touch()
    return "held"


async def hold_by_the_name_of_the_package(folder: str) -> str:
    """Hold something; the clean-up is found by an attribute."""
    try:
        await anyio.sleep(3600)
    finally:
        with callboard.cleanup():
            pass
    return folder


async def plain(folder: str) -> str:
    """Close a file, which the kernel does, too."""
    with (pathlib.Path(folder) / "began").open("w"):
        await anyio.sleep(0)
    return folder
