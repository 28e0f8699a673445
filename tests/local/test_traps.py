"""Nothing runs a module of the current folder, neither a command nor a job: /tmp is others' too."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridtf.cli import COMMANDS
from tests.support.jobs import until
from tests.support.strangers import ALICE, GROUP, LIMIT
from tests.support.traps import Traps

pytestmark = pytest.mark.root
GRIDTF = Path(sys.executable).with_name("gridtf")
TASK = """
import sys, time
if sys.argv[1:]:
    raise ValueError("bad label")
print("begun", flush=True)
time.sleep(600)
"""
TENSORBOARD = """
import http.server, sys
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.BaseHTTPRequestHandler).serve_forever()
"""
TFJOB = """
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: t}
spec:
  tfReplicaSpecs:
    Worker:
      replicas: 1
      template: {spec: {containers: [{name: tensorflow, image: i, command: [python, t.py]}]}}
"""
# Each command that needs no job, and those that look at one: JOB runs, ENDED has ended.
BEFORE = """
--version
--help
doctor
doctor --probe
init
import tfjob HOME/tfjob.yaml
render -- python HOME/task.py
when -- python HOME/task.py
sweep --dry-run --set rate=0.1,0.2 -- python HOME/task.py {params.rate}
run --run-root HOME/runs --check quick -- python -c pass
list
metrics
nodes
completion bash
bootstrap-path
"""
DURING = """
list --all
status JOB
status JOB --json
monitor JOB --once
logs JOB
stacks JOB
address JOB worker:0
exec JOB worker:0 -- true
shell JOB worker:0
cancel JOB
wait JOB
"""
AFTER = """
status ENDED
report ENDED -o HOME/report.html
report --bundle ENDED -o HOME/bundle.tar.gz
advise ENDED
diff JOB ENDED
output ENDED
rerun ENDED --dry-run
resume ENDED
clean --dry-run
"""


class User:
    """alice, or root, in the folder of traps."""

    def __init__(self, folder: Path, uid: int, traps: Traps) -> None:
        self.home, self.uid, self.traps = folder / "home", uid, traps
        self.home.mkdir()
        os.chown(self.home, uid, GROUP if uid else 0)
        (self.home / "task.py").write_text(TASK)
        (self.home / "tfjob.yaml").write_text(TFJOB)
        # no user but root sees that Python itself is executable, in root's home
        for name, words in {"python": '"$@"', "tensorboard": f"{self.home}/tensorboard.py $6"}.items():
            (self.home / name).write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {words}\n")
            (self.home / name).chmod(0o755)
        (self.home / "tensorboard.py").write_text(TENSORBOARD)

    def start(self, *words: object, **more: str) -> subprocess.Popen[str]:
        reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]  # Python may be in root's home
        user = ["setpriv", f"--reuid={self.uid}", f"--regid={GROUP}", "--clear-groups", *reads] if self.uid else []
        kept = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "XDG_STATE_HOME")}
        return subprocess.Popen(
            [*user, *map(str, words)],
            cwd=self.traps.folder,
            env={
                **kept,
                "HOME": str(self.home),
                "PATH": f"{self.home}:{kept['PATH']}",
                "TMPDIR": "/tmp",
                "GRIDTF_SUBMIT_SCHEDULER": "local",
                **more,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: object, **more: str) -> str:
        """Run a command; what it has printed."""
        with self.start(*words, **more) as process:
            said = process.communicate(timeout=LIMIT)[0]
        assert not self.traps.ran, words
        assert "Traceback" not in said, (words, said)
        return said

    def gridtf(self, commands: str, **places: object) -> None:
        """Run commands, one a line, with placeholders."""
        for line in commands.split("\n")[1:-1]:
            words = [word.replace("HOME", str(self.home)) for word in line.split()]
            self.run(GRIDTF, *(places.get(word, word) for word in words))


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that all users can reach."""
    made = Path(tempfile.mkdtemp(prefix="gridtf-traps-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("uid", [ALICE, 0], ids=["alice", "root"])
def test_no_command_runs_a_module_of_the_current_folder(uid: int, folder: Path) -> None:
    user = User(folder, uid, Traps(folder / "traps", folder / "ran"))
    tried = f"{BEFORE}{DURING}{AFTER}tensorboard\nsubmit\n"
    assert {line.split()[0] for line in tried.split("\n") if line} >= {*COMMANDS}
    runs = user.home / "runs"
    submit = (GRIDTF, "submit", "--run-root", runs, "--check", "quick", "--quiet")
    try:
        user.run(*submit, "--name", "job", "--workers", 2, "--", "python", user.home / "task.py")
        # as `export PYTHONPATH=/opt/lib:$PYTHONPATH` in a shell without one: an empty entry, the current folder
        empty = ("--setup", "export PYTHONPATH=/nowhere::.", "--stage", user.home / "task.py")
        said = user.run(*submit, "--name", "ended", *empty, "--wait", "--", "sh", "-c", "exit 3")
        assert "exit code 3" in said
        user.gridtf(BEFORE)
        user.run(GRIDTF, "status", "", _ARGCOMPLETE="1", COMP_LINE="gridtf sta", COMP_POINT="10", _ARC_DEBUG="1")
        job, ended = ([*runs.glob(f"{name}-*")][-1] for name in ("job", "ended"))
        until(lambda: "begun" in user.run(GRIDTF, "logs", job), "the tasks")
        with user.start(GRIDTF, "tensorboard", job) as shown:
            assert shown.stdout
            assert next((line for line in shown.stdout if "http" in line), None)
            shown.send_signal(signal.SIGINT)
        user.gridtf(DURING, JOB=job)
        user.gridtf(AFTER, JOB=job, ENDED=ended)
    finally:
        with user.start(GRIDTF, "cancel", *runs.iterdir()) as ending:  # also what resume has submitted
            told = ending.communicate(timeout=LIMIT)[0]
    assert not ending.returncode, told
    assert not user.traps.ran
    with user.start(sys.executable, "-c", "import socket") as trapped:
        trapped.communicate(timeout=LIMIT)
    assert user.traps.ran, "the traps work"
