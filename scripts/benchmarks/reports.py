"""Tables of the measurements on a test bed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from marks import HOSTS, MANY, TASKS
from measure import table
from rounds import FEW, KILLS, ROUNDS, SUBMISSIONS
from ways import GRIDTF, MPIRUN, WORLD

Texts = Mapping[str, str]
Medians = Mapping[str, float]  # seconds


def launched(times: Mapping[str, Sequence[float]], names: Texts, floor: str, aims: Texts) -> None:
    """Print the times of launching.

    Args:
        times: Way -> seconds of each round.
        names: Way -> its name in the table.
        floor: The way that the others are compared to.
        aims: Way -> target for gridtf's time divided by the way's.
    """
    print(f"From the command to the last of {TASKS} tasks running on {HOSTS} hosts, medians of {ROUNDS}, interleaved")
    medians = {way: statistics.median(seconds) for way, seconds in times.items()}
    rows = [["", "s", "from", "to", "of the floor", "gridtf is of it", "aim"]]
    for way, seconds in times.items():
        own = [f"{value:.3f}" for value in (medians[way], min(seconds), max(seconds))]
        mine = "" if way == GRIDTF else f"{medians[GRIDTF] / medians[way]:.2f}"
        rows.append([names[way], *own, f"{medians[way] / medians[floor]:.2f}", mine, aims.get(way, "")])
    table(rows)


def world(times: Mapping[str, Sequence[float]]) -> None:
    """Print how gridtf's launch of an MPI world compares to that of mpirun alone."""
    medians = [statistics.median(times[way]) for way in (WORLD, MPIRUN)]
    table(
        [
            ["gridtf --mpi", "mpirun", "of it", "aim"],
            [*(f"{s:.3f}" for s in medians), f"{medians[0] / medians[1]:.2f}", "1.5 or less"],
        ]
    )


def many(times: Mapping[str, Sequence[float]], names: Texts, aim: float) -> None:
    """Print the times of launching many tasks a host. aim: target for gridtf's time divided by the other way's."""
    print(f"\nThe same with {MANY} tasks a host, medians of {FEW}, interleaved")
    medians = {way: statistics.median(seconds) for way, seconds in times.items()}
    rows = [["", "s", "gridtf is of it", "aim"], [names[GRIDTF], f"{medians[GRIDTF]:.3f}", "", ""]]
    for way, seconds in medians.items():
        if way != GRIDTF:
            rows.append([names[way], f"{seconds:.3f}", f"{medians[GRIDTF] / seconds:.2f}", f"{aim:g} or less"])
    table(rows)


def laggy(plain: Sequence[float], lagging: Sequence[float]) -> None:
    """Print how long a launch takes where the hosts cache the shared folder. plain: seconds where they do not."""
    medians = statistics.median(plain), statistics.median(lagging)
    print("\ngridtf's launch with a shared folder that hosts cache, median of another bed")
    table([["s", "of the plain one", "aim"], [f"{medians[1]:.3f}", f"{medians[1] / medians[0]:.2f}", "1.3 or less"]])


def gone(medians: Medians, names: Texts) -> None:
    print(f"\nFrom kill -9 of one of {TASKS} tasks until no process of the job is left, median of {KILLS}")
    table([["", "s"], *([names[way], f"{seconds:.2f}"] for way, seconds in medians.items())])


def submitted(medians: Medians, names: Texts, bare: tuple[str, str], aims: Texts) -> None:
    """Print the times of submissions.

    Args:
        medians: Way -> seconds.
        names: Way -> its name in the table.
        bare: Two ways; the others are compared to the sum of their times.
        aims: Way -> target for that ratio.
    """
    print(f"\nSubmission on the login host, median of {SUBMISSIONS}, interleaved")
    both = sum(medians[way] for way in bare)
    rows = [["", "s", "ratio", "aim"]]
    rows += [[names[way], f"{medians[way]:.4f}", "", ""] for way in bare]
    rows.append(["both", f"{both:.4f}", "1.00", ""])
    for way, seconds in medians.items():
        if way not in bare:
            rows.append([names[way], f"{seconds:.4f}", f"{seconds / both:.2f}", aims.get(way, "")])
    table(rows)
