"""Every example, submitted as its README says, reaches the accuracy that its README states."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.examples import names, reached, stated_accuracy

ROOT = Path(__file__).resolve().parents[2]
_LIMIT = 500  # seconds for one training; beside four others on two cores the longest has taken four minutes
# Options for examples whose other workers do what those of other examples and tests do as well.
_FEWER = {
    "entry": ("--workers", "1"),  # two: between_graph_async
    "evaluator": ("--workers", "1"),  # two: multiworker
    "tf_config": ("--workers", "1"),  # with the master, two tasks that train
}
_RESTARTED = {"resume"}  # by tests/local/test_restarts.py, with a restart
# To import scikit-learn takes a process half as long as to import TensorFlow. Most examples get what they have of it,
# the digits and how they are divided, from modules of its name; the others and predict.py import it.
_WITH_SKLEARN = {"multiworker", "ps_flags", "resume"}
_SPLIT = """
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
x, y = load_digits(return_X_y=True)
train, test = train_test_split(np.arange(len(y)), test_size=0.2, random_state=1, stratify=y)
np.savez("digits", x=x, y=y, train=train, test=test)
"""
_DATASETS = """
from pathlib import Path
import numpy as np
DIGITS = np.load(Path(__file__).parents[1] / "digits.npz")
def load_digits(*, return_X_y):
    return DIGITS["x"], DIGITS["y"]
"""
_MODEL_SELECTION = """
from sklearn.datasets import DIGITS
def train_test_split(x, y, *, test_size, random_state, stratify):
    assert (test_size, random_state) == (0.2, 1) and stratify is y
    return [part[DIGITS[rows]] for part in (x, y) for rows in ("train", "test")]
"""


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


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with modules that take the place of scikit-learn."""
    folder = tmp_path_factory.mktemp("digits")
    subprocess.run([sys.executable, "-c", _SPLIT], cwd=folder, timeout=_LIMIT, check=True)
    (folder / "sklearn").mkdir()
    for name, text in {"__init__": "", "datasets": _DATASETS, "model_selection": _MODEL_SELECTION}.items():
        (folder / f"sklearn/{name}.py").write_text(text)
    return folder


@pytest.mark.tensorflow
@pytest.mark.parametrize("example", sorted({*names()} - _RESTARTED))
def test_example_reaches_its_accuracy(example: str, tmp_path: Path, digits: Path) -> None:
    run_dir = tmp_path / "run"
    environ = environment(tmp_path)
    if example not in _WITH_SKLEARN:
        environ["PYTHONPATH"] = f"{digits}:{ROOT}"

    def gridtf(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "import sys; from gridtf.cli import main; sys.exit(main())", *words]
        return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=_LIMIT)

    # One CPU per task means one thread of each kind: a strategy that waits for itself would hang.
    options = ["--scheduler", "local", "--gpus-per-task", "0", "--cpus-per-task", "1", "--run-dir", str(run_dir)]
    try:
        done = gridtf("submit", f"examples/{example}/gridtf.toml", *options, *_FEWER.get(example, ()), "--wait")
    finally:
        gridtf("cancel", str(run_dir))  # a job that has not ended would outlive this test
    output = done.stdout + done.stderr + "".join(log.read_text() for log in run_dir.glob("attempt-*/logs/*"))
    assert done.returncode == 0, output
    stated = reached(example, run_dir / "output", output)
    assert "trained separately" not in output
    if example == "between_graph_sync":
        need_an_end_at_once(run_dir)
    if (program := ROOT / "examples" / example / "predict.py").exists():
        # in a process of its own, without gridtf
        command = [sys.executable, str(program), str(run_dir / "output" / "export")]
        bare = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
        done = subprocess.run(command, env=bare, capture_output=True, text=True, timeout=_LIMIT, check=False)
        assert done.stdout.splitlines()[-1:] == [stated], done.stderr


def need_an_end_at_once(run_dir: Path) -> None:
    """After the result, which the leader has written in its session, whose end ends that of the other worker."""
    result = (run_dir / "output/result.json").stat().st_mtime
    (host,) = json.loads((run_dir / "attempt-1/state/hosts.json").read_text())["hosts"].values()
    for name in ("worker:0", "worker:1"):
        task = host["tasks"][name]
        limit = max(20, result - task["started"])  # a busy machine, which trains slowly, ends slowly
        assert task["ended"] - result < limit, (name, task)


def run(command: list[str], folder: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with the environment of these tests."""
    environ = environment(tmp_path)
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=_LIMIT, check=False)


def programs(door: str) -> list[str]:
    """The Python blocks below this heading of docs/training.md."""
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", page.split(f"\n## {door}\n")[1].split("\n## ")[0], re.DOTALL)


# Runs the train.py of each folder as a program of its own; TensorFlow is imported once for all of them.
_ALONE = """
import os, runpy, sys
import keras, tensorflow
for folder in sys.argv[1:]:
    print("in", folder, flush=True)
    if not os.fork():
        os.chdir(folder)
        runpy.run_path("train.py", run_name="__main__")
        sys.exit()
    assert os.wait()[1] == 0, folder
"""


@pytest.mark.tensorflow
def test_keras_script_with_fit_and_loop_of_ones_own_train_alone(tmp_path: Path) -> None:
    """The script, the same one with checkpoints and an export at its end, and the loop."""
    program, end = programs("A Keras script with `fit`")
    changed = [line for line in program.splitlines() if re.search("gridtf|group|training", line)]
    assert [line.partition("  # ")[2][:1] for line in changed] == ["1", "2", "3", "o"], changed  # "one task writes …"
    scripts = {"fit": program, "saving": program.partition("model.fit(")[0] + end}
    (scripts["loop"],) = programs("A loop of your own")
    for folder, script in scripts.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(script, encoding="utf-8")
    done = run([sys.executable, "-c", _ALONE, *scripts], tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    outputs = dict(re.findall(r"^in (\w+)\n(.*?)(?=^in |\Z)", done.stdout, re.DOTALL | re.MULTILINE))
    need_accuracy(outputs["fit"], 1)
    assert (tmp_path / "fit/model.keras").exists()
    need_accuracy(outputs["saving"], 1)
    assert (tmp_path / "saving/output/export/saved_model.pb").exists()
    need_less_loss(outputs["loop"], 1)


def need_accuracy(output: str, workers: int) -> None:
    reached = [float(value) for value in re.findall(r"- accuracy: (\S+)", output)]
    assert len(reached) == 5 * workers, output
    assert reached[-1] > 0.8, output


def need_less_loss(output: str, workers: int) -> None:
    losses = [float(loss) for loss in re.findall(rf"step \d+, loss (\S+), {workers} workers", output)]
    assert len(losses) == 4 * workers, output
    assert losses[-1] < losses[0]


def on_two_workers(script: str, tmp_path: Path) -> tuple[Path, str]:
    """Run a program with ``gridtf run``; returns the run directory and what the workers have printed."""
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    words = [sys.executable, "-m", "gridtf", "run", "--workers", "2", "--tasks-per-node", "2"]
    done = run([*words, "--", sys.executable, "train.py"], tmp_path, tmp_path)
    (run_dir,) = tmp_path.glob("gridtf-runs/*/")
    logs = "".join(log.read_text() for log in run_dir.glob("attempt-1/logs/worker-*.log"))
    assert done.returncode == 0, done.stderr + logs
    return run_dir, logs


@pytest.mark.tensorflow
def test_keras_script_with_fit_trains_on_two_workers(tmp_path: Path) -> None:
    """With checkpoints and an export at its end; examples/multi_worker_keras_fit ends as the script without them."""
    program, end = programs("A Keras script with `fit`")
    run_dir, output = on_two_workers(program.partition("model.fit(")[0] + end, tmp_path)
    need_accuracy(output, 2)
    (host,) = json.loads((run_dir / "attempt-1/state/hosts.json").read_text())["hosts"].values()
    reported = {name: task["progress"]["values"] for name, task in host["tasks"].items()}
    assert [*reported] == ["worker:0", "worker:1"]
    assert all({"loss", "accuracy"} <= values.keys() for values in reported.values()), reported
    assert {path.name for path in (run_dir / "output").iterdir()} == {"checkpoints", "export"}


@pytest.mark.tensorflow
def test_loop_of_ones_own_trains_on_two_workers(tmp_path: Path) -> None:
    (program,) = programs("A loop of your own")
    _, output = on_two_workers(program, tmp_path)
    need_less_loss(output, 2)


@pytest.mark.tensorflow
def test_old_program_with_flags_trains_by_the_line_of_the_page(tmp_path: Path) -> None:
    (program,) = programs("An old program with `--ps_hosts`")
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8").replace("\\\n", "")
    line = re.findall(r"^gridtf submit (.*--ps_hosts.*)$", page, re.MULTILINE)[0]
    line = line.replace("--workers 2", "--workers 1")  # two: examples/ps_flags
    words = shlex.split(line.replace("-- python ", f"--tasks-per-node 2 -- {shlex.quote(sys.executable)} "))
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
def test_sweep_finds_the_better_learning_rate(tmp_path: Path, digits: Path) -> None:
    environ = {**environment(tmp_path), "PYTHONPATH": f"{digits}:{ROOT}"}

    def gridtf(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gridtf", *words]
        return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=_LIMIT)

    run_dir = str(tmp_path / "run")
    shutil.copytree(ROOT / "examples" / "sweep", tmp_path / "sweep")
    job_file = tmp_path / "sweep/gridtf.toml"
    whole = job_file.read_text(encoding="utf-8")
    two = whole.replace("[0.0003, 0.003, 0.03, 30.0]", "[0.0003, 0.03]")  # the others show no more
    assert two != whole
    job_file.write_text(two, encoding="utf-8")
    try:
        done = gridtf("sweep", str(job_file), "--scheduler", "local", "--run-dir", run_dir, "--wait")
    finally:
        gridtf("cancel", run_dir)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(gridtf("list", run_dir, "--by", "accuracy:max", "--json").stdout)
    assert [row["state"] for row in rows] == ["COMPLETED"] * 2
    assert rows[0]["params"] == {"lr": 0.03}
    assert rows[0]["values"]["accuracy"]["most"] >= stated_accuracy("sweep")
    shown = gridtf("list", run_dir, "--by", "accuracy:max").stdout.splitlines()
    assert shown[0].split()[:3] == ["ELEMENT", "JOB", "lr"]
    assert shown[1].split()[2] == "0.03"
    assert "MOST accuracy" in shown[0]
