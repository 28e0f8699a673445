"""python scripts/benchmarks [start|launch|scale|…|soak|BED]…, as scripts/bench lists them."""

from __future__ import annotations

import compileall
import importlib
import os
import platform
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ("start", "launch", "scale")  # the others take long or need root, and only run when requested


def main(chosen: list[str]) -> None:
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
        os.environ.pop(name, None)
    if find_spec("gridtf") is None:  # not installed in this Python
        os.environ["PYTHONPATH"] = str(ROOT)
        sys.path.insert(0, str(ROOT))
    compileall.compile_dir(ROOT / "gridtf", quiet=1)
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for name in chosen or BENCHMARKS:
        print()
        importlib.import_module(name).main()


if __name__ == "__main__":
    main(sys.argv[1:])
