"""Sites whose commands print lines of their own around Slurm's: wrappers of the real commands, first in PATH."""

from __future__ import annotations

import pytest

from tests.support.cluster import Bed
from tests.support.clusterjobs import ClusterJob, gridtf

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
