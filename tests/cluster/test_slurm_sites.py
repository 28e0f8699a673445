"""Sites with commands and rules of their own: wrappers first in PATH, plugins of Slurm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gridtf.run.rundir import read_record
from tests.support.cluster import Bed
from tests.support.clusterjobs import ClusterJob, gridtf, refused

BANNER = "echo; echo '  Welcome to the cluster'; echo '--> Checking available allocation (ASC26009)...OK'"
PLAIN = f'#!/bin/sh\n{BANNER}\n{BANNER} >&2\nexec /usr/bin/$(basename "$0") "$@"\n'
# Where the site's lines are, relative to the one that sbatch --parsable prints.
SBATCHES = {
    "before": PLAIN,
    "after": f'#!/bin/sh\n/usr/bin/sbatch "$@"; code=$?\n{BANNER}\nexit $code\n',
    "instead": '#!/bin/sh\ncase $* in *--test-only*) ;; *) exec >&2;; esac\nexec /usr/bin/sbatch "$@"\n',
    "words": '#!/bin/bash\nset -- "${@/#--parsable/}"; [ "$1" ] || shift\nexec /usr/bin/sbatch "$@"\n',
}


@pytest.fixture
def site(slurm: Bed) -> dict[str, str]:
    """The environment of a user at such a site."""
    folder = slurm.home() / "site"
    folder.mkdir(exist_ok=True)
    for name in ("squeue", "sinfo", "scontrol", "scancel", "sacct"):
        (folder / name).write_text(PLAIN)
        (folder / name).chmod(0o755)
    return {"PATH": f"{slurm.seen(folder)}:{slurm.path}"}


@pytest.mark.parametrize("form", SBATCHES)
def test_job_is_found_whatever_the_site_s_wrappers_print(slurm: Bed, site: dict[str, str], form: str) -> None:
    path = slurm.home() / "site" / "sbatch"
    path.write_text(SBATCHES[form])
    path.chmod(0o755)
    # because of the walltime, gridtf runs sinfo as well
    words = ("--scheduler", "slurm", "--nodes", "2", "--gpus-per-node", "1", "--time", "10", "--name", form)
    job = ClusterJob(slurm, *words, "--", "bash", "-c", "[ $RANK = 0 ] || sleep 300", env=site)
    job.running(1)
    queued = slurm.run("login", "/usr/bin/squeue", "--me", "--noheader", "--format=%i %j").stdout.split()
    assert [job.id, form] == queued
    assert "RUNNING" in gridtf(slurm, "status", form, env=site).stdout
    assert f"{form} ({job.id}): CANCELLED" in gridtf(slurm, "cancel", form, env=site).stdout
    refused = gridtf(slurm, "submit", *words[:-2], "--partition", "gpus", "--", "true", env=site, check=False)
    assert "there is no partition 'gpus'" in refused.stderr


PLUGIN = """
function slurm_job_submit(job, partitions, uid)
  if job.account == nil then
    slurm.log_user("----")
    slurm.log_user("Every job needs an account.")
    slurm.log_user("Yours are listed by `quota`.")
    return slurm.ERROR
  end
  job.partition = "short"
  job.time_limit = 5
  slurm.log_user("Your job runs in partition short,\\nfor 5 minutes at most.")
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end
return slurm.SUCCESS
"""


@pytest.fixture
def ruled(slurm: Bed) -> Iterator[Bed]:
    """A site with a job_submit plugin that refuses jobs, and changes others."""
    folder = slurm.state / "slurm" / "etc" / "slurm"
    script, conf = folder / "job_submit.lua", folder / "slurm.conf"
    before = conf.read_text()
    script.write_text(PLUGIN)
    try:
        conf.write_text(f"{before}JobSubmitPlugins=lua\n")
        slurm.run("ctl", "scontrol", "reconfigure", user="root")
        yield slurm
    finally:
        conf.write_text(before)
        slurm.run("ctl", "scontrol", "reconfigure", user="root")
        script.unlink()


def test_what_a_job_submit_plugin_says_and_does_is_told(ruled: Bed) -> None:
    said = refused(ruled, "--nodes", "1", "--gpus-per-node", "1")
    assert "refuse this job: Every job needs an account. Yours are listed by `quota`.\n" in said
    words = ("--scheduler", "slurm", "--nodes", "1", "--gpus-per-node", "1", "--time", "10", "--account", "physics")
    job = ClusterJob(ruled, *words, "--", "sleep", "300")
    assert "sbatch says: Your job runs in partition short, for 5 minutes at most.\n" in job.submitted.stderr
    job.running(1)

    def minutes() -> float:
        launcher = read_record(job.attempt.launcher) or {}
        return float(launcher["ends"] - launcher["began"]) / 60

    job.until(lambda: 4 < minutes() < 6, "the walltime that the job has got")
    job.gridtf("cancel")
