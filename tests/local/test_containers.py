"""Tasks in containers: a real Apptainer and a real Charliecloud, and an image that has a file of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from gridtf.run.rundir import RunDir
from tests.support.commands import call, running, started, status, submit
from tests.support.containers import MARKER, Image, make_image, need_apptainer, need_charliecloud
from tests.support.jobs import gone, hosts_of, until

# Prints what it has; worker 1 fails once worker 0 has done so, since that ends the job.
TELL = f"""
cat /{MARKER}; pwd; printf '%s\\n' "$KEY" "$TF_CONFIG"; touch "$OUTPUT_DIR/$RANK"
[ $RANK = 0 ] || {{ until [ -e "$OUTPUT_DIR/0" ]; do sleep 0.05; done; exit 3; }}
"""
TWO = ("--workers", "2", "--leader-wait", "9")
KEY = "a\"b $HOME `id` \\n \\\\ it's"


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return make_image(tmp_path / "image")


@pytest.fixture
def apptainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{need_apptainer()}:{os.environ['PATH']}")
    monkeypatch.setenv("APPTAINER_USERNS", "1")  # as for users other than root, who may lack some of its rights


def log(run: str, task: str) -> str:
    return Path(run, "attempt-1/logs", f"{task}.log").read_text()


def told(here: Path, run: str) -> None:
    """Check what two tasks with TELL have printed, and how they ended."""
    call("wait", run, code=1)
    assert [task["exit"] for task in status(run)["tasks"] if task["name"] == "worker:1"] == [3]
    for index in (0, 1):
        marker, folder, key, config = log(run, f"worker-{index}").splitlines()[-4:]
        assert (marker, folder, key) == ("inside", str(here), KEY)
        assert json.loads(config)["task"] == {"type": "worker", "index": index}
        assert len(json.loads(config)["cluster"]["worker"]) == 2
        assert Path(run, "output", str(index)).exists()


@pytest.mark.usefixtures("apptainer")
@pytest.mark.parametrize("clean", ["", "1"], ids=["environment", "clean-environment"])
def test_task_runs_in_the_image_with_its_variables_folder_and_exit_code(here: Path, image: Image, clean: str) -> None:
    words = (*image.options, f"--env=APPTAINER_CLEANENV={clean}", f"--env=KEY={KEY}", *TWO)
    told(here, submit(*words, "--", "sh", "-c", TELL)["run_dir"])


def test_task_runs_in_a_container_of_charliecloud(here: Path, image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    need_charliecloud()
    monkeypatch.setenv("USER", "tester")
    monkeypatch.delenv("TMPDIR")  # it would be /tmp, without the working folder
    for folder in (here, *image.binds):
        (image.path / str(folder)[1:]).mkdir(parents=True, exist_ok=True)  # it makes no folders
    template = "ch-run --bind={bind} --cd={chdir} {image} --"
    words = (*image.options, "--container-command", template, f"--env=KEY={KEY}", *TWO)
    told(here, submit(*words, "--", "sh", "-c", TELL)["run_dir"])


@pytest.mark.usefixtures("apptainer")
@pytest.mark.parametrize("clean", ["", "1"], ids=["environment", "clean-environment"])
def test_what_is_staged_is_seen_in_the_container(here: Path, image: Image, clean: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_text("staged\n")
    local = tmp_path / "local"
    local.mkdir(0o700)
    words = (*image.options, f"--env=APPTAINER_CLEANENV={clean}", "--stage", str(tmp_path / "data"))
    show = f"cat /{MARKER}; cat $GRIDTF_STAGED/data/a"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(local))
        run = submit(*words, "--host-setup", "echo on the host", "--workers", "1", "--", "sh", "-c", show)["run_dir"]
        call("wait", run)
    assert log(run, "worker-0").splitlines()[-2:] == ["inside", "staged"]
    until(lambda: not list(local.glob("gridtf-staged-*")), "the removal of the copy")


@pytest.mark.usefixtures("apptainer")
@pytest.mark.parametrize("end", ["cancelled", "agent-killed"])
def test_signals_reach_the_program_and_the_end_leaves_no_process(here: Path, image: Image, end: str) -> None:
    (here / "task.sh").write_text(
        "trap 'touch asked' USR1\n(trap '' TERM; exec sleep 600) &\necho $! >ignores\n"
        "setsid sleep 600 &\necho $! >detached\nwhile :; do sleep 0.1; done\n"
    )
    words = (*image.options, "--workers", "1", "--kill-grace", "0.5", "--name", "endless", "--", "sh", "task.sh")
    run = RunDir(submit(*words)["run_dir"])
    running("endless")
    (record,) = hosts_of(run.attempt(1)).values()
    (task,) = record["tasks"].values()
    until(lambda: (here / "detached").exists() and (here / "detached").read_text(), "the task's processes")
    os.kill(task["pid"], signal.SIGUSR1)
    until((here / "asked").exists, "the signal to reach the program")
    if end == "cancelled":
        call("cancel", "endless")
    else:
        os.kill(record["pid"], signal.SIGKILL)
    assert gone(task["pid"], *(int((here / name).read_text()) for name in ("ignores", "detached")))


@pytest.mark.usefixtures("here")
def test_host_without_the_program_is_named_before_any_task_starts(image: Image) -> None:
    words = (*image.options, "--container-command", "no-podman -v={bind} {image}", "--workers", "1", "--", "true")
    with started("submit", "--wait", *words) as submitted:
        said, _ = submitted.communicate(timeout=180)
    assert submitted.returncode == 1
    expected = f"host {os.uname().nodename} has no program no-podman, with which container_command begins\n"
    assert expected in said, said


@pytest.mark.usefixtures("apptainer")
def test_entry_function_runs_with_the_image_s_own_python_and_without_gridtf_in_it(here: Path, image: Image) -> None:
    """The Python of /usr/bin has none of gridtf's dependencies."""
    if not Path("/usr/bin/python3").exists():
        pytest.skip("needs Debian's package python3")
    (here / "train.py").write_text("import sys\ndef main(ctx):\n    print(sys.executable, ctx.task.name)\n")
    words = (*image.options, "--workers", "1")
    run = submit(*words, "--entry", "train:main")["run_dir"]
    call("wait", run)
    assert log(run, "worker-0").splitlines()[-1] == "/usr/bin/python3 worker:0"


PROGRAM = """
def main(ctx):
    import tensorflow as tf
    print(open("/{marker}").read().strip(), ctx.task.name, flush=True)
    cluster = tf.train.ClusterSpec({{name: list(members) for name, members in ctx.cluster.items()}})
    resolvers = tf.distribute.cluster_resolver
    resolver = resolvers.SimpleClusterResolver(cluster, task_type="chief", task_id=0, rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        variable = tf.Variable(3.0)
    print(float(variable.read_value()), "from", variable.device, flush=True)
"""


@pytest.mark.tensorflow
@pytest.mark.usefixtures("apptainer")
def test_entry_function_and_served_tasks_run_in_the_image(here: Path, image: Image) -> None:
    (here / "train.py").write_text(PROGRAM.format(marker=MARKER))
    tasks = ("--chief", "--workers", "1", "--ps", "1", "--serve", "worker", "--python", sys.executable)
    run = submit(*image.options, *tasks, "--entry", "train:main", "--kill-grace", "1")["run_dir"]
    call("wait", run)
    said = log(run, "chief-0")
    assert "inside chief:0\n" in said
    assert "3.0 from /job:ps/replica:0/task:0/device:CPU:0\n" in said
    assert "gridtf serves ps:0 at " in log(run, "ps-0")


@pytest.mark.usefixtures("apptainer")
def test_command_beside_a_task_runs_in_a_container_of_the_same_image(here: Path, image: Image) -> None:
    words = (*image.options, f"--env=KEY={KEY}", "--env=APPTAINER_CLEANENV=1", "--workers", "1", "--name", "endless")
    submit(*words, "--", "sleep", "600")
    running("endless")
    script = f'cat /{MARKER}; pwd; printf \'%s\\n\' "$KEY" "$RANK" "<$TF_GRPC_REUSE_PORT>"; exit 4'
    done = call("exec", "endless", "--", "sh", "-c", script, code=4)
    assert done.stdout.splitlines() == ["inside", str(here), KEY, "0", "<>"]
    call("cancel", "endless")
