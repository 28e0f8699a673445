"""Environment and command line of a task (pure); and the folder by which tasks that gridtf itself runs find it."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from gridtf import contract, wrappers
from gridtf.bootstrap.plan.placement import PlacedTask
from gridtf.bootstrap.plan.rendezvous import AttemptPlan, Rendezvous
from gridtf.errors import RendezvousError
from gridtf.host import gpus
from gridtf.jobspec.placeholders import fill, filled, parameters
from gridtf.jobspec.spec import JobSpec
from gridtf.jobspec.units import LONGEST_VARIABLE
from gridtf.run.rundir import cannot, make_folder, need_ours

# Proxy variables that gRPC reads, which TensorFlow uses.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
# A task's Python may be another one than gridtf's, and PYTHONPATH cannot hold a path with a colon. The package is
# loaded from where it is installed, since its link in the run directory may have been replaced. The folder with the
# link is for processes that the task starts. It takes the place of the working folder, where others may write.
_RUN_MODULE = """\
import sys
home = sys.argv.pop(1)
sys.path[:sys.path[0] == ""] = [sys.argv.pop(1)] # not in the place of a folder where PYTHONSAFEPATH is set
import importlib.util, runpy
found = importlib.util.spec_from_file_location("gridtf", home + "/__init__.py", submodule_search_locations=[home])
sys.modules["gridtf"] = importlib.util.module_from_spec(found)
found.loader.exec_module(sys.modules["gridtf"])
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)"""
_PATH = "PYTHONPATH"
# torchrun's, and those that keras.distribution.initialize() reads
_RANKS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("KERAS_DISTRIBUTION_PROCESS_ID", "KERAS_DISTRIBUTION_NUM_PROCESSES", "KERAS_DISTRIBUTION_JOB_ADDRESSES"),
)
_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def task_environment(
    base: Mapping[str, str],
    plan: AttemptPlan,
    task: PlacedTask,
    rendezvous: Rendezvous,
    share: Sequence[str],
    local_dir: Path | None = None,
    hook: Path | None = None,
) -> dict[str, str]:
    """The environment of one task: the agent's, then the job's variables, then the contract.

    Args:
        base: The environment of the agent.
        rendezvous: What all tasks agree on.
        share: The ids of the task's GPUs, among those that are visible in base.
        local_dir: The folder of the attempt on this host; None where there is none.
        hook: The folder with the sitecustomize of tasks; None: without it.
    """
    env = dict(base)
    env[contract.OUTPUT_DIR] = str(plan.attempt.run.output)  # base may hold the OUTPUT_DIR of the submitting shell
    variables = {**plan.spec.env, **plan.spec.task(task.type).env}
    if any("{" in text for text in variables.values()):
        values = placeholders(plan, task, rendezvous)
        variables = {name: fill(text, values) for name, text in variables.items()}
    env.update(variables)
    if task.cpus is not None:  # threads to match the task's CPUs, unless the user sets them
        for name in _THREADS:
            # With one inter-op thread a worker of ParameterServerStrategy waits for itself forever (TensorFlow 2.21).
            least = 2 if name == "TF_NUM_INTEROP_THREADS" else 1
            env.setdefault(name, str(max(task.cpus, least)))
    if plan.spec.in_place("worker"):
        # As ParameterServerStrategy's guide requires: the chief handles the loss of a worker as an error.
        env.setdefault("GRPC_FAIL_FAST", "use_caller")
    env.setdefault("PYTHONUNBUFFERED", "1")  # a log written in blocks of 8 KiB is of no use to `gridtf logs -f`
    env.update(
        {
            **gpus.visible(base, share),
            contract.REUSE_PORT: "1",
            contract.RUN_DIR: str(plan.attempt.run.path),
            contract.JOB_ID: plan.job_id,
            contract.JOB_NAME: plan.spec.title,
            contract.ATTEMPT: str(plan.attempt.number),
            contract.TASK_TYPE: task.type,
            contract.TASK_INDEX: str(task.index),
            contract.RENDEZVOUS: str(plan.attempt.rendezvous),
            contract.NONCE: plan.nonce,
            contract.PARAMS: json.dumps(plan.spec.params),
            "MASTER_ADDR": rendezvous.master_addr,
            "MASTER_PORT": str(rendezvous.master_port),
        }
    )
    env.pop(contract.LOCAL_DIR, None)
    if local_dir is not None:
        env[contract.LOCAL_DIR] = str(local_dir)
    if hook is not None:
        env[_PATH] = os.pathsep.join(filter(None, (str(hook), env.get(_PATH))))
    config = None
    if has_config(plan.spec, task.type):
        config = rendezvous.config(task.type, task.index, alone=task.row.alone)
    env.pop(contract.TF_CONFIG, None)
    if config is not None:
        env[contract.TF_CONFIG] = config
    for name in _RANKS:
        env.pop(name, None)
    if task.rank is not None:
        peers = sum(other.rank is not None for other in plan.on(task.host))
        world = plan.world_size, f"{rendezvous.master_addr}:{rendezvous.master_port}"
        ranks = (task.rank, plan.world_size, task.local_rank, peers, task.rank, *world)
        env.update(zip(_RANKS, map(str, ranks), strict=True))
    if any(env.get(name) for name in _PROXIES):
        env["no_grpc_proxy"] = _unproxied(env, rendezvous)
    return env


def has_config(spec: JobSpec, task_type: str) -> bool:
    """Whether tasks of a type get a TF_CONFIG: unless the job sets it to nothing, since its program needs none."""
    return {**spec.env, **spec.task(task_type).env}.get(contract.TF_CONFIG) != ""


def members(spec: JobSpec, tasks: Sequence[PlacedTask]) -> list[PlacedTask]:
    """Those of these tasks that are members of TensorFlow's cluster, and are told so."""
    return [task for task in tasks if task.in_cluster and has_config(spec, task.type)]


def need_room(plan: AttemptPlan, rendezvous: Rendezvous) -> None:
    """Check that what commands find of the cluster fits into a variable or an argument.

    Entry functions and served tasks are not checked: they read the rendezvous file.

    Args:
        rendezvous: What all tasks agree on.

    Raises:
        RendezvousError: TF_CONFIG, another variable or an argument is longer than Linux allows.
    """
    if len(rendezvous.text) + len(str(rendezvous.outside)) < LONGEST_VARIABLE // 8:
        return  # no command repeats it that often
    last = {task.type: task for task in plan.tasks}  # with the longest index
    for task in last.values():
        if runs_gridtf(plan, task):
            continue
        if has_config(plan.spec, task.type) and rendezvous.config(task.type, task.index, alone=task.row.alone) is None:
            raise _too_long(f"TF_CONFIG of {task.name}", len(rendezvous.text), plan, _WITHOUT_CONFIG)
        values = placeholders(plan, task, rendezvous)
        variables = {**plan.spec.env, **plan.spec.task(task.type).env}
        texts = [f"{name}={text}" for name, text in variables.items()]
        for text in (*texts, *(plan.spec.task(task.type).command or plan.spec.command)):
            if (size := len(fill(text, values).encode(errors="surrogateescape"))) > LONGEST_VARIABLE:
                raise _too_long(f"{text!r} of {task.name}", size, plan, "")


_WITHOUT_CONFIG = (
    "; or read the cluster by gridtf.training.ClusterResolver() or gridtf.task(), and add --env TF_CONFIG="
)


def _too_long(what: str, size: int, plan: AttemptPlan, more: str) -> RendezvousError:
    count, longest = len(plan.tasks), max(plan.hosts.values(), key=len)
    return RendezvousError(
        f"{what} would have {size} bytes for {count} tasks, but Linux allows {LONGEST_VARIABLE} in one string",
        why=f"it has host:port of every task, with host names such as {longest}",
        hint=f"use shorter names (--address '{{short}}') or addresses (--interface NAME), or fewer tasks{more}",
    )


def own_variables(plan: AttemptPlan, task: PlacedTask, rendezvous: Rendezvous) -> set[str]:
    """The names of the variables that gridtf and the job set for a task.

    Args:
        rendezvous: What all tasks agree on.
    """
    own = task_environment({}, plan, task, rendezvous, (), Path())
    return {*own, *gpus.SHOWING, "CUDA_DEVICE_ORDER", "no_grpc_proxy"}


def _unproxied(env: Mapping[str, str], rendezvous: Rendezvous) -> str:
    """The hosts that gRPC must not reach through a proxy, which it would do even for connections within a host."""
    excluded = env.get("no_grpc_proxy") or env.get("no_proxy") or env.get("NO_PROXY") or ""
    tasks = itertools.chain(*rendezvous.cluster.values(), *rendezvous.outside.values())
    hosts = (address.rpartition(":")[0].strip("[]") for address in tasks)
    value = ",".join(dict.fromkeys([*filter(None, excluded.split(",")), *hosts]))
    return value if len(value) < LONGEST_VARIABLE // 2 else excluded


def runs_gridtf(plan: AttemptPlan, task: PlacedTask) -> bool:
    """Whether the task's command is gridtf's own: a served task, or an entry function."""
    return task.served or (plan.spec.entry is not None and plan.spec.task(task.type).command is None)


def command(plan: AttemptPlan, task: PlacedTask, rendezvous: Rendezvous, home: Path, package: Path) -> list[str]:
    """The task's command line, with the placeholders filled in.

    Args:
        rendezvous: What all tasks agree on.
        home: The folder of the gridtf package, for a task that gridtf itself runs.
        package: A folder that holds nothing but a link to home.
    """
    python = [plan.python, "-c", _RUN_MODULE, str(home), str(package)]
    if task.served:
        return [*python, "gridtf.training.serve", *plan.spec.serve_imports]
    own = plan.spec.task(task.type).command
    if own is None and plan.spec.entry is not None:
        return [*python, "gridtf.training.run", plan.spec.entry]
    values = placeholders(plan, task, rendezvous)
    return filled(own or plan.spec.command, values, plan.spec.params)


def program(plan: AttemptPlan, task: PlacedTask) -> str:
    """The first word of the task's command line; empty where a container or placeholder decides what it is."""
    if wrappers.hides_host(plan.spec):
        return ""
    word = plan.python if runs_gridtf(plan, task) else (plan.spec.task(task.type).command or plan.spec.command)[0]
    return "" if "{" in word else word


def placeholders(plan: AttemptPlan, task: PlacedTask, rendezvous: Rendezvous) -> dict[str, str]:
    """Name -> value of the placeholders ``{name}`` in commands and variables: placeholders.NAMES and parameters.

    Args:
        rendezvous: What all tasks agree on.
    """
    tasks = {**rendezvous.cluster, **rendezvous.outside}
    hosts = {f"{name}_hosts": ",".join(tasks.get(name, ())) for name in plan.spec.types}
    ranked = task.rank is not None
    named = plan.spec.env.get(contract.OUTPUT_DIR, "")
    own = tasks[task.type][task.index]
    return {
        **hosts,
        "task_type": task.type,
        "task_index": str(task.index),
        "address": own,
        "port": own.rpartition(":")[2],
        "rank": str(task.rank) if ranked else "",
        "world_size": str(plan.world_size) if ranked else "",
        "local_rank": str(task.local_rank) if ranked else "",
        "master_addr": rendezvous.master_addr,
        "master_port": str(rendezvous.master_port),
        "cluster": rendezvous.text,
        "run_dir": str(plan.attempt.run.path),
        "output_dir": named if named and "{" not in named else str(plan.attempt.run.output),
        "job_id": plan.job_id,
        **parameters(plan.spec.params),
    }


# --- the environment of the job on a host that has not inherited it, and the gridtf package

# Variables that every host sets for itself with any scheduler: its name, its temporary folder, the GPUs it grants.
_OF_HOST = re.compile(
    r"HOSTNAME|TMPDIR|TMP|"
    r"CUDA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK"
)
# Variables for which the value of the host counts, else that of the job.
_OF_HOST_FIRST = frozenset({"GRIDTF_LOCAL_GPUS", "GRIDTF_LOCKS"})


# The folder of the gridtf package.
HOME = Path(__file__).resolve().parents[2]


def package_folder(folder: Path) -> Path:
    """Make a folder with a link to the gridtf package, and no other module, for the sys.path of another Python.

    Args:
        folder: Where: the folder of the attempt on this host, if there is one, or one of this host's own.

    Raises:
        RunDirError: The folder or the link cannot be made, or the folder belongs to another user.
    """
    make_folder(folder, parents=True)
    need_ours(folder)
    try:
        (folder / "gridtf").symlink_to(HOME)
    except OSError as error:
        raise cannot("make", folder, error) from None
    return folder


def merge_environment(
    own: Mapping[str, str], sent: Mapping[str, str], host_variables: re.Pattern[str] | None = None
) -> dict[str, str]:
    """The environment of the job on this host: that of the job script, except variables that each host sets. Pure.

    Args:
        own: The environment with which the agent was started.
        sent: The environment of the job script.
        host_variables: As InJob.variables_of_host returns them.
    """

    def of_host(name: str) -> bool:
        return bool(_OF_HOST.fullmatch(name) or (host_variables and host_variables.fullmatch(name)))

    job = {name: text for name, text in sent.items() if not of_host(name)}
    first = {name: text for name, text in own.items() if of_host(name) or name in _OF_HOST_FIRST}
    return {**own, **job, **first}
