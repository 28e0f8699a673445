"""The counter of scripts/bench idle: what other processes do in a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.cluster import CHECKOUT

sys.path.append(str(CHECKOUT / "scripts/benchmarks"))
from operations import FILES, FOLDERS, REMOVALS, RENAMES, WRITES, Watch

_SCRIPT = """
import os
for number in range(3):
    with open("new", "w") as file:
        file.write("x")
    os.rename("new", f"deep/er/record-{number}")
    open(f"deep/er/record-{number}").close()
    os.listdir("deep/er")
os.remove("deep/er/record-0")
"""


def test_operations_of_another_process_are_counted_in_all_folders(tmp_path: Path) -> None:
    (tmp_path / "deep/er").mkdir(parents=True)
    with Watch(tmp_path) as everything, Watch(tmp_path / "deep") as below:
        everything.count(0)  # the second watch lists folders
        subprocess.run([sys.executable, "-I", "-c", _SCRIPT], cwd=tmp_path, check=True, timeout=180)
        assert everything.count(0) == {FILES: 6, FOLDERS: 3, WRITES: 3, RENAMES: 3, REMOVALS: 1}
        assert below.count(0) == {FILES: 3, FOLDERS: 3, WRITES: 0, RENAMES: 3, REMOVALS: 1}
        assert not any(everything.count(0).values())
