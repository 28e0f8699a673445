"""The start of the tasks of a host: GPUs are claimed, ports reserved and published, the rendezvous is awaited."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf import __version__, features, schedulers
from gridtf.bootstrap.agent import local_dir
from gridtf.bootstrap.agent.api import AgentView, Feature, Starter, Wrapper, features_of, starter_of, wrappers_of
from gridtf.bootstrap.agent.supervisor import InPlace, Program
from gridtf.bootstrap.plan import addresses, environment, rendezvous, versions
from gridtf.bootstrap.plan.placement import PlacedTask, share_gpus
from gridtf.bootstrap.plan.rendezvous import PortHolder, Rendezvous
from gridtf.bootstrap.wire import messages
from gridtf.errors import GridtfError, RunDirError
from gridtf.host import processes
from gridtf.jobspec.tasktypes import CLIENT, SERVICE
from gridtf.schedulers.api import GpuNeed

if TYPE_CHECKING:
    from gridtf.features import Features
    from gridtf.host.gpus import GpuGrant

_GPU_MEMORY = 60.0  # seconds for the driver to free the memory of GPUs that an earlier attempt has used
_MORE_FILES = 4  # that a feature may open
_MOST_FILES = 8  # in shared memory that are named


class Start:
    """What this host needs for its tasks.

    Args:
        view: This host.
        its: The features of the job.

    Attributes:
        starter: What starts the tasks.
        gpus: The GPUs of this host; none before they are claimed.
    """

    def __init__(self, view: AgentView, its: Features[Feature]) -> None:
        self._view, self._features, self._plan, self._scheduler = view, its, view.plan, view.scheduler
        self._state, self._conversation, self._system = view.state, view.conversation, view.system
        self._mine = view.mine
        self._wrappers: Sequence[Wrapper] = ()
        self._grant: GpuGrant | None = None
        self._installed: dict[str, str] = {}  # task -> the version of TensorFlow in its Python, where that is known
        self._ports: dict[str, int] = {}  # of the tasks
        self._shares: Mapping[str, Sequence[str]] = {}  # the GPUs of the tasks
        self._before: set[str] | None = None  # files in shared memory before the tasks started
        self._in_use: dict[str, int] = {}  # GPU -> MiB of its memory, before the tasks started
        self.starter = Starter(view)

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(self._grant.gpus) if self._grant else ()

    def run(self, holder: PortHolder, gpus: GpuGrant | None) -> None:
        """Start the tasks, when all hosts have reported.

        Args:
            holder: Holds the ports of this host.
            gpus: The GPUs of this host; None: the scheduler's gpu_grant determines them.

        Raises:
            GridtfError: They cannot be started.
            Stopped: The agent is stopped meanwhile.
        """
        host, mine = self._state.host, self._mine
        self.starter, self._wrappers = starter_of(self._view), wrappers_of(self._view)
        self._conversation.expect(self.starter.hears)
        self._expect(features_of(self._view, features.START))
        try:
            self._prepare()
        except OSError as error:
            raise GridtfError(f"host {host} cannot be prepared: {error}", hint="is a disk full there?") from None
        for wrapper in self._wrappers:
            wrapper.prepare()
        self._grant = grant = gpus or self._claim_gpus()
        self._conversation.ignored = self._scheduler.injob.warnings
        self._in_use = self._look_at_gpu_memory(grant)
        self._state.waits = ""
        processes.need_open_files(len(mine) + 1 + _MORE_FILES)  # a port each, and MASTER_PORT
        self.starter.open()
        self._view.environ = schedulers.without_place(grant.environment(self._system.environ), self._scheduler)
        self._view.wrapped = self._wrapped
        self._shares = share_gpus(host, mine, grant.gpus)
        self._installed = self._find_tensorflow(grant)
        master_port = self._publish(holder)
        found = features_of(self._view, features.TASKS)
        cluster = self._wait_for_rendezvous()
        holder.release(master_port)  # programs that are not TensorFlow do not share ports
        for task in mine:
            if self._releases(task):
                holder.release(self._ports[task.name])
        self._features.tell(lambda one: one.look())
        self._expect(found)
        self._before = set(self._system.shared_memory())
        self._start_tasks(cluster, grant)

    def leftovers(self, survivors: Sequence[int]) -> list[str]:
        """What the tasks have left behind on this host, one line each.

        Args:
            survivors: The ids of processes that could not be ended.
        """
        found = [f"processes that survived SIGKILL: {', '.join(map(str, survivors))}"] if survivors else []
        if self._ports:
            held = self._system.listening(self._ports.values(), self._state.supervisor.gates)
            found += [f"the port of {name}, {port}" for name, port in self._ports.items() if port in held]
        if self._before is not None:
            files = self._system.shared_memory()
            unused = self.starter.remove_own(self._system.unused(files.keys() - self._before))
            # no file says which process has made it, and another job of this user may have been here meanwhile
            whose = "of memory, made by this or another job of yours"
            found += [f"{path} ({files[path] >> 20} MiB {whose})" for path in sorted(unused)][:_MOST_FILES]
        if self.gpus:
            in_use = self._system.gpu_memory(self.gpus).items()
            found += _in_use({gpu: mib for gpu, mib in in_use if mib > self._in_use.get(gpu, 0)})
        if self._grant and self.gpus and survivors and self._grant.descriptors:
            found.append(f"claims of GPUs {', '.join(self.gpus)}")
        return found

    def _expect(self, found: Sequence[Feature]) -> None:
        """Have these features as well."""
        self._features.add(found)
        for one in found:
            self._conversation.expect(one.hears)

    def _prepare(self) -> None:
        """Have features prepare this host."""
        for prepared in self._features.each(lambda one: one.prepare()):
            self._view.folders = (*self._view.folders, *prepared.folders)
            prepared.set_in(self._system.environ)

    # --- GPUs

    def _claim_gpus(self) -> GpuGrant:
        plan = self._plan
        owner, patience = f"{plan.spec.title}, job {plan.job_id}", rendezvous.GPU_SHARE * plan.spec.start_timeout
        need = GpuNeed(sum(task.gpus for task in self._mine), owner, patience)
        return self._scheduler.injob.gpu_grant(self._system.environ, plan.request, need, self._wait_for_gpus)

    def _wait_for_gpus(self, why: str, seconds: float) -> None:
        if why != self._state.waits:
            self._state.log(why)
            self._view.waits_for(why)
        for _ in self._view.listening(seconds):
            pass

    def _look_at_gpu_memory(self, grant: GpuGrant) -> dict[str, int]:
        """GPU -> MiB in use. After an attempt, the driver may take a while to free what its processes had."""
        deadline = self._system.monotonic() + (_GPU_MEMORY if self._plan.attempt.number > 1 else 0.0)
        while used := self._system.gpu_memory(grant.gpus):
            if self._system.monotonic() >= deadline:
                break
            self._wait_for_gpus("; ".join(_in_use(used)), 1.0)
        return used

    # --- the rendezvous

    def _publish(self, holder: PortHolder) -> int:
        """Tell the launcher the ports of this host.

        Returns:
            MASTER_PORT: 0 where the task of rank 0 is on another host.
        """
        plan, host, mine = self._plan, self._state.host, self._mine
        self._ports = self._view.ports = {task.name: holder.reserve() for task in mine}
        master_port = holder.reserve() if any(task.rank == 0 for task in mine) else 0
        servers = [task for task in mine if not self._shares_no_port(task)]
        kept = [self._ports[task.name] for task in servers if not self._releases(task)]
        held, released = holder.held(kept), len(kept) < len(servers)
        own = [*self._features.each(lambda one: one.published(held, released=released))]
        self._state.supervisor.gates = frozenset().union(*(each.gates for each in own))
        record = {
            "host": host,
            "hostname": socket.gethostname(),
            **addresses.published(plan.spec, host, plan.hosts.get(host, host)),
            "pid": self._system.pid,
            "ports": self._ports,
            "master_port": master_port,
            "gpus": self._shares,
            **({"gpus_in_use": self._in_use} if self._in_use else {}),
            "versions": {"gridtf": __version__, "python": sys.version.split()[0]},
            "tensorflow": self._installed,
        }
        for each in own:
            record |= each.record
        self._conversation.send(messages.HOST, record)
        return master_port

    def _find_tensorflow(self, grant: GpuGrant) -> dict[str, str]:
        """Task -> the version of TensorFlow that its Python has, where that is known; empty: none."""
        plan, base = self._plan, grant.environment(self._system.environ)
        found: dict[str, str | None] = {}  # type -> version: its tasks have the same command
        for task in self._mine:
            if task.type not in found:
                env = {**base, **plan.spec.env, **plan.spec.task(task.type).env}
                program = environment.program(plan, task)
                found[task.type] = self._system.tensorflow_version(program, env, plan.cwd)
        return {task.name: version for task in self._mine if (version := found[task.type]) is not None}

    def _releases(self, task: PlacedTask) -> bool:
        """Whether the port of a task is free when it starts."""
        old = versions.releases_port(self._plan.spec.ports, self._installed.get(task.name))
        return old or self._shares_no_port(task)

    def _shares_no_port(self, task: PlacedTask) -> bool:
        """Whether it has a program that is no server of TensorFlow's, such as a web server."""
        return self._plan.spec.ports == "auto" and task.kind in (SERVICE, CLIENT)

    def _wait_for_rendezvous(self) -> Rendezvous:
        """Wait for the other hosts. Only the launcher sees how long these may take, and ends the wait; or is silent."""
        talk = self._conversation
        for _ in talk.waiting(float("inf")):
            talk.listen()
            if talk.rendezvous is not None:
                break
            self._features.tell(lambda one: one.look())
            talk.report()
        return rendezvous.rendezvous_of(talk.rendezvous or {})

    # --- the tasks

    def _start_tasks(self, cluster: Rendezvous, grant: GpuGrant) -> None:
        plan, folder, supervisor = self._plan, self._state.local_dir, self._state.supervisor
        # Grid Engine may bind a job to fewer cores than it has slots, without a word of it in PE_HOSTFILE
        usable = len(os.sched_getaffinity(0))
        mine = [task.replace(cpus=task.cpus and min(task.cpus, usable)) for task in self._mine]
        package = self._package(mine)
        hook = local_dir.add_hook(folder) if folder and plan.spec.hook else None
        base = self._view.environ
        for wrapper in self._wrappers:
            supervisor.output = wrapper.output() or supervisor.output
        self.starter.form(base, cluster)
        for task in mine:
            env = environment.task_environment(base, plan, task, cluster, self._shares[task.name], folder, hook)
            chosen = plan.spec.task(task.type).on_failure is not None
            program = Program(
                argv=environment.command(plan, task, cluster, environment.HOME, package),
                env=env,
                cwd=plan.cwd,
                log=plan.attempt.task_log(task.type, task.index),
                # it holds the locks on its GPUs even when the agent is killed
                keep=grant.descriptors,
                ignored=self._conversation.ignored,
                in_place=InPlace(plan.spec.in_place(task.type), self._ports[task.name], by_signal_only=not chosen),
                own=partial(environment.own_variables, plan, task, cluster),
            )
            supervisor.start(task.name, self.starter.placed(task, self._wrapped(task, program)))
            self.starter.started(task)
        self._conversation.report(now=True)

    def _wrapped(self, task: PlacedTask, program: Program) -> Program:
        """What is run in the place of a program of a task, or of the check of its host."""
        for wrapper in self._wrappers:
            program = wrapper.wrapped(task, program)
        return program

    def _package(self, mine: Sequence[PlacedTask]) -> Path:
        """The folder from which tasks that run gridtf import it."""
        plan, folder = self._plan, self._state.local_dir
        if not any(environment.runs_gridtf(plan, task) for task in mine):
            return Path()
        if folder is None and not local_dir.is_safe(plan.attempt.path):
            raise RunDirError(
                f"no folder for Python modules can be made in /tmp on host {self._state.host}",
                why="other users may rename folders above the run directory, which would do as well",
                hint="is that disk full? otherwise choose a run root of yours alone with --run-root",
            )
        return environment.package_folder(folder or plan.attempt.path / "python" / self._state.host)


def _in_use(memory: Mapping[str, int]) -> list[str]:
    """A line for each GPU. memory: GPU -> MiB."""
    return [f"GPU {gpu} has {mib} MiB in use" for gpu, mib in memory.items()]
