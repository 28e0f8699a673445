"""A job that waits in the queue of a real scheduler runs its snapshot, whatever is edited meanwhile."""

from __future__ import annotations

import shlex

import pytest

from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.clusterfaults import no_process_left
from tests.support.clusterjobs import ClusterJob, gridtf

HELD = {"slurm": "--native=--hold", "sge": "--native=-h"}
RELEASES = {"slurm": ("scontrol", "release"), "sge": ("qrls",)}
TWO_HOSTS = {"slurm": ("--nodes", "2", "--tasks-per-node", "1"), "sge": ("--pe", "one", "--slots", "2")}
MAKE = """
set -eu
mkdir -p code/sub/data; cd code
git init -q .
echo "WHO = 'as submitted'" >lib.py
echo 'import os, lib; print(lib.WHO, open("data/x").read().strip(), os.getcwd(), flush=True)' >sub/train.py
echo data/ >.gitignore
echo before >sub/data/x
git add .
git -c user.name=a -c user.email=a@example.org commit -qm first
echo '# changed' >>lib.py
"""


@on_every_scheduler
@pytest.mark.parametrize("snapshot", [True, False])
def test_edit_of_a_held_job_s_code_does_not_run(bed: Bed, snapshot: bool) -> None:
    """Both hosts see the snapshot; the data, which git ignores, are those of the folder."""
    folder = bed.home() / "code"
    bed.run("login", "bash", "-c", MAKE)
    where = bed.seen(folder)
    try:
        options = ("--chdir", "code/sub", "--snapshot" if snapshot else "--no-snapshot", "--name", "snap")
        env = ("--env", "PATH", "--env", f"PYTHONPATH={where}")
        size = (*bed.options, *TWO_HOSTS[bed.kind], "--workers", "2", HELD[bed.kind])
        job = ClusterJob(bed, *size, *options, *env, "--", "python", "train.py")
        edit = "echo \"WHO = 'edited'\" >code/lib.py; echo after >code/sub/data/x; echo 'print(0)' >>code/sub/train.py"
        bed.run("login", "bash", "-c", edit)
        bed.run("login", *RELEASES[bed.kind], job.id)
        done = job.gridtf("wait", "--timeout", "300", check=False, timeout=310)
        assert done.returncode == 0, done.stdout + done.stderr + job.output
        known = job.status()["code"]
        text = f"as submitted after {known.get('snapshot')}/sub\n" if snapshot else f"edited after {where}/sub\n0\n"
        assert job.logs() == {"worker-0": text, "worker-1": text}
        assert (known["dirty"], known["untracked"], known["folder"]) == (True, [], where)
        assert "+# changed" in job.run.diff.read_text()
        job.until(lambda: gridtf(bed, "clean", job.id, "--yes", check=False).returncode == 0, "the queue to forget it")
        assert not job.run.path.exists()
        if snapshot:
            bed.run("login", "bash", "-c", f"! [ -e {shlex.quote(known['snapshot'])} ]")
        no_process_left(bed)
    finally:
        bed.run("login", "rm", "-rf", where)
