"""A Grid Engine test bed of scripts/testbed."""

from __future__ import annotations

import os
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

from tests.support.cluster import PATH, Bed

BINARIES = "/mnt/sge/bin/lx-amd64"
OTHER_ROOT = "GRIDTF_TESTBED_SGE_ROOT"
_DEBIAN = Path("/usr/lib/gridengine")


class GridEngineBed(Bed):
    kind = "sge"
    hosts = ("ctl", "login", "n1", "n2", "n3", "n4")
    path = f"{BINARIES}:{PATH}"
    options = ("--scheduler", "sge", "--pe", "one", "--env", "PYTHONPATH")  # a job inherits no environment
    two_gpus_on_each_of_four_hosts = ("--pe", "rr", "--workers", "8", "--gpus-per-task", "1")
    array = ("-t", "1-3")
    elements = ("1", "2", "3")
    element_variable, element_separator = "SGE_TASK_ID", "."
    delete, deleted = "qdel", "deleted with qdel"
    server = "Grid Engine's qmaster on ctl"
    questions = ("qstat -f -u * -explain aE", "qstat -j {id}")

    def environ(self) -> dict[str, str]:
        return {**super().environ(), **{name: os.environ[name] for name in (OTHER_ROOT,) if name in os.environ}}

    def stop_server(self) -> None:
        self.run("ctl", "pkill", "-9", "-x", "sge_qmaster", user="root")

    def states(self) -> dict[str, str]:
        """Host -> the state of its queue all.q, such as u (unknown), au, E (error) or d (disabled); "well" for none."""
        queues = self._look("-q", "all.q").iter("Queue-List")
        return {queue.findtext("name", "").partition("@")[2]: queue.findtext("state", "well") for queue in queues}

    def busy(self, since: float = 0) -> list[str]:
        """Delete all jobs (after five seconds by force), and clear queue errors, where there are any."""
        seen = self._look("-u", "*")
        jobs = [f"job {job.findtext('JB_job_number')} {job.findtext('state')}" for job in seen.iter("job_list")]
        queues = [(queue.findtext("name"), queue.findtext("state")) for queue in seen.iter("Queue-List")]
        if found := [*jobs, *(f"{name} {state}" for name, state in queues if state)]:
            clear = f"qdel {'-f' if since > 5 else ''} -u '*'; qmod -c '*'; qmod -e '*'"
            self.run("ctl", "bash", "-c", f"({clear}) &>/dev/null || :", user="root")
        return found

    def _look(self, *options: str) -> ET.Element:
        """The output of qstat on queues and jobs."""
        return ET.fromstring(self.run("ctl", "qstat", "-f", "-xml", *options, user="root").stdout)


def installed(home: Path) -> Path:
    """Lay Debian's Grid Engine out in a folder as its own installer would; returns the folder."""
    bin_, utilbin, lib = (home / name / "lx-amd64" for name in ("bin", "utilbin", "lib"))
    for folder in (bin_, utilbin, lib):
        folder.mkdir(parents=True)
    for file in _DEBIAN.iterdir():
        command = file.name.startswith(("q", "sge_")) and file.name != "qrsh_starter"
        shutil.copy2(file, lib if file.suffix == ".so" else bin_ if command else utilbin, follow_symlinks=False)
    shutil.copy2("/usr/lib/gridengine-drmaa/lib/libdrmaa.so.1.0", lib / "libdrmaa.so")
    shutil.copytree("/usr/share/gridengine/util", home / "util")
    return home
