"""The application of `examples/drained_service.py`, for servers that import it; its options are in the environment.

_served.py SERVER BACKEND PORT    runs the program for hypercorn or uvicorn that is on the page "Shut down gracefully"
"""

import os
import re
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "shut-down.md"

app = runpy.run_path(str(ROOT / "examples" / "drained_service.py"))["service"](
    Path(os.environ["DIRECTORY"]), float(os.environ["SECONDS"])
)


def program(server: str, backend: str, port: int) -> str:
    """Return the page's program for a server, a backend and a port on loopback."""
    blocks = re.findall(r"^```python no-run\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    [block] = [code for code in blocks if re.search(rf"^(from|import) {server}\b", code, re.M)]
    block = block.replace("uvicorn.run(app)", f'uvicorn.run(app, host="127.0.0.1", port={port})')
    text = re.sub(r"^from service import app.*$", "", block, flags=re.M).replace("0.0.0.0:8000", f"127.0.0.1:{port}")
    if backend == "trio":
        text = text.replace("hypercorn.asyncio import", "hypercorn.trio import")
        text = text.replace("anyio.run(run)", 'anyio.run(run, backend="trio")')
    return str(text)


if __name__ == "__main__":
    exec(program(sys.argv[1], sys.argv[2], int(sys.argv[3])))
