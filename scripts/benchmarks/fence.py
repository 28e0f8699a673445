"""What the fence round the ports of tasks costs a training on this machine: steps per second, and at the start."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path

from measure import scratch, table
from training import CLUSTERS, NAMES, ROUNDS, Result, interleaved, job

MODES = ("off", "hosts", "users")


def main() -> None:
    with scratch() as folder:
        print(
            f"The fence: medians of {ROUNDS}, interleaved; start: from the start of the tasks until 50 steps are done"
        )
        rows = [["", "steps/s", "of off", "aim", "start", "later", "aim"]]
        for program, name in NAMES.items():
            training(folder, program)  # to warm up
            found = interleaved({mode: partial(training, folder, program, mode) for mode in MODES})
            rates = {mode: statistics.median(result["rate"] for result in found[mode]) for mode in MODES}
            starts = {mode: statistics.median(result["start"] for result in found[mode]) for mode in MODES}
            rows.append([name, *[""] * 6])
            for mode in MODES:
                later = f"{starts[mode] - starts['off']:+.2f} s"
                compared = [f"{rates[mode] / rates['off']:.2f}", "0.98", f"{starts[mode]:.2f} s", later]
                aim = "+0.2 s" if mode == "hosts" else ""
                rows.append([f"  {mode}", f"{rates[mode]:.1f}", *compared, aim])
        table(rows)


def training(folder: Path, program: str, fence: str = "auto") -> Result:
    return job(folder, CLUSTERS[program], program, fence=fence)[0]
