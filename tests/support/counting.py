"""A program that counts steps, each once: it saves and exits with 42 when it is asked to, and goes on from there.

Its arguments are the number of steps, and how many it makes in one start, however long that takes: then it saves, and
waits until it is asked to end.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import gridtf


def main(steps: int, at_once: int) -> int:
    output, index = Path(os.environ["OUTPUT_DIR"]), os.environ["GRIDTF_TASK_INDEX"]
    saved, made = output / f"saved-{index}", output / f"made-{index}"
    first = int(saved.read_text()) if saved.exists() else 0
    print(f"begins with step {first}", flush=True)
    for step in range(first, steps):
        time.sleep(0.05)
        with made.open("a") as file:
            file.write(f"{step}\n")
        gridtf.progress(step + 1)
        full = step + 1 - first >= at_once
        if full or step + 1 == steps:
            saved.with_suffix(".new").write_text(str(step + 1))
            saved.with_suffix(".new").replace(saved)
        if full and step + 1 < steps:
            while not gridtf.checkpoint_requested():
                time.sleep(0.05)
            print(f"saved {step + 1} steps", flush=True)
            return 42
    print("done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
