"""Parsers given almost valid input: they accept it or raise GridtfError.

``MUTATIONS=50000:7 pytest tests/unit/test_mutations.py`` tries that many inputs for each parser, those of the seed 7.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gridtf.bootstrap.plan.placement import place
from gridtf.errors import GridtfError
from gridtf.host import gpus
from gridtf.jobspec import config
from gridtf.jobspec.spec import JobSpec
from gridtf.schedulers.api import AgentCall
from gridtf.schedulers.slurm import hostlist, injob, scheduler
from gridtf.starters.joined import ranks
from tests.support import mutations

JOB_FILE = """\
# a job
name = "digits"
command = ["python", "train.py", '--ps={ps_hosts}']
nodes = "2-4"
gpus_per_node = 4
time = 02:00:00
mem_per_task = "8G"
kill_grace = 2.5
setup = [
    "module load cuda",  # a comment
    'source "venv/bin/activate"',
]
template = "site.sh.j2"
native = ["--qos=high"]
[tasks.ps]
count = 2
env = { A = "1" }
[tasks."evaluator"]
mem = 4096
[env]
TEXT = \"\"\"two
lines\"\"\"
"""
WORDS = (
    *("job.toml", "--workers", "2", "--ps=1", "--nodes", "2-4", "--time", "1-12", "--mem", "16G", "--env", "A=b"),
    *("--serve", "ps,worker", "--native=--qos=x", "--setup", "true", "--kill-grace", "2.5", "--entry", "train:main"),
    *("--template", "x.j2", "--run-dir", "~/run", "--no-chief", "--", "python", "train.py"),
)
VARIABLES = {
    "GRIDTF_SUBMIT_NODES": "2-4",
    "GRIDTF_SUBMIT_SETUP": "true\nfalse",
    "GRIDTF_SUBMIT_ENV": "A=b\nHOME",
    "GRIDTF_SUBMIT_CHDIR": "~/x",
    "GRIDTF_SUBMIT_TIME": "90m",
    "GRIDTF_SITE_CONFIG": "/etc/gridtf/none.toml",
    "XDG_CONFIG_HOME": "/nowhere",
    "HOME": "/root",
}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_RESTART_COUNT": "1",
    "SLURM_ARRAY_JOB_ID": "4710",
    "SLURM_ARRAY_TASK_ID": "3",
    "SLURMD_NODENAME": "n1",
    "SLURM_JOB_NODELIST": "n[001-003],m[1,3]-ib",
    "SLURM_JOB_CPUS_PER_NODE": "8(x4),4",
    "SLURM_TASKS_PER_NODE": "2(x5)",
    "SLURM_GPUS_PER_NODE": "a100:4",
    "SLURM_GPUS_ON_NODE": "4",
    "SLURM_HET_SIZE": "1",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n[1-2]",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "c1",
    "SLURM_TASKS_PER_NODE_HET_GROUP_0": "2(x2)",
    "SLURM_CPUS_PER_TASK": "2",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_ID": "0",
    "SLURM_CONF": "/etc/slurm.conf",
}
DEVICES = {
    "GRIDTF_LOCAL_GPUS": "0,1,2,3",
    "CUDA_VISIBLE_DEVICES": "0,GPU-8f3a,MIG-77/1/0",
    "ROCR_VISIBLE_DEVICES": "0,1,2",
    "HIP_VISIBLE_DEVICES": "0,1,2",
    "GPU_DEVICE_ORDINAL": "0,1,2",
    "SLURM_STEP_GPUS": "4,5,6",
}
SPECS = tuple(
    JobSpec.from_dict({"command": ["x"], **more})
    for more in (
        {},
        {"gpus_per_node": 2},
        {"tasks_per_node": 2, "tasks": {"ps": {"count": 2}, "chief": {"count": 1}}},
        {"tasks": {"ps": {"count": 2, "partition": "cpu"}, "worker": {"count": 3}}},
    )
)

Chosen = random.Random
Try = Callable[[Chosen, Path], object]


def _options(chosen: Chosen, folder: Path) -> None:
    (folder / "job.toml").write_text(JOB_FILE)
    config.from_arguments(mutations.words(WORDS, chosen), {"HOME": "/root", "GRIDTF_SITE_CONFIG": ""}, folder)


def _job_file(chosen: Chosen, folder: Path) -> None:
    text = mutations.text(JOB_FILE, chosen)
    (folder / "job.toml").write_bytes(text.encode(errors=chosen.choice(["surrogatepass", "replace"])))
    config.from_arguments(["job.toml"], {"GRIDTF_SITE_CONFIG": ""}, folder)


def _variables(chosen: Chosen, folder: Path) -> None:
    environ = mutations.table(VARIABLES, chosen)
    names = {name: mutations.text(name, chosen) if chosen.random() < 0.1 else name for name in environ}
    config.from_arguments(["--", "x"], {names[name]: text for name, text in environ.items()}, folder)


def _slurm(chosen: Chosen, folder: Path) -> None:
    environ = mutations.table(SLURM, chosen)
    spec = chosen.choice(SPECS)
    if "SLURM_JOB_ID" in environ:  # without one this is no job of Slurm's
        scheduler.injob.identity(environ)
    with contextlib.suppress(GridtfError):
        ranks.member_of(environ, scheduler)
    request = scheduler.login.resolve(spec, in_job=True)
    found = injob.allocation(environ, request, lambda job: {"n001": 2})
    call = AgentCall((), lambda arguments, gpus=None: 0, ("python",), folder / "log")
    injob.srun_command(found.hosts, call, environ)
    place(found, request)


def _hostlist(chosen: Chosen, _: Path) -> None:
    for read, sample in ((hostlist.expand, "n[008-011,3]-ib,r[1-2]n[1-2] m3"), (hostlist.counts, "8(x2),4,16(x3)")):
        with contextlib.suppress(GridtfError):
            read(mutations.text(sample, chosen))


def _devices(chosen: Chosen, _: Path) -> None:
    environ = mutations.table(DEVICES, chosen)
    found = gpus.granted(environ)
    gpus.visible(environ, found[: chosen.randrange(3)])
    gpus.present(environ)
    gpus.declared(2, environ)


PARSERS: dict[str, Try] = {
    "options": _options,
    "job file": _job_file,
    "variables": _variables,
    "Slurm's environment": _slurm,
    "hostlist": _hostlist,
    "GPU variables": _devices,
}


def failures(name: str, seed: str, cases: int, folder: Path) -> Iterator[str]:
    """Inputs for which a parser raised another exception than GridtfError, or one without a message."""
    for number in range(cases):
        case = f"{name}, seed {seed}, case {number}"
        try:
            PARSERS[name](random.Random(case), folder)
        except GridtfError as error:
            if not error.what:
                yield f"{case}: no message"
        except Exception as error:
            yield f"{case}: {type(error).__name__}: {str(error)[:200]}"


@mutations.inputs(50, 300)
@pytest.mark.parametrize("name", PARSERS)
def test_parsers_accept_mutated_input_or_raise_gridtf_errors(name: str, count: int, tmp_path: Path) -> None:
    assert list(failures(name, mutations.SEED or "0", count, tmp_path)) == []
