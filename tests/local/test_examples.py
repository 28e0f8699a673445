"""Every example, submitted as its README says, reaches the accuracy that its README states."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.support.examples import names, reached, stated_accuracy, stated_output
from tests.support.legacy_keras import need_tf_keras

ROOT = Path(__file__).resolve().parents[2]
_LIMIT = 500  # seconds for one training; beside four others on two cores the longest has taken four minutes
# Options for examples whose other workers do what those of other examples and tests do as well.
_FEWER = {
    "entry": ("--workers", "1"),  # two: between_graph_async
    "evaluator": ("--workers", "1"),  # two: multiworker
    "tf_config": ("--workers", "1"),  # with the master, two tasks that train
}
# Examples whose workers train as one process would that sees whole batches.
EXACT = {"one_host", "keras_distribution", "tf_keras_fit", "multiworker"}
_APART = {"data_service": 5}  # its data workers prepare ahead, each in a pass of its own
# Examples whose tasks, so many, train until all their steps together are enough: one that starts late has few, or none.
_COUNT_TOGETHER = {"between_graph_async": 2, "ps_flags": 2, "supervisor_cnn": 2, "tf_config": 2}
_RESTARTED = {"resume"}  # by tests/local/test_restarts.py, with a restart
# To import scikit-learn takes a process half as long as to import TensorFlow. The examples get what they have of it,
# the digits and how they are divided, from modules of its name; predict.py, the tests on beds and test_restarts.py
# import it.
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
import seen
from sklearn.datasets import DIGITS
def train_test_split(x, y, *, test_size, random_state, stratify):
    assert (test_size, random_state) == (0.2, 1) and stratify is y
    train_x, test_x, train_y, test_y = [part[DIGITS[rows]] for part in (x, y) for rows in ("train", "test")]
    return train_x, test_x, seen.numbered(train_y), test_y
"""
# Labels for training say which element they are of. What computes a loss notes the elements, in a line of a file of the
# process that has built the graph, and goes on with the plain labels; so do accuracies. TensorFlow writes the lines
# itself: in a server that gridtf runs there is no such module.
_SEEN = """
import os
import sys
import numpy as np
def numbered(y):
    if "SEEN" not in os.environ:
        return y
    path = os.path.join(os.environ["SEEN"], str(os.getpid()))
    import tensorflow as tf
    def noting(loss):
        def noted(labels, logits, **more):
            numbers = tf.reshape(tf.cast(labels, tf.int64) // 10, [-1])
            with tf.control_dependencies([tf.print(numbers, summarize=-1, output_stream="file://" + path)]):
                labels = labels % 10
            return loss(labels=labels, logits=logits, **more)
        return noted
    for nn in (tf.nn, tf.compat.v2.nn, tf.compat.v1.nn):
        nn.sparse_softmax_cross_entropy_with_logits = noting(nn.sparse_softmax_cross_entropy_with_logits)
    if os.environ.get("KERAS_BACKEND") == "jax":
        note_in_jax(path)
    for keras in (sys.modules[name] for name in ("keras", "tf_keras") if name in sys.modules):
        plain_accuracy(keras.metrics.SparseCategoricalAccuracy)
    return 10 * np.arange(1, len(y) + 1) + y
def plain_accuracy(metric):
    update = metric.update_state
    metric.update_state = lambda self, y_true, y_pred, **more: update(self, y_true % 10, y_pred, **more)
def note_in_jax(path):
    import jax
    from keras.src import backend
    def note(numbers):
        with open(path, "a") as file:
            file.write(f"{[*map(int, np.ravel(numbers))]}\\n")
    loss = backend.nn.sparse_categorical_crossentropy
    def noted(target, output, **more):
        jax.debug.callback(note, target // 10, partitioned=True)  # each process its part
        return loss(target % 10, output, **more)
    backend.nn.sparse_categorical_crossentropy = noted
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
    (folder / "seen.py").write_text(_SEEN)
    (folder / "sklearn").mkdir()
    for name, text in {"__init__": "", "datasets": _DATASETS, "model_selection": _MODEL_SELECTION}.items():
        (folder / f"sklearn/{name}.py").write_text(text)
    return folder


@pytest.mark.tensorflow
@pytest.mark.parametrize("example", sorted({*names()} - _RESTARTED))
def test_example_reaches_its_accuracy(example: str, tmp_path: Path, digits: Path) -> None:
    run_dir = tmp_path / "run"
    environ = environment(tmp_path) | {"SEEN": str(tmp_path / "seen")}
    environ["PYTHONPATH"] = os.pathsep.join(map(str, (digits, ROOT, *packages(example))))
    (tmp_path / "seen").mkdir()

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
    if not stated_output(example):
        need_each_once(tmp_path / "seen", 1437, _APART.get(example, 1), _COUNT_TOGETHER.get(example, 0))
    if example in EXACT:
        environ["OUTPUT_DIR"] = str(tmp_path / "alone")
        command = [sys.executable, f"examples/{example}/train.py"]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=_LIMIT)
        assert done.returncode == 0, done.stderr
        need_equal_weights(*(folder / "model.keras" for folder in (tmp_path / "alone", run_dir / "output")))
    if example == "between_graph_sync":
        need_an_end_at_once(run_dir)
    if (program := ROOT / "examples" / example / "predict.py").exists():
        # in a process of its own, without gridtf
        command = [sys.executable, str(program), str(run_dir / "output" / "export")]
        bare = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
        done = subprocess.run(command, env=bare, capture_output=True, text=True, timeout=_LIMIT, check=False)
        assert done.stdout.splitlines()[-1:] == [stated], done.stderr


def packages(example: str) -> list[Path]:
    """Folders with what an example needs beside TensorFlow and Keras 3; skips its test where that cannot be had."""
    if example == "keras_distribution" and not find_spec("jax"):
        pytest.skip("no jax in this environment: pip install jax")
    return [need_tf_keras()] if example == "tf_keras_fit" else []


def need_each_once(folder: Path, elements: int, apart: int = 1, shares: int = 0) -> None:
    """After every step of a training, no element has been seen more than once more often than another.

    Args:
        folder: What the losses have noted, in a file for each process.
        elements: How many there are.
        apart: How much more often one may have been seen.
        shares: Among how many tasks that count their steps together the elements are divided, each with [i::shares];
            a task may have begun its share late, or not at all. 0: all elements have been seen.
    """
    seen = [[re.findall(r"\d+", line) for line in path.read_text().splitlines()] for path in folder.iterdir()]
    seen = [[step for step in steps if set(step) != {"0"}] for steps in seen]  # zeros: held-out elements
    seen = [steps for steps in seen if any(steps)]
    own = [set(chain(*steps)) for steps in seen]
    whole = [str(number) for number in range(1, elements + 1)]
    if shares:
        wanted = [set(whole[first::shares]) for first in range(shares)]
        assert own, "no task has seen anything"
        assert all(any(part <= share for share in wanted) for part in own), "a task has seen more than its share"
        own = [next(share for share in wanted if part <= share) for part in own]
        assert sum(map(len, own)) == len(set().union(*own)), "two tasks have the same share"
    else:
        assert set().union(*own) == {*whole}
    if sum(map(len, own)) > elements:  # no shares of their own: what all see together in a step
        assert len({len(steps) for steps in seen}) == 1, [len(steps) for steps in seen]
        seen, own = [[[*chain(*lines)] for lines in zip(*seen, strict=True)]], [set().union(*own)]
    for steps, share in zip(seen, own, strict=True):
        counts = dict.fromkeys(share, 0)
        # two replicas of a process, or parts of a graph, write two lines for a step
        for start in range(0, len(steps), 2):
            for number in chain(*steps[start : start + 2]):
                counts[number] += 1
            assert max(counts.values()) - min(counts.values()) <= apart, Counter(counts.values())


def need_equal_weights(path: Path, other: Path) -> None:
    """Two models are equal but for the order in which sums were added."""
    one, two = weights(path), weights(other)
    assert one.keys() == two.keys()
    assert len(one) == 4
    for name, values in one.items():
        assert abs(two[name] - values).max() < 1e-5, name


def weights(path: Path) -> dict[str, Any]:
    """The weights in a .keras file, as NumPy arrays by their path in there."""
    import h5py

    found: dict[str, Any] = {}
    with zipfile.ZipFile(path) as archive, h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
        file.visititems(lambda name, each: found.update({name: each[()]} if isinstance(each, h5py.Dataset) else {}))
    return {name: values for name, values in found.items() if name.startswith("layers/")}


def need_an_end_at_once(run_dir: Path) -> None:
    """After the result, which the leader has written in its session, whose end ends that of the other worker."""
    result = (run_dir / "output/result.json").stat().st_mtime
    (host,) = json.loads((run_dir / "attempt-1/state/hosts.json").read_text())["hosts"].values()
    for name in ("worker:0", "worker:1"):
        task = host["tasks"][name]
        limit = max(20, result - task["started"])  # a busy machine, which trains slowly, ends slowly
        assert task["ended"] - result < limit, (name, task)


def run(command: list[str], folder: Path, tmp_path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with the environment of these tests, and more."""
    environ = environment(tmp_path) | more
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
def test_programs_of_the_page_train_alone(tmp_path: Path) -> None:
    """fit with MirroredStrategy, a loop, averaging, and this with checkpoints and an export at its end."""
    program, end = programs("Averaging")
    changed = [line for line in program.splitlines() if re.search("gridtf|group|training", line)]
    assert [line.partition("  # ")[2][:1] for line in changed] == ["1", "2", "3", "o"], changed  # "one task writes …"
    scripts = {"fit": program, "saving": program.partition("model.fit(")[0] + end}
    (scripts["loop"],), (scripts["one"],) = map(programs, ("A loop of your own", "One host, all its GPUs"))
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
    need_accuracy(outputs["one"], 1)
    assert (tmp_path / "one/model.keras").exists()


def need_accuracy(output: str, workers: int) -> None:
    reached = [float(value) for value in re.findall(r"- accuracy: (\S+)", output)]
    assert len(reached) == 5 * workers, output
    assert reached[-1] > 0.8, output


def need_less_loss(output: str, workers: int) -> None:
    losses = [float(loss) for loss in re.findall(rf"step \d+, loss (\S+), {workers} workers", output)]
    assert len(losses) == 4 * workers, output
    assert losses[-1] < losses[0]


def on_two_workers(script: str, tmp_path: Path, digits: Path) -> tuple[Path, str]:
    """Run a program with ``gridtf run``; returns the run directory and what the workers have printed.

    Which of its elements, rows of ``x`` and ``y``, its losses have had is noted in files in ``tmp_path / "seen"``.
    """
    (labels,) = re.findall(r"^y = .*\n", script, re.MULTILINE)
    script = script.replace(labels, f"{labels}import seen\ny = seen.numbered(y)\n")
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    (tmp_path / "seen").mkdir()
    noted = {"SEEN": str(tmp_path / "seen"), "PYTHONPATH": f"{digits}:{ROOT}"}
    words = [sys.executable, "-m", "gridtf", "run", "--workers", "2", "--tasks-per-node", "2"]
    done = run([*words, "--", sys.executable, "train.py"], tmp_path, tmp_path, **noted)
    (run_dir,) = tmp_path.glob("gridtf-runs/*/")
    logs = "".join(log.read_text() for log in run_dir.glob("attempt-1/logs/worker-*.log"))
    assert done.returncode == 0, done.stderr + logs
    return run_dir, logs


@pytest.mark.tensorflow
@pytest.mark.skipif(not find_spec("jax"), reason="no jax in this environment: pip install jax")
def test_fit_trains_on_two_workers_as_on_one(tmp_path: Path, digits: Path) -> None:
    (program,) = programs("`fit` on several hosts")
    run_dir, output = on_two_workers(program, tmp_path, digits)
    need_accuracy(output, 2)
    need_each_once(tmp_path / "seen", 4096)
    assert {path.name for path in (run_dir / "output").iterdir()} == {"model.keras", "of-1.keras"}
    assert json.loads((run_dir / "attempt-1/verdict.json").read_text())["reason"].endswith("have exited with 0")


@pytest.mark.tensorflow
def test_averaging_trains_on_two_workers(tmp_path: Path, digits: Path) -> None:
    """With checkpoints and an export at its end; examples/multi_worker_keras_fit ends as the script without them."""
    program, end = programs("Averaging")
    run_dir, output = on_two_workers(program.partition("model.fit(")[0] + end, tmp_path, digits)
    need_accuracy(output, 2)
    need_each_once(tmp_path / "seen", 4096)
    (host,) = json.loads((run_dir / "attempt-1/state/hosts.json").read_text())["hosts"].values()
    reported = {name: task["progress"]["values"] for name, task in host["tasks"].items()}
    assert [*reported] == ["worker:0", "worker:1"]
    assert all({"loss", "accuracy"} <= values.keys() for values in reported.values()), reported
    assert {path.name for path in (run_dir / "output").iterdir()} == {"checkpoints", "export"}


@pytest.mark.tensorflow
def test_loop_of_ones_own_trains_on_two_workers(tmp_path: Path, digits: Path) -> None:
    (program,) = programs("A loop of your own")
    _, output = on_two_workers(program, tmp_path, digits)
    need_less_loss(output, 2)
    need_each_once(tmp_path / "seen", 1024)


@pytest.mark.tensorflow
def test_old_program_with_flags_trains_by_the_line_of_the_page(tmp_path: Path) -> None:
    (program,) = programs("Parameter servers")
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
