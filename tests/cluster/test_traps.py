"""No part of a job on a cluster runs a module of its working folder, where others may write."""

from __future__ import annotations

from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.traps import ISOLATED, Traps


@on_every_scheduler
def test_job_runs_no_module_of_its_working_folder(bed: Bed) -> None:
    traps = Traps(bed.home() / "traps", bed.home() / "trapped", bed.seen(bed.home() / "trapped"))
    # as `export PYTHONPATH=/opt/lib:$PYTHONPATH` in a shell without one: an empty entry, the current folder
    words = ("--nodes", "2", "--tasks-per-node", "1", "--check", "quick")
    about = {"env": {"PYTHONPATH": "/opt/lib:", "GRIDTF_SITE_CONFIG": ""}, "cwd": bed.seen(traps.folder)}
    root = ("--run-root", bed.seen(bed.home() / "runs"))
    submit = (*ISOLATED, "submit", *bed.options, *words, *root, "--wait", "--", "sh", "-c", "echo ended well")
    done = bed.run("login", *submit, check=False, **about)  # type: ignore[arg-type]
    assert not traps.ran, done.stderr
    assert done.returncode == 0, done.stderr
    probe = (*ISOLATED, "doctor", *bed.options, *root, "--probe")
    done = bed.run("login", *probe, check=False, **about)  # type: ignore[arg-type]
    assert not traps.ran, done.stdout
    assert "Traceback" not in done.stdout + done.stderr
