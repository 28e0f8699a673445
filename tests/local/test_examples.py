"""Every example, submitted as its README says, reaches the accuracy that its README states."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.examples import names, reached, stated_accuracy

ROOT = Path(__file__).resolve().parents[2]
_LIMIT = 500  # seconds for one training; beside four others on two cores the longest has taken four minutes


def test_examples_are_found() -> None:
    assert {"multiworker", "parameter_server"} <= {*names()}


def environment(tmp_path: Path) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("GRIDTF_")} | {
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "http_proxy": "http://127.0.0.1:9",  # as on many clusters; this one refuses connections
    }


@pytest.mark.tensorflow
@pytest.mark.parametrize("example", names())
def test_example_reaches_its_accuracy(example: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    environ = environment(tmp_path)

    def gridtf(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "import sys; from gridtf.cli import main; sys.exit(main())", *words]
        return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=_LIMIT)

    # One CPU per task means one thread of each kind: a strategy that waits for itself would hang.
    options = ["--scheduler", "local", "--gpus-per-task", "0", "--cpus-per-task", "1", "--run-dir", str(run_dir)]
    try:
        done = gridtf("submit", f"examples/{example}/gridtf.toml", *options, "--wait")
    finally:
        gridtf("cancel", str(run_dir))  # a job that has not ended would outlive this test
    output = done.stdout + done.stderr + "".join(log.read_text() for log in run_dir.glob("attempt-*/logs/*"))
    assert done.returncode == 0, output
    stated = reached(example, run_dir / "output", output)
    assert "trained separately" not in output
    if (program := ROOT / "examples" / example / "predict.py").exists():
        # in a process of its own, without gridtf
        command = [sys.executable, str(program), str(run_dir / "output" / "export")]
        bare = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
        done = subprocess.run(command, env=bare, capture_output=True, text=True, timeout=_LIMIT, check=False)
        assert done.stdout.splitlines()[-1:] == [stated], done.stderr


def run(command: list[str], folder: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with the environment of these tests."""
    environ = environment(tmp_path)
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=_LIMIT, check=False)


def programs(door: str) -> list[str]:
    """The Python blocks below this heading of docs/training.md."""
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", page.split(f"\n## {door}\n")[1].split("\n## ")[0], re.DOTALL)


@pytest.mark.tensorflow
def test_keras_script_with_fit_trains_alone_and_on_two_workers(tmp_path: Path) -> None:
    """The program, and the same one with checkpoints and an export at its end."""
    program, end = programs("A Keras script with `fit`")
    changed = [line for line in program.splitlines() if re.search("gridtf|group|training", line)]
    assert [line.partition("  # ")[2][:1] for line in changed] == ["1", "2", "3", "o"], changed  # "one task writes …"
    saving = program.partition("model.fit(")[0] + end
    two = [sys.executable, "-m", "gridtf", "run", "--workers", "2", "--tasks-per-node", "2", "--name", "two", "--"]
    alone = [sys.executable, "train.py"]
    for folder, script, command in (
        ("a", program, alone),
        ("b", program, [*two, *alone]),
        ("c", saving, alone),
        ("d", saving, [*two, *alone]),
    ):
        here = tmp_path / folder
        here.mkdir()
        (here / "train.py").write_text(script, encoding="utf-8")
        done = run(command, here, tmp_path)
        logs = {path.name: path.read_text() for path in here.glob("gridtf-runs/*/attempt-1/logs/worker-*.log")}
        output = "".join(logs.values()) or done.stdout
        assert done.returncode == 0, done.stderr + output
        reached = [float(value) for value in re.findall(r"- accuracy: (\S+)", output)]
        assert len(reached) == 5 * max(1, len(logs)), output
        assert reached[-1] > 0.8, output
        for hosts in here.glob("gridtf-runs/*/attempt-1/state/hosts.json"):
            (host,) = json.loads(hosts.read_text())["hosts"].values()
            reported = {name: task["progress"]["values"] for name, task in host["tasks"].items()}
            assert [*reported] == ["worker:0", "worker:1"]
            assert all({"loss", "accuracy"} <= values.keys() for values in reported.values()), reported
    assert all((tmp_path / folder / "model.keras").exists() for folder in "ab")
    assert (tmp_path / "c/output/export/saved_model.pb").exists()
    (output_dir,) = (tmp_path / "d").glob("gridtf-runs/*/output")
    assert {path.name for path in output_dir.iterdir()} == {"checkpoints", "export"}


@pytest.mark.tensorflow
def test_loop_of_ones_own_trains_on_two_workers_and_alone(tmp_path: Path) -> None:
    (program,) = programs("A loop of your own")
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    alone = [sys.executable, "train.py"]
    together = [sys.executable, "-m", "gridtf", "run", "--workers", "2", "--tasks-per-node", "2", "--", *alone]
    for command, workers in ((alone, 1), (together, 2)):
        done = run(command, tmp_path, tmp_path)
        logs = "".join(log.read_text() for log in tmp_path.glob("gridtf-runs/*/attempt-1/logs/worker-*.log"))
        output = logs or done.stdout
        assert done.returncode == 0, done.stderr + output
        losses = [float(loss) for loss in re.findall(rf"step \d+, loss (\S+), {workers} workers", output)]
        assert len(losses) == 4 * workers
        assert losses[-1] < losses[0]


@pytest.mark.tensorflow
def test_old_program_with_flags_trains_by_the_line_of_the_page(tmp_path: Path) -> None:
    (program,) = programs("An old program with `--ps_hosts`")
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8").replace("\\\n", "")
    line = re.findall(r"^gridtf submit (.*--ps_hosts.*)$", page, re.MULTILINE)[0]
    words = shlex.split(line.replace("-- python ", f"--tasks-per-node 3 -- {shlex.quote(sys.executable)} "))
    done = run([sys.executable, "-m", "gridtf", "run", *words], tmp_path, tmp_path)
    logs = "".join(log.read_text() for log in tmp_path.glob("gridtf-runs/*/attempt-1/logs/*.log"))
    assert done.returncode == 0, done.stderr + logs
    losses = [float(loss) for loss in re.findall(r"step \d+, loss (\S+)", logs)]
    assert losses
    assert losses[-1] < 0.69  # ln 2: what it is with weights of zero


def test_slurm_and_sge_script_examples_share_their_program() -> None:
    one, other = (ROOT / "examples" / f"{kind}_scripts" / "train.py" for kind in ("sge", "slurm"))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.tensorflow
def test_sweep_finds_the_better_learning_rate(tmp_path: Path) -> None:
    environ = environment(tmp_path)

    def gridtf(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gridtf", *words]
        return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=_LIMIT)

    run_dir = str(tmp_path / "run")
    try:
        done = gridtf("sweep", "examples/sweep/gridtf.toml", "--scheduler", "local", "--run-dir", run_dir, "--wait")
    finally:
        gridtf("cancel", run_dir)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(gridtf("list", run_dir, "--by", "accuracy:max", "--json").stdout)
    assert [row["state"] for row in rows] == ["COMPLETED"] * 4
    assert rows[0]["params"] == {"lr": 0.03}
    assert rows[0]["values"]["accuracy"]["most"] >= stated_accuracy("sweep")
    shown = gridtf("list", run_dir, "--by", "accuracy:max").stdout.splitlines()
    assert shown[0].split()[:3] == ["ELEMENT", "JOB", "lr"]
    assert shown[1].split()[2] == "0.03"
    assert "MOST accuracy" in shown[0]
