"""How often the host that holds the others up is named, in trials on both test beds: docs/hardware.md has the table.

Training in lock-step on four hosts, each with a part of a core. In a trial, one of them, chosen anew, is slowed.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from cluster import ROOT, test_bed
from measure import table

sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "scripts"))

from tests.support.cluster import Bed
from tests.support.clusterfaults import NODES
from tests.support.clusterjobs import ClusterJob
from tests.support.sgebed import GridEngineBed
from tests.support.slowhosts import SlowHosts, events, named, training

TRIALS = int(os.environ.get("TRIALS", "10"))  # of each fault
EVERY = int(os.environ.get("EVERY", "2"))  # seconds between two samples
QUOTA = 0.2  # cores of each host
WITHIN = 12  # samples: 60 s with the default interval
_CALM = 10  # samples without a name before the next trial
_WELL = 360  # judgements without any fault
BEDS = {"slurm": Bed, "sge": GridEngineBed}
FAULTS: dict[str, tuple[str, Callable[[SlowHosts, str], AbstractContextManager[None]]]] = {
    "a lower quota": ("CPU", lambda hosts, host: hosts.less_cpu(host, 1 / 3)),
    "a busy neighbour": ("CPU", lambda hosts, host: hosts.neighbour(host, 4)),
    "a slow disk": ("input", lambda hosts, host: hosts.slow_disk(host, 400_000)),
    "a slow link": ("network", lambda hosts, host: hosts.slow_link(host, "8mbit")),
}


def main() -> None:
    rows: list[list[object]] = [["one of four hosts has", *(f"{bed}: right, wrong, silent; samples" for bed in BEDS)]]
    try:
        found = [trials(kind) for kind in BEDS]
    except pytest.skip.Exception as missing:  # it is written for tests
        sys.exit(f"scripts/bench slow: {missing}")
    rows += [[fault, *(one[fault] for one in found)] for fault in found[0]]
    print(f"{TRIALS} trials each; right: the host and what it lacks are named within {WITHIN} samples of {EVERY} s")
    table(rows)


def trials(kind: str) -> dict[str, str]:
    """Fault -> how many trials were right, wrong and silent, and the median of the samples until a right name."""
    with test_bed(kind, {}):
        bed = BEDS[kind](Path(os.environ["GRIDTF_TESTBED_STATE"]))
        hosts = SlowHosts(bed, NODES)
        try:
            job = training(bed, minutes=60 * EVERY, interval=EVERY)
            hosts.limit(QUOTA)
            time.sleep(_CALM * EVERY)
            begun = len([*named(job)])
            time.sleep(_WELL * EVERY * TRIALS / 10)
            found = {"nothing": f"{len([*named(job)]) - begun} names"}
            for fault, (what, make) in FAULTS.items():
                ends = Counter[str]()
                took = list[float]()
                for _ in range(TRIALS):
                    host = random.choice(NODES)
                    with make(hosts, host):
                        end, samples = _first_name(job, (host, what))
                    ends[end] += 1
                    took += [samples] * (end == "right")
                    print(f"{kind}: {fault} on {host}: {end} {events(job)[-1:]}", flush=True)
                    _calm(job)
                counts = ", ".join(str(ends[end]) for end in ("right", "wrong", "silent"))
                found[fault] = f"{counts}; {statistics.median(took or [0]):.0f}"
            return found
        finally:
            hosts.well()


def _first_name(job: ClusterJob, expected: tuple[str, str]) -> tuple[str, float]:
    """How a trial ended, and after how many samples."""
    before, begin = len([*named(job)]), time.monotonic()
    while (samples := (time.monotonic() - begin) / EVERY) <= WITHIN:
        if names := [*named(job)][before:]:
            return "right" if names[0] == expected else "wrong", samples
        time.sleep(0.2)
    return "silent", samples


def _calm(job: ClusterJob) -> None:
    """Until nobody has been named for some samples."""
    quiet = 0
    while quiet < _CALM:
        time.sleep(EVERY)
        known = events(job)
        quiet = 0 if known and known[-1]["event"] == "slow" else quiet + 1
