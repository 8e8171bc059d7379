"""Print the tables of the page about scale, computed from measured costs: `python -m tests.scale`."""

from dataclasses import replace

from ._model import DAY, Costs, Fleet, ceiling

PEAK = 3.0
"""Calls of the busiest hour of a day, relative to the average hour."""

COSTS = Costs(turn=8.6e-3, call=0.33e-3, shared=60e-6, place=9.4e-6, beat=210e-6, write=1.4e-3, write_call=24e-6)
"""Costs from `python -m tests.benchmark fleet`, on the machine of the page."""

LARGEST = Fleet(nodes=1_000, calls=1e8 / DAY * PEAK)


def grown() -> list[tuple[str, Fleet]]:
    """Fleets of growing size, and the largest with changes that move its bottleneck."""
    return [
        ("10^5 a day, 1 node", Fleet(nodes=1, calls=1e5 / DAY * PEAK)),
        ("10^6 a day, 10 nodes", Fleet(nodes=10, calls=1e6 / DAY * PEAK)),
        ("10^7 a day, 100 nodes", Fleet(nodes=100, calls=1e7 / DAY * PEAK)),
        ("10^8 a day, 1,000 nodes", LARGEST),
        ("the same, four servers of limits", replace(LARGEST, stores=4)),
        ("the same, and a lease of 60 s", replace(LARGEST, stores=4, lease=60.0)),
        ("the same, and four databases", replace(LARGEST, stores=4, lease=60.0, databases=4)),
    ]


def table(fleets: list[tuple[str, Fleet]]) -> list[str]:
    """Return Markdown rows: the utilisation in the busiest hour, and the load at which the fleet is full."""
    lines = []
    for title, fleet in fleets:
        used = fleet.demands(COSTS)
        most, first = ceiling(fleet, COSTS)
        shares = " | ".join(f"{used[kind]:.1%}" for kind in ("event loops", "limits", "database"))
        lines.append(f"| {title} | {shares} | {first}, at {most / PEAK * DAY / 1e6:.3g} million a day |")
    return lines
