"""What batch schedulers share: folders that other hosts cannot see, arrays, values in directive lines."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gridtf.errors import SpecError
from gridtf.host import mounts
from gridtf.schedulers.api import AgentEnd
from gridtf.schedulers.injob import BatchInJob
from gridtf.schedulers.login import check_shared
from gridtf.schedulers.sge import GridEngine
from tests.support.rendering import plan

MOUNTS = """\
/dev/sda1 / ext4 rw,relatime 0 0
tmpfs /tmp tmpfs rw,nosuid 0 0
server:/home /home nfs4 rw 0 0
server:/x /tmp/from\\040far nfs4 rw 0 0
tmpfs /run/user/1000 tmpfs rw 0 0
tmpfs /data tmpfs rw 0 0
/dev/sdb1 /data xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/me", "nfs4"),
        ("/homes", "ext4"),
        ("/tmp/me", "tmpfs"),
        ("/tmp", "tmpfs"),
        ("/tmp/from far/x", "nfs4"),
        ("/data/x", "xfs"),
        ("/", "ext4"),
    ],
)
def test_file_system_of_a_folder(folder: str, kind: str) -> None:
    assert mounts.file_system(Path(folder), MOUNTS)[1] == kind


def test_run_directory_in_memory_is_refused() -> None:
    with pytest.raises(SpecError, match="run_root: /tmp/runs/a cannot be seen by other hosts") as caught:
        check_shared(plan("slurm", run_dir="/tmp/runs/a", chdir="/home/me"), MOUNTS)
    assert caught.value.why == "/tmp is a tmpfs, which lies in the memory of this host"


def test_working_folder_in_memory_is_refused() -> None:
    with pytest.raises(SpecError, match="chdir: /tmp/me cannot be seen"):
        check_shared(plan("slurm", run_dir="/home/me/run", chdir="/tmp/me"), MOUNTS)


def test_folders_that_may_be_shared_are_accepted() -> None:
    check_shared(plan("slurm", run_dir="/home/me/run", chdir="/home/me"), MOUNTS)


@pytest.mark.parametrize(("code", "end"), [(0, 0), (3, 3), (128, 128), (137, -9), (-15, -15)])
def test_agent_end_of_an_exit_code(code: int, end: int) -> None:
    found = BatchInJob.agent_end(GridEngine().injob, "n2", code, ["a", "b", "c", "d"])
    assert found == AgentEnd(end, "n2", ("b", "c", "d"), None)


# A signal that reaches a whole process group while this process starts a child, which has called fork but not exec.
REACHES_NEW_CHILD = """
import os, signal, sys
from pathlib import Path
from gridtf.host.processes import block_signals
from gridtf.schedulers.agents import StartedAgents
from gridtf.schedulers.api import AgentEnd
from gridtf.schedulers.commands import run_command

block_signals()
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), int(sys.argv[1])))
print(run_command(["echo", "there"], limit=30).out, end="")
agents = StartedAgents(["sleep", "60"], os.environ, Path(sys.argv[2]), lambda code, printed: AgentEnd(code, None))
while (end := agents.poll()) is None:
    pass
print(end.code)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_to_all_ends_the_start_of_agents_but_no_command_of_a_launcher(number: int, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", REACHES_NEW_CHILD, str(int(number)), str(tmp_path / "agents.log")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=180, check=False)
    assert (done.stdout, done.stderr) == (f"there\n{-number}\n", "")
