"""The check of hosts before training: which are far from the others, and who measures the network with whom. Pure.

Only like is compared with like: GPUs of a model, CPUs of a model with as many threads. Two hosts cannot tell which of
them is the slow one, so that there must be three values, but for the clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gridtf.values import Value

FEWEST = 3  # comparable values, of which one may be far from the median
_CLOCK = 5.0  # seconds by which the clock of a host may differ

Values = Mapping[str, Mapping[str, float]]  # host -> name of a value -> the value
Found = dict[tuple[str, str], str]  # host and name of a value -> what is wrong with it


class Measure(Value):
    """One kind of values.

    Attributes:
        title: What is measured.
        unit: Its unit.
        least: The part of the median's speed below which a host is suspect.
        enough: A value that is good in any case; 0: there is none.
        of_time: Whether less is better.
    """

    title: str
    unit: str
    least: float
    enough: float = 0.0
    of_time: bool = False

    def far(self, value: float, median: float) -> str:
        """How a value is far from the median; empty where it is not."""
        if self.of_time:
            good = value <= self.enough or median >= self.least * value
            return "" if good else f"{_short(value)} {self.unit}, where the median is {_short(median)} {self.unit}"
        part = value / median if median else 1.0
        if part >= self.least or 0 < self.enough <= value:
            return ""
        return f"{100 * part:.0f} % of the median ({_short(value)} of {_short(median)} {self.unit})"


# What follows a colon in the name of a value tells values of one host apart: gpu:0.
MEASURES: Mapping[str, Measure] = {
    "gpu": Measure("matrix product on GPU", "TFLOPS", 0.6),
    "cpu": Measure("matrix product", "GFLOPS", 0.5),
    "memory": Measure("copies in memory", "GB/s", 0.4),
    "tmp_write": Measure("writing to TMPDIR", "MB/s", 0.2, enough=200),
    "tmp_read": Measure("reading from TMPDIR", "MB/s", 0.2, enough=200),
    "run_write": Measure("writing to the run directory", "MB/s", 0.1, enough=50),
    "run_read": Measure("reading from the run directory", "MB/s", 0.1, enough=50),
    "bandwidth": Measure("bandwidth", "MB/s", 0.4),
    "latency": Measure("latency", "ms", 0.2, enough=1.0, of_time=True),
}
CLOCK = "clock"  # seconds that the clock of a host is behind the launcher's


def suspects(values: Values, alike: Mapping[str, Mapping[str, str]]) -> Found:
    """The values that are far from those of the other hosts.

    Args:
        values: What was measured.
        alike: Host -> name of a value -> what it has in common with the values that it can be compared with.

    Returns:
        (host, name) -> what is wrong, such as ``matrix product 41 % of the median (0.9 of 2.2 TFLOPS)``.
    """
    groups: dict[tuple[str, str], list[tuple[str, str, float]]] = {}
    for host, named in values.items():
        for name, value in named.items():
            group = name.partition(":")[0], alike.get(host, {}).get(name, "")
            groups.setdefault(group, []).append((host, name, value))
    found: Found = {}
    for (kind, _), members in groups.items():
        median = _median([value for _, _, value in members])
        if kind == CLOCK:
            base = median if len(members) >= FEWEST else 0.0
            found |= {
                (host, name): f"its clock differs by {abs(value - base):.1f} s"
                for host, name, value in members
                if abs(value - base) > _CLOCK
            }
        elif len(members) >= FEWEST and len({host for host, _, _ in members}) > 1:
            measure = MEASURES[kind]
            for host, name, value in members:
                if how := measure.far(value, median):
                    found[host, name] = f"{measure.title} {name.partition(':')[2]}".rstrip() + f" {how}"
    return found


def kinds(found: Found) -> set[str]:
    """What is to be measured again."""
    return {name.partition(":")[0].partition("_")[0] for _, name in found}


def by_host(found: Found) -> dict[str, str]:
    """Host -> all that is wrong with it."""
    told: dict[str, list[str]] = {}
    for (host, _), what in found.items():
        told.setdefault(host, []).append(what)
    return {host: ", ".join(texts) for host, texts in told.items()}


def rounds(hosts: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Pairs of hosts that measure the way between them: each with its neighbours in a ring, and with one far away.

    Returns:
        The pairs of each round, in which no host is twice.
    """
    count = len(hosts)
    steps = [(index, (index + step) % count) for step in (1, count // 2) for index in range(count)]
    left = list(dict.fromkeys(tuple(sorted(pair)) for pair in steps if pair[0] != pair[1]))
    made = []
    while left:
        busy: set[int] = set()
        now = []
        for pair in left:
            if not busy.intersection(pair):
                busy.update(pair)
                now.append(pair)
        left = [pair for pair in left if pair not in now]
        made.append([(hosts[one], hosts[other]) for one, other in now])
    return made


def best(pairs: Sequence[tuple[Sequence[str], Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Host -> the best of its pairs: one end of a slow way is innocent, and has good ways to others.

    Args:
        pairs: The hosts of each pair, and what was measured between them.
    """
    found: dict[str, dict[str, float]] = {}
    for hosts, values in pairs:
        for host in hosts:
            mine = found.setdefault(host, {})
            for name, value in values.items():
                mine[name] = (min if MEASURES[name].of_time else max)(mine.get(name, value), value)
    return found


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
