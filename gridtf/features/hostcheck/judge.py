"""The check of hosts before training: which are far from the others, and who measures the network with whom. Pure.

Only like is compared with like: GPUs of a model, CPUs of a model with as many threads. Two hosts cannot tell which of
them is the slow one, so that there must be three values, but for the clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from gridtf.values import Value, grouped

FEWEST = 3  # comparable values, of which one may be far from the median
_CLOCK = 5.0  # seconds by which the clock of a host may differ

Values = Mapping[str, Mapping[str, float]]  # host -> name of a value -> the value
Found = dict[tuple[str, str], str]  # host and name of a value -> what is wrong with it

CLOCK = "clock"  # seconds that the clock of a host is behind the launcher's
SHARE = "share"  # for how much of the time in which the program of the check could run it did


class Measure(Value):
    """One kind of values, of which more is better.

    Attributes:
        title: What is measured.
        unit: Its unit.
        least: The part of the median below which a host is suspect.
        enough: A value that is good in any case; 0: there is none.
    """

    title: str
    unit: str
    least: float
    enough: float = 0.0

    def far(self, value: float, median: float) -> str:
        """How a value is far from the median; empty where it is not."""
        part = value / median if median else 1.0
        if part >= self.least or 0 < self.enough <= value:
            return ""
        return f"{100 * part:.0f} % of the median ({_short(value)} of {_short(median)} {self.unit})"


# What follows a colon in the name of a value tells values of one host apart: gpu:0.
MEASURES: Mapping[str, Measure] = {
    SHARE: Measure("short of CPUs: it runs for", "% of the time in which it could", 0.5, enough=80),
    "gpu": Measure("matrix product on GPU", "TFLOPS", 0.6),
    "cpu": Measure("matrix product", "GFLOPS", 0.5),
    "memory": Measure("copies in memory", "GB/s", 0.4),
    "tmp_write": Measure("writing to TMPDIR", "MB/s", 0.2, enough=200),
    "tmp_read": Measure("reading from TMPDIR", "MB/s", 0.2, enough=200),
    "run_write": Measure("writing to the run directory", "MB/s", 0.1, enough=50),
    "run_read": Measure("reading from the run directory", "MB/s", 0.1, enough=50),
    "bandwidth": Measure("bandwidth", "MB/s", 0.4),
    "round_trips": Measure("round trips", "a second", 0.2, enough=1000),
}


def suspects(values: Values, alike: Mapping[str, Mapping[str, str]]) -> Found:
    """The values that are far from those of the other hosts.

    Args:
        values: What was measured.
        alike: Host -> name of a value -> what it has in common with the values that it can be compared with.

    Returns:
        (host, name) -> what is wrong, such as ``matrix product 41 % of the median (0.9 of 2.2 TFLOPS)``.
    """
    groups = grouped(
        ((name.partition(":")[0], alike.get(host, {}).get(name, "")), (host, name, value))
        for host, named in values.items()
        for name, value in named.items()
    )
    found: Found = {}
    for (kind, _), members in groups.items():
        median = statistics.median(value for _, _, value in members)
        comparable = len(members) >= FEWEST and len({host for host, _, _ in members}) > 1
        for host, name, value in members:
            how = ""
            if kind == CLOCK and abs(off := value - (median if comparable else 0.0)) > _CLOCK:
                how = f"its clock differs by {abs(off):.1f} s"
            elif kind != CLOCK and comparable and (far := MEASURES[kind].far(value, median)):
                how = f"{MEASURES[kind].title} {name.partition(':')[2]}".rstrip() + f" {far}"
            if how:
                found[host, name] = how
    return found


def explained(found: Found) -> Found:
    """Without what follows from too few CPUs, on a host that is short of them: all that its program does is slow."""
    short = {host for host, name in found if name == SHARE}
    return {key: what for key, what in found.items() if key[0] not in short or key[1] in (SHARE, CLOCK)}


def rounds(hosts: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Pairs of hosts that measure the way between them: each with its neighbours in a ring, and with one far away.

    Returns:
        The pairs of each round, in which no host is twice.
    """
    count, half = len(hosts), len(hosts) // 2
    ring = [(host, hosts[(index + 1) % count]) for index, host in enumerate(hosts[: count if count > 2 else half])]
    closing = [ring.pop()] if count % 2 and ring else []
    far = [(hosts[index], hosts[index + half]) for index in range(half if count > 3 else 0)]
    return [pairs for pairs in (ring[::2], ring[1::2], closing, far) if pairs]


def take_best(found: dict[str, dict[str, float]], measured: Mapping[tuple[str, str], Mapping[str, float]]) -> None:
    """Keep the best of the pairs of each host: one end of a slow way is innocent, and has good ways to others.

    Args:
        found: Host -> name of a value -> the best one, which is changed.
        measured: Pair of hosts -> name of a value -> the value.
    """
    for pair, values in measured.items():
        for mine in (found.setdefault(host, {}) for host in pair):
            for name, value in values.items():
                mine[name] = max(mine.get(name, value), value)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
