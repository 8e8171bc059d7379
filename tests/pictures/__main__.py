"""All pictures of README and pages, from real runs: `python -m tests.pictures [FOLDER]`, by default `docs/pictures`.

It needs Chromium, and takes about a minute. The run of the live view is on a virtual clock, so its pictures change
only if the program does. The other pages contain the time, the process and the measured cost of their recording.
"""

import sys
import tempfile
from pathlib import Path

from tests.pictures import FOLDER, make

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for picture in make(Path(sys.argv[1]) if sys.argv[1:] else FOLDER, Path(scratch)):
            print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")
