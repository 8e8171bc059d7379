"""Command line of the explorer: `python -m tests.explore`."""

import argparse
import random
import sys
from pathlib import Path

from . import WORLDS
from ._explore import explore


def main() -> int:
    """Explore for some minutes; return 1 if a promise was broken."""
    every = sorted({name for world in WORLDS.values() for name in world.backends})
    parser = argparse.ArgumentParser("python -m tests.explore", description=sys.modules["tests.explore"].__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long; 1 by default")
    parser.add_argument("--seed", type=int, help="of the first plan of each world, to see the same ones again")
    parser.add_argument("--world", action="append", choices=list(WORLDS), help="only this one; may be repeated")
    parser.add_argument("--backend", action="append", choices=every, help="only this one; may be repeated")
    parser.add_argument("--out", type=Path, default=Path("build/explore"), help="where scripts of failures go")
    parser.add_argument("--most", type=int, default=10, help="stop after so many failures")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    worlds = [WORLDS[name] for name in options.world or WORLDS]
    print(f"--seed {seed}", flush=True)
    failures = 0
    for failure in explore(worlds, seed, options.minutes * 60, options.backend or ()):
        failures += 1
        options.out.mkdir(parents=True, exist_ok=True)
        script = options.out / f"explore-failure-{failure.world.name}-{failure.seed}-{failure.backend}.py"
        script.write_text(failure.script())
        print(f"\n{script}: {failure.complaints[0]}\n{failure.script()}", flush=True)
        if failures == options.most:
            break
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
