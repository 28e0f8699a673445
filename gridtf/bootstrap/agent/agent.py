"""The agent of a host: the tasks are started, watched, and torn down, and the launcher is told of it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from gridtf import schedulers
from gridtf.bootstrap.agent import local_dir
from gridtf.bootstrap.agent.api import AgentView, Feature
from gridtf.bootstrap.agent.conversation import Conversation
from gridtf.bootstrap.agent.exits import (
    BROKEN,
    EXITS,
    LEFTOVERS,
    NO_LAUNCHER,
    NO_WRITE,
    ORPHANED,
    NoLauncherError,
    NoRunDirError,
    Stopped,
)
from gridtf.bootstrap.agent.hoststate import HostState
from gridtf.bootstrap.agent.rescue import Rescue
from gridtf.bootstrap.agent.sampler import Sampler, sample_interval
from gridtf.bootstrap.agent.savesignal import SaveSignal
from gridtf.bootstrap.agent.start import Start
from gridtf.bootstrap.agent.supervisor import Supervisor
from gridtf.bootstrap.plan import environment, rendezvous
from gridtf.bootstrap.plan.rendezvous import AttemptPlan, PortHolder
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire.recorder import Recorder
from gridtf.bootstrap.wire.stream import Link, link_of
from gridtf.errors import GridtfError, RunDirError
from gridtf.features import Features
from gridtf.host import processes
from gridtf.host.gpus import GpuGrant
from gridtf.run import recordtypes
from gridtf.run.rundir import Attempt, Record, RunDir, is_listed, listdir, read_record
from gridtf.schedulers.agents import NEEDS_ENVIRONMENT, STOP_SIGNAL
from gridtf.schedulers.api import Scheduler
from gridtf.values import Fields

_TO_ALL = 0.1  # seconds within which a signal to all processes of a job has reached all of them on one host
_TO_ALL_BUSY = 1.0  # the same on a busy host, for a task that SIGTERM has ended, which is seldom its own doing
_UNSHARED = 15.0  # seconds within which a host lists the run directory, which was made before the job started
_PARENT_PAUSE = 2.0  # seconds between two looks at what no signal announces, such as the parent's death


def main(arguments: Sequence[str], gpus: GpuGrant | None = None, /) -> int:
    """Run the agent of this host in this process.

    Args:
        arguments: ``HOST RUN_DIR ATTEMPT NONCE START_TIMEOUT``.
        gpus: The GPUs that the launcher has claimed for this host; None: the scheduler's gpu_grant determines them.

    Returns:
        0 or one of EXITS.
    """
    host, run, number, nonce, start_timeout = arguments
    processes.block_signals()
    processes.become_subreaper()
    system = System()
    system.collect_garbage()
    agent = Agent(host, RunDir(run).attempt(int(number)), nonce, float(start_timeout), system)
    return agent.main(gpus)


class Agent(Fields):
    """The life of one agent. Every wait in it has a limit, and ends at once when the job is ended.

    Attributes:
        host: This host, as the allocation calls it.
        attempt: The attempt.
        nonce: Its nonce.
        start_timeout: Seconds to wait for the plan, and for the other hosts.
        system: This host.
        scheduler_of: Returns the scheduler of a name.
        link_of: Makes this agent's end of its stream, from what listener.json holds.
        recorder_of: Makes what writes a record when no launcher is left to hear it.
    """

    host: str
    attempt: Attempt
    nonce: str
    start_timeout: float
    system: System
    scheduler_of: Callable[[str], Scheduler] = schedulers.get
    link_of: Callable[..., Link] = link_of
    recorder_of: Callable[[System], Recorder] = Recorder

    def __post_init__(self) -> None:
        self.state = HostState(self.host, self.system)
        self.conversation = Conversation(self.state, self.system)
        self._parent = self.system.parent()
        self._released = False  # the launcher has stopped this agent
        self._sampler = Sampler(0, (), self.host, self.system)
        self.features = Features[Feature](self.state.log, Stopped)

    def main(self, gpus: GpuGrant | None = None) -> int:
        """Run the tasks of this host to their end; write errors to the log, and tell the launcher if possible.

        Args:
            gpus: As in run.

        Returns:
            0 or one of EXITS.
        """
        try:
            return self.run(gpus)
        except GridtfError as error:
            self.state.log(str(error))
            if isinstance(error, NoRunDirError | NoLauncherError):
                return error.code
            self.state.gone = self._reason(error)
            self.conversation.report(now=True)
            return NO_WRITE if isinstance(error, RunDirError) else BROKEN
        finally:
            self.conversation.end(self.attempt, self.nonce, self.recorder_of)

    def _reason(self, error: GridtfError) -> Record:
        """Why this agent ends, for the launcher."""
        if isinstance(error, NoLauncherError):  # it may only have been suspended, and come back
            return {"what": self._said(NO_LAUNCHER), "why": "", "hint": "", "unheard": True}
        if isinstance(error, RunDirError):
            return {"what": self._said(NO_WRITE), "why": error.what, "hint": error.hint}
        return {"what": error.what, "why": error.why, "hint": error.hint}

    def _said(self, code: int) -> str:
        return f"the agent on host {self.host} {EXITS[code]}"

    def run(self, gpus: GpuGrant | None = None) -> int:
        """Run the tasks of this host to their end.

        Args:
            gpus: The GPUs of this host; None: the scheduler's gpu_grant determines them.

        Returns:
            0, or LEFTOVERS when some processes could not be ended.

        Raises:
            GridtfError: The agent cannot start or go on; its tasks have been torn down.
        """
        talk, state = self.conversation, self.state
        try:
            plan = self._wait_for_plan(self._wait_for_link())
        except Stopped:  # before there was anything to do
            return 0
        scheduler = self.scheduler_of(plan.request.scheduler)
        state.supervisor = Supervisor([task.name for task in plan.on(self.host)], self.system)
        suspended = scheduler.injob.suspended
        talk.expect_signs_of_life(
            plan.host_count, plan.spec.heartbeat_timeout, lambda: bool(suspended(self.system.environ))
        )
        folders = local_dir.places(self.system.environ, self.nonce, self.host)
        state.local_dir = state.supervisor.folder = local_dir.make(folders)
        if (talk.launcher or {}).get("checkpoint"):  # it was requested before this agent had the plan
            talk.request_checkpoint()
        view = AgentView(plan, scheduler, state, talk, self.system)
        start = Start(view, self.features)
        try:
            survivors = self._run_tasks(view, start, gpus)
        finally:
            state.read_notes()
            local_dir.remove(folders)
            talk.report(now=True)
            rescue = Rescue(self.attempt, self.nonce, scheduler, talk, self.system)
            rescue.recover_launcher(released=self._released)
            if plan.spec.restarts and (state.gone or {}).get("unheard") and rescue.launcher_is_elsewhere():
                rescue.give_back(plan.host_count)
        if survivors:
            state.log(f"processes survived SIGKILL: {survivors}")
            return LEFTOVERS
        return 0

    def _run_tasks(self, view: AgentView, start: Start, gpus: GpuGrant | None) -> list[int]:
        """Run the tasks until the agent is stopped. Returns the ids of processes that could not be ended."""
        state, plan, supervisor = self.state, view.plan, self.state.supervisor
        with PortHolder() as holder:
            try:
                start.run(holder, gpus)
                pause = sample_interval(plan.spec.sample_interval, plan.host_count)
                self._sampler = Sampler(pause, start.gpus, self.host, self.system)
                self._supervise(plan, start)
            except Stopped as stopped:
                self._report_signal(stopped.number)
            except GridtfError as error:  # noted before the end is told, so that the launcher learns both at once
                state.gone = self._reason(error)
                raise
            finally:
                self.features.ending = True
                supervisor.kept = kept = view.processes.pids(outlive=True)
                supervisor.spared = self._sampler.pids | view.processes.pids(outlive=False)
                # whatever happened, no process of the job stays
                survivors = supervisor.tear_down(plan.spec.kill_grace, self.conversation.keep_telling)
                self.features.tell(lambda one: one.end(), also_off=True)
                supervisor.kept = ()
                if kept:
                    supervisor.tear_down(0.0, self.conversation.keep_telling)
                self.conversation.send_samples(self._sampler.last(supervisor.tasks.values()))
                state.over = not survivors
                state.left = start.leftovers(survivors)
        return survivors

    # --- before the start

    def _wait_for_link(self) -> Link:
        """Read where the launcher listens, from the run directory: a host that does not see that cannot take part."""
        run, listener = self.attempt.run, self.attempt.listener
        for waited in self.conversation.waiting(self.start_timeout):
            record = None
            if is_listed(listener, run.path):
                record = read_record(listener, recordtypes.Listener, nonce=self.nonce, listed=True, own=True)
            if record is not None:
                needs = bool(self.system.environ.pop(NEEDS_ENVIRONMENT, None))
                self.conversation.link = link = self.link_of(record, self.host, self.system, environment=needs)
                return link
            if waited > _UNSHARED and run.path.name not in listdir(run.path.parent):
                break
        raise NoRunDirError(f"{listener} did not appear on host {self.system.host}")

    def _wait_for_plan(self, link: Link) -> AttemptPlan:
        talk = self.conversation
        for _ in talk.waiting(self.start_timeout):
            talk.hear()
            if talk.plan is not None:
                plan = rendezvous.plan_of(talk.plan, self.attempt)
                if talk.environment is not None:
                    own = self.scheduler_of(plan.request.scheduler).injob.variables_of_host(plan.request)
                    environ = environment.merge_environment(self.system.environ, talk.environment, own)
                    self.system.environ.clear()
                    self.system.environ.update(environ)
                return plan
        raise NoLauncherError(f"no plan from the launcher after {self.start_timeout:.0f} s: {link.refused}")

    # --- while the tasks run

    def _supervise(self, plan: AttemptPlan, start: Start) -> None:
        """Watch the tasks until the launcher, its silence or a signal stops the agent: each of them raises."""
        talk, supervisor = self.conversation, self.state.supervisor
        save_signal = SaveSignal(plan.spec.checkpoint_signal, self.system)
        while True:
            due = [one - self.system.monotonic() for one in self.features.each(lambda one: one.due)]
            number = self.system.wait(max(0.0, min(talk.interval, _PARENT_PAUSE, *due)))
            if processes.is_end(number):
                raise Stopped(number)
            talk.hear()
            if number in processes.PASSED_ON and number not in talk.ignored:
                supervisor.forward(signal.Signals(number))
                if number == signal.SIGUSR1:
                    talk.request_checkpoint()
            changed = supervisor.collect()
            if self.state.checkpoint:
                save_signal.send([task.pid for task in supervisor.running() if task.pid])
            if changed and (ended := supervisor.possibly_terminated()):
                # raises when the signal reaches this agent as well
                for _ in talk.waiting(_TO_ALL_BUSY if any(task.signal for task in ended) else _TO_ALL):
                    pass
            changed |= start.starter.look()
            for found in self.features.each(lambda one: one.look()):
                changed |= supervisor.note(found)
            changed |= supervisor.restart()
            talk.send_samples(self._sampler.look(supervisor.tasks.values()))
            talk.report(now=changed)
            talk.check()

    def _report_signal(self, number: int | None) -> None:
        """Record why a signal ends the agent. Usually the launcher has written the reason; otherwise the scheduler or a
        user ends the whole job, or its part on this host."""
        supervisor = self.state.supervisor
        self._released = number in (None, STOP_SIGNAL)
        supervisor.mark_stopped(self.system.time())  # tasks that end from now on, perhaps by the same hand
        if number is None or (number == STOP_SIGNAL and self.conversation.stop_comes()):
            supervisor.mark_stopped(self.conversation.reported)
            return
        if number in (STOP_SIGNAL, ORPHANED) or self.system.parent() != self._parent:
            what = f"the process that started the agent on host {self.host} was killed"
            hint = "by hand, or by the kernel because memory ran out: see dmesg on that host"
            self.state.gone = {"what": what, "why": "", "hint": hint, "orphaned": True}
        else:
            what = f"the agent on host {self.host} received {processes.signal_name(number)}"
            self.state.gone = {"what": what, "why": "", "hint": "schedulers send it when they end a job"}
            self.state.gone["signal"] = number
        if number == signal.SIGTERM:  # the tasks may have received it as well
            supervisor.mark_stopped()
        self.conversation.report(now=True)
