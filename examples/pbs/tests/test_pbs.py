"""The PBS scheduler: the conformance tests of gridtf.testing on recorded outputs, and tests of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gridtf_pbs
import pytest
from gridtf_pbs import PBS

import gridtf
from gridtf.errors import PlacementError, SchedulerError, SpecError
from gridtf.schedulers.api import GpuNeed, JobIdentity
from gridtf.states import JobState
from gridtf.testing import (
    BatchConformance,
    Commands,
    LiveConformance,
    Output,
    Recorded,
    RecordedJob,
    expect_error,
)

HERE = Path(__file__).parent / "recorded"


def output(name: str, code: int = 0) -> Output:
    """The output in recorded/NAME.out and .err; the program is the first part of the name."""
    return Output.read(name.partition("-")[0], HERE / name, code)


# Exit codes of PBS's commands are the lowest eight bits of an error number: 15001 for an unknown job, 15139 for one
# that has ended, 15018 for an unknown queue, 15007 for another user's job.
UNKNOWN, ENDED, NO_QUEUE, DENIED, NO_SERVER = 153, 35, 170, 159, 255
STATES = {
    "1201.pbs01": JobState.PENDING,
    "1202.pbs01": JobState.PENDING,
    "1203.pbs01": JobState.PENDING,
    "1204.pbs01": JobState.PENDING,
    "1205.pbs01": JobState.RUNNING,
    "1206.pbs01": JobState.RUNNING,
    "1207.pbs01": JobState.RUNNING,
    "1208.pbs01": JobState.RUNNING,
    "1209[].pbs01": JobState.RUNNING,
    "1209[0].pbs01": JobState.COMPLETED,
    "1209[1].pbs01": JobState.FAILED,
    "1210.pbs01": JobState.COMPLETED,
    "1211.pbs01": JobState.FAILED,
    "1212.pbs01": JobState.CANCELLED,
    "1213.pbs01": JobState.CANCELLED,
    "1214.pbs01": JobState.TIMEOUT,
    "1215.pbs01": JobState.OUT_OF_MEMORY,
    "1216.pbs01": JobState.FAILED,
    "1217.pbs01": JobState.UNKNOWN,
    "1218[].pbs01": JobState.FAILED,
}
JOB = {"PBS_ENVIRONMENT": "PBS_BATCH", "PBS_JOBCOOKIE": "00000000A1B2C3D4", "NCPUS": "2", "PBS_NODENUM": "0"}


class TestPBS(BatchConformance):
    scheduler = PBS()
    native = ("-p 100", "-W group_list=ml")
    array = ("-J 0-15:5%2", ("0", "5", "10", "15"))
    recorded = Recorded(
        accepted=(output("qsub"),),
        job_id="1234.pbs01",
        refused=(output("qsub-refused", NO_QUEUE),),
        garbled=(output("qsub-garbled"), Output("qselect")),
        unreachable=(
            output("qsub-unreachable", 1),
            *(output(f"{n}-unreachable", NO_SERVER) for n in ("qstat", "qdel")),
        ),
        listed=(output("qstat-states"),),
        states=STATES,
        unknown=(output("qstat-unknown", UNKNOWN),),
        cancelled=(Output("qdel"),),
        ended=(output("qdel-ended", ENDED), output("qdel-unknown", UNKNOWN)),
        denied=(output("qdel-foreign", DENIED),),
    )
    job = RecordedJob(
        {**JOB, "PBS_JOBID": "1234[3].pbs01", "PBS_ARRAY_INDEX": "3"},
        job_id="1234[3].pbs01",
        element="3",
        files={"PBS_NODEFILE": (HERE / "nodefile").read_text()},
        hosts={"n1.cluster": 2, "n2.cluster": 2},
    )

    # --- specific to PBS

    def directives(self, **values: Any) -> list[str]:
        return list(self.scheduler.login.directives(self.plan(Path("/shared/run"), self.spec(**values))))

    def test_directives(self) -> None:
        assert self.directives(
            nodes=2, gpus_per_node=4, cpus_per_task=3, mem_per_task="2G", time="90m", partition="gpu", account="ml"
        ) == [
            "-N digits",
            "-l select=2:ncpus=12:mpiprocs=4:ompthreads=3:ngpus=4:mem=8192mb",
            "-l place=scatter",
            "-l walltime=5400",
            "-q gpu",
            "-A ml",
            "-S /bin/bash",
            "-j oe",
            "-r y",
        ]

    def test_select_includes_cpus_of_non_training_tasks(self) -> None:
        tasks = {"worker": {"count": 2}, "ps": {"count": 1, "cpus": 2}}
        assert "-l select=1:ncpus=4:mpiprocs=2:ompthreads=1" in self.directives(tasks=tasks)

    def test_native_option_replaces_gridtf_s_own(self) -> None:
        lines = self.directives(native=["-l select=1:ncpus=8,walltime=60 -q long"], time="2h", partition="gpu")
        assert lines == [
            "-N digits",
            "-l place=scatter",
            "-S /bin/bash",
            "-j oe",
            "-r y",
            "-l select=1:ncpus=8,walltime=60 -q long",
        ]

    @pytest.mark.parametrize(
        ("key", "values"),
        [
            ("nodes", {"nodes": "2-4"}),
            ("tasks.ps.partition", {"tasks": {"ps": {"count": 1, "partition": "cpu"}}}),
            ("native", {"native": ["-Y"]}),
            ("native", {"native": ["-A 'ml"]}),
            ("native", {"native": ["-J 3-1"]}),
            ("native", {"native": ["-J 0-x"]}),
        ],
    )
    def test_unsupported_requests_are_refused(self, key: str, values: dict[str, Any]) -> None:
        assert expect_error(SpecError, lambda: self.directives(**values)).key == key

    @pytest.mark.parametrize("name", ["with space", "host:path", "a,b", "x^y"])
    def test_run_directory_that_qsub_would_misread_is_refused(self, tmp_path: Path, name: str) -> None:
        plan = self.plan(tmp_path / name, self.spec())
        assert expect_error(SpecError, lambda: self.scheduler.login.submit_command(plan)).key == "run_root"

    def test_each_array_element_has_its_own_log(self) -> None:
        plan = self.plan(Path("/shared/run"), self.spec(native=["-J 0-3"]))
        log = "/shared/run/array/^array_index^/job.log"
        assert self.scheduler.login.submit_command(plan) == ("qsub", "-o", log)

    @pytest.mark.parametrize(
        ("name", "job_id"), [("qsub-array", "1240[].pbs01"), ("qsub-hook", "1235.pbs01"), ("qsub-garbled", "")]
    )
    def test_parse_job_id(self, name: str, job_id: str) -> None:
        assert self.scheduler.login.parse_job_id(output(name).out) == job_id

    def test_query_of_a_server_without_job_history(self, commands: Commands) -> None:
        commands.print([output("qstat-no-history"), output("qstat-running")])
        assert self.scheduler.login.query([JobIdentity("1234.pbs01")])["1234.pbs01"].state == JobState.RUNNING
        assert commands.calls("qstat") == [["-x", "-f", "1234.pbs01"], ["-f", "1234.pbs01"]]

    @pytest.mark.thorough
    def test_submit_with_a_lost_answer_finds_the_job_by_its_log(self, commands: Commands) -> None:
        running = output("qstat-running")
        lost = output("qsub-answer-lost", 1)
        commands.print([lost, Output("qselect", "1233.pbs01\n1234.pbs01\n"), running])
        plan = self.plan(Path("/home/ann/train/gridtf-runs/digits-1"), self.spec())
        assert self.scheduler.login.submit(plan).job == JobIdentity("1234.pbs01")
        other = plan.replace(run_dir=Path("/home/ann/train/gridtf-runs/digits"))
        assert self.scheduler.login.find_submitted(other) is None

    def test_reasons_of_states(self, commands: Commands) -> None:
        commands.print(self.recorded.listed)
        statuses = self.scheduler.login.query([JobIdentity(job_id) for job_id in STATES])
        assert statuses["1201.pbs01"].reason == "Not Running: Insufficient amount of resource: ngpus (R: 4 A: 2 T: 8)"
        assert statuses["1205.pbs01"].reason == ""
        assert statuses["1207.pbs01"].reason == "Job suspended by scheduler at Mon Nov 02 at 09:30"
        assert statuses["1211.pbs01"].reason == "exit status 3"
        assert statuses["1214.pbs01"].reason.endswith("and exceeded resource walltime")
        assert statuses["1216.pbs01"].reason.endswith("and failed")

    def test_identity_does_not_contain_the_job_cookie(self, inside: dict[str, str]) -> None:
        first, second = inside, {**inside, "PBS_JOBCOOKIE": "00000000FFFFFFFF"}
        restarts = [self.scheduler.injob.identity(environ).restarts for environ in (first, first, second)]
        assert restarts[0] == restarts[1] != restarts[2]
        assert inside["PBS_JOBCOOKIE"] not in restarts[0]

    def test_allocation_without_a_nodefile(self, inside: dict[str, str]) -> None:
        request = self.scheduler.login.resolve(self.spec(), in_job=True)
        with pytest.raises(SchedulerError, match="PBS_NODEFILE: No such file"):
            self.scheduler.injob.allocation({**inside, "PBS_NODEFILE": "/nothing"}, request, lambda *_: None)

    def test_allocation_has_visible_or_requested_gpus(self, inside: dict[str, str]) -> None:
        request = self.scheduler.login.resolve(self.spec(nodes=2, tasks_per_node=2, gpus_per_task=2))

        def gpus(**environ: str) -> set[int | None]:
            hosts = self.scheduler.injob.allocation({**inside, **environ}, request, lambda *_: None).hosts
            return {host.gpus for host in hosts}

        assert gpus() == {4}
        assert gpus(CUDA_VISIBLE_DEVICES="GPU-1,GPU-2") == {2}
        assert gpus(CUDA_VISIBLE_DEVICES="") == {0}

    def test_gpus_are_claimed_where_none_are_visible(self, inside: dict[str, str]) -> None:
        request = self.scheduler.login.resolve(self.spec())

        def grant(count: int, **environ: str) -> tuple[str, ...]:
            environ = {**inside, "GRIDTF_LOCKS": f"pbs-{os.getpid()}", **environ}
            claim = self.scheduler.injob.gpu_grant(environ, request, GpuNeed(count, "digits", 0.0), lambda *_: None)
            for descriptor in claim.descriptors:
                os.close(descriptor)
            return claim.gpus

        assert grant(2, CUDA_VISIBLE_DEVICES="GPU-1,GPU-2") == ("GPU-1", "GPU-2")
        assert grant(0) == ()
        assert grant(2, GRIDTF_LOCAL_GPUS="0,1,2") == ("0", "1")
        with pytest.raises(PlacementError, match="2 GPUs are needed, 1 are free"):
            grant(2, GRIDTF_LOCAL_GPUS="0")


if "PBS_LIVE" in os.environ:  # a folder that all hosts share

    class TestLivePBS(LiveConformance):
        scheduler = PBS()
        hold = ("-h",)

        @pytest.fixture
        def folder(self) -> Path:
            return Path(tempfile.mkdtemp(dir=os.environ["PBS_LIVE"]))


# --- the package


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder as pip installs into it: the module, and the entry points that pyproject.toml declares."""
    module = Path(gridtf_pbs.__file__)
    project = (module.parent / "pyproject.toml").read_text()
    entry = next(line for line in project.splitlines() if line.startswith("pbs = "))
    folder = tmp_path / "site"
    info = folder / "gridtf_pbs-0.1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(module, folder)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gridtf-pbs\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[gridtf.schedulers]\n{entry.replace(chr(34), '')}\n")
    return folder


def render(site: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    gridtf_home = str(Path(gridtf.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-m", "gridtf", "render", *words],
        cwd=site,
        env={"PATH": os.defpath, "PYTHONPATH": f"{gridtf_home}{os.pathsep}{site}", "HOME": str(site), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.thorough
def test_installed_plugin_renders(site: Path) -> None:
    done = render(
        site,
        "--scheduler",
        "pbs",
        "--name",
        "train",
        "--nodes",
        "2",
        "--gpus-per-node",
        "4",
        "--",
        sys.executable,
        "-V",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "#!/bin/bash\n#PBS -N train\n#PBS -l select=2:ncpus=4:mpiprocs=4:ompthreads=1:ngpus=4"
    )
    assert "submit runs    qsub -o " in done.stderr


@pytest.mark.thorough
def test_installed_plugin_is_chosen_where_pbs_commands_are(site: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("qsub", "pbs_rstat"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    done = render(site, "--json", "--", sys.executable, "-V", PATH=f"{folder}{os.pathsep}{os.defpath}")
    assert json.loads(done.stdout)["scheduler"] == "pbs", done.stderr
    done = render(site, "--json", "--", sys.executable, "-V", PATH=str(folder.parent))
    assert json.loads(done.stdout)["scheduler"] == "local", done.stderr
