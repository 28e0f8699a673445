"""A newcomer's way on Slurm and Grid Engine, step by step: from `pip install` of the wheel to the first trained model.

On a test bed, as an ordinary user on the login host who has seen neither the site nor gridtf. The packages lie at hand
in a folder, since the hosts have no network, and TensorFlow comes from a file to source, as from a site's module.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from cluster import FOLDER, ROOT, Cluster, test_bed
from measure import table

BEDS = {"slurm": "", "sge": "--pe rr "}  # scheduler -> its option for tasks on different hosts
AIM = 300.0  # seconds
EXAMPLE = ROOT / "examples/multiworker/train.py"
TRAINING = ROOT / "docs/training.md"  # its first program with group.share is a script with fit and the lines it needs
# What the README says to do, in its order; every step begins in a new shell.
STEPS = {
    "make an environment": "python3 -m venv ~/venv",
    "pip install gridtf": f"pip install --no-index --find-links {FOLDER}/packages gridtf",
    "gridtf doctor": "gridtf doctor",
    "gridtf init": "gridtf init",
    "the first job, on 4 hosts": (
        "gridtf submit {spread}--nodes 4 --tasks-per-node 1 --time 10 --setup 'source ~/module' --name first --wait"
        " -- python train.py --epochs 2"
    ),
    "a Keras script with fit, on 4 hosts": (
        "gridtf submit {spread}--nodes 4 --tasks-per-node 1 --time 10 --setup 'source ~/module' --name fit --wait"
        " -- python fit.py"
    ),
    "gridtf status": "gridtf status fit",
    "the trained model": 'ls -l "$(gridtf output first)/model.keras"',
}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gridtf-bench-") as folder:
        packages = Path(folder)
        wheels = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", folder, str(ROOT)]
        subprocess.run(wheels, check=True)
        for kind, spread in BEDS.items():
            print(f"\nFrom pip install to the first trained model: {kind}", flush=True)
            with test_bed(kind, {}) as bed:
                _prepare(bed, packages)
                _follow(bed, spread)


def _prepare(bed: Cluster, packages: Path) -> None:
    shutil.copytree(packages, bed.folder / "packages")
    (bed.folder / "packages").chmod(0o755)
    home = bed.folder.parent
    shutil.copy(EXAMPLE, home / "train.py")
    programs = re.findall(r"^```python\n(.*?)^```", TRAINING.read_text(), flags=re.MULTILINE | re.DOTALL)
    (home / "fit.py").write_text(next(program for program in programs if "group.share(" in program))
    (home / "module").write_text(f"export PYTHONPATH={shlex.quote(sysconfig.get_path('purelib'))}\n")


def _follow(bed: Cluster, spread: str) -> None:
    rows: list[list[object]] = [["", "s"]]
    begin = time.monotonic()
    for name, template in STEPS.items():
        command = template.replace("{spread}", spread)
        start = time.monotonic()
        print(f"$ {command}", flush=True)
        python = shlex.quote(f"{sys.base_prefix}/bin")
        script = f"export PATH=~/venv/bin:{python}:$PATH\n{command}\necho $?"
        *lines, code = bed.on_login("bash", "-c", f"{{ {script}\n}} 2>&1").splitlines()
        print("".join(f"  {line}\n" for line in lines[-12:]), end="", flush=True)
        if code != "0":
            raise SystemExit(f"exit code {code}")
        rows.append([name, f"{time.monotonic() - start:.1f}"])
    rows.append([f"in all ({AIM:g} or less)", f"{time.monotonic() - begin:.1f}"])
    table(rows)
