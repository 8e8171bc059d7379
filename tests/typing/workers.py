"""Worker processes, as users meet them; the type checkers read this file, nothing runs it."""

from typing import assert_type

from callboard_actors.process import Processes


def count(text: str, least: int) -> int:
    return max(len(text), least)


async def fetch(url: str) -> bytes:
    return url.encode()


async def calls() -> None:
    async with Processes(workers=2, preload=["json"], max_calls=100, memory=1024**3) as pool:
        assert_type(await pool.run(count, "tea", 2), int)
        assert_type(await pool.run(fetch, "https://example.org"), bytes)
        assert_type(pool.pids, list[int])
