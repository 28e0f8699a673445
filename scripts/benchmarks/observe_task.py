"""A task whose observation is measured: as many threads as TensorFlow has, a line and a step a second."""

from __future__ import annotations

import threading
import time

import gridtf

_THREADS = 100


def main() -> None:
    for _ in range(_THREADS):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    step = 0
    while True:
        step += 1
        print(f"step {step}", flush=True)
        gridtf.progress(step, loss=1 / step)
        time.sleep(1.0)


if __name__ == "__main__":
    main()
