"""The launcher, on the first host: allocation, agents, placement, rendezvous, watch, tear-down, verdict.

Modules that it needs only after it has started the agents are imported then: starting agents takes longest.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gridtf import features, wrappers
from gridtf.bootstrap.judge.evidence import BESIDE, EXPLAINS, NOTE, OF_TASKS, STOP, WELL, Evidence
from gridtf.bootstrap.judge.verdict import Verdict, noted
from gridtf.bootstrap.launcher.api import Feature, LauncherView, features_of, starter_of
from gridtf.bootstrap.launcher.contact import Contact, TerminatedBySignal
from gridtf.bootstrap.launcher.ending import AGENT_MARGIN, Ending
from gridtf.bootstrap.launcher.hosts import HostMonitor
from gridtf.bootstrap.launcher.reporter import Reporter
from gridtf.bootstrap.plan.launchedjob import LaunchedJob
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire import messages
from gridtf.bootstrap.wire.recorder import Recorder
from gridtf.bootstrap.wire.stream import Listener
from gridtf.errors import BadHostError, CleanedUpError, GridtfError, PlacementError, RendezvousError, RunDirError
from gridtf.features import Features
from gridtf.host import processes
from gridtf.host.interpreter import isolated
from gridtf.jobspec.spec import JobSpec
from gridtf.run import recordtypes
from gridtf.run.following import CONDITIONS, WAITING
from gridtf.run.rundir import Attempt, Record, make_folder, may_pass, read_record, write_record
from gridtf.schedulers.api import LOOPBACK, AgentCall, Allocation
from gridtf.states import JobState
from gridtf.text import counted, some
from gridtf.values import Fields

if TYPE_CHECKING:
    from gridtf.bootstrap.judge.attempts import Failure, Following
    from gridtf.bootstrap.judge.progress import Progress
    from gridtf.bootstrap.launcher.watch import Watch
    from gridtf.bootstrap.plan.rendezvous import AttemptPlan, Rendezvous
    from gridtf.host.gpus import GpuGrant

_MOST_REPORT = 2.0  # seconds within which most hosts report; a host that is later may wait for something
_CHECK_PAUSE = 10.0  # seconds between two checks whether an agent that is missing has failed
_RENDEZVOUS_STEP = 0.005  # seconds between two looks at the rendezvous file, before which the job cannot go on
_WRITE_LIMIT = 60.0  # seconds in which the run directory may become writable again, lest the cause is lost
_CLEANING_UP = 10.0  # seconds in which a scheduler that cleans up too late may also kill what is started after that


def launch(job: LaunchedJob) -> int:
    """Run the attempts of a job in this process, whose environment the agents inherit.

    Returns:
        The exit code of the job script.
    """
    processes.block_signals(spared=(signal.SIGHUP, signal.SIGINT))  # nohup and background jobs ignore these on purpose
    processes.become_subreaper()
    return supervise(Launcher(job))


def supervise(attempt: Launcher) -> int:
    """Run attempts until one succeeds, or no other one may follow it.

    Args:
        attempt: The first one.

    Returns:
        The exit code of the job script.
    """
    while True:
        end, following = attempt.execute(), None
        if attempt.restarts:
            end, following = attempt.follow(end)
        code = attempt.conclude(end)
        if following is None:
            return code
        attempt = following


_Made = TypeVar("_Made")


class Launcher(Fields):
    """One attempt, from the allocation to the verdict.

    Attributes:
        job: The job.
        listener_of: Makes the launcher's end of the streams to its agents.
        recorder_of: Makes what writes its records.
        following: How this attempt follows another one; None: it is the first one.
        allocation: The allocation of the job; None before it is known.
        before: The features of that one.
    """

    job: LaunchedJob
    listener_of: Callable[[bytes, System], Listener] = Listener
    recorder_of: Callable[[System], Recorder] = Recorder
    following: Following | None = None
    allocation: Allocation | None = None
    before: Sequence[Feature] = ()

    def __post_init__(self) -> None:
        job, system = self.job, self.job.system
        self.attempt = job.run.new_attempt()
        self.nonce = os.urandom(8).hex()
        self.recorder = self.recorder_of(system)
        system.log_with(self.recorder.log)
        self._secret = os.urandom(32)
        self.listener = self.listener_of(self._secret, system)
        self.hosts = HostMonitor(self.attempt, self.listener, job.spec.heartbeat_timeout, self._pause, system)
        first = self.following.why if self.following else "learning the allocation"
        self.reporter = Reporter(job, self.attempt, self.nonce, self.recorder, self.hosts, first)
        self.view = LauncherView(job, self.attempt, self.hosts, self.reporter)
        self.features = Features[Feature](system.log, TerminatedBySignal)
        self.contact = Contact(self.view, self.features)
        self.view.wait = lambda seconds: self._pause(min(seconds, self.contact.longest))
        self.view.replaceable = self._replaceable
        self.starter = starter_of(self.view)
        self.listener.kinds.update(self.starter.hears)
        self.hosts.heard.update(dict.fromkeys(self.starter.hears, self.starter.heard))
        self.ending = Ending(self.view, self.contact, self.starter, self.features)
        self._watch: Watch | None = None
        self._loaded: set[str] = set()  # moments whose features are there
        self._told = False  # the verdict, to the log and the events
        self._others: tuple[str, ...] = ()  # the jobs that this one waits for, before its scheduler starts it again
        self._history = self.following.history if self.following else None  # None before the allocation is known
        if self.before:  # their processes may still run
            self._load_features()

    def execute(self) -> Verdict:
        """Run the attempt to its end, with no process left.

        Returns:
            The verdict, which conclude writes.
        """
        try:
            self.attempt.reserve_verdict()
            known = self._run()
        except Exception as error:  # after any, the tasks are ended and a verdict is written
            self.ending.error = None if isinstance(error, TerminatedBySignal) else error
            known = self.ending.interrupted(error)
        if self._watch is not None:
            self._watch.end()
        end = self.ending.tear_down(known)
        if end.state == JobState.SAVED:
            from gridtf.bootstrap.judge import walltime

            try:
                end = walltime.goes_on(end, self.attempt, self.job, self.hosts.reports.tasks)
            except Exception as error:  # a verdict is written in any case
                end = walltime.not_again(end, error, self.job.job_id)
        return end

    @property
    def restarts(self) -> int:
        """How often attempts may follow others in this allocation: as in JobSpec; once in any case after the scheduler
        has cleaned up too late, which is no failure of the job's."""
        return max(self.job.spec.restarts, int(isinstance(self.ending.error, CleanedUpError)))

    def follow(self, end: Verdict) -> tuple[Verdict, Launcher | None]:
        """Decide whether another attempt follows, and prepare it.

        Args:
            end: The verdict on this attempt.

        Returns:
            The verdict with what was decided; and the attempt, None where there is none.
        """
        from gridtf.bootstrap.judge import attempts

        history = self._history or attempts.History()
        again: Following | str = ""
        if self.allocation is not None and not self.ending.orphaned:
            about = self.restarts, self.allocation.hosts, self.job.request, self.job.here
            again = attempts.following(self._failure(end), history, *about)
        if isinstance(again, str):
            done = f"after {counted(history.restarts, 'restart')}" if history.restarts else ""
            return noted(end, Evidence(BESIDE, again or done)), None
        if isinstance(self.ending.error, CleanedUpError):
            again = again.replace(pause=max(again.pause, _CLEANING_UP))
        number = self.attempt.number + 1
        told = attempts.followed(end, number)
        self._tell(told)  # those who follow the job show what they find from its folder on as the next attempt's
        try:
            seen = {"following": again, "allocation": self.allocation, "before": [*self.features]}
            following = self._patiently(self.replace, **seen)
        except GridtfError as error:
            self._told = False
            return noted(end, Evidence(BESIDE, f"not restarted, since {error.what}")), None
        following.reporter.record()  # one that is stopped from now on is seen to be silent
        return told, following

    def _failure(self, end: Verdict) -> Failure:
        """What this attempt leaves to decide upon."""
        from gridtf.bootstrap.judge import attempts

        spec, cause = self.job.spec, end.cause or {}
        name = cause.get("task") or ""
        limit = spec.kill_grace + AGENT_MARGIN + spec.heartbeat_timeout
        return attempts.Failure(
            verdict=end,
            in_vain=attempts.in_vain(
                self.ending.error,
                self.hosts.reports.tasks.get(name, {}),
                spec.task(name.partition(":")[0]).on_failure,
                final=self.ending.final,
            ),
            host=cause.get("host"),
            left={host: max(0.0, limit - silence) for host, silence in self.hosts.left().items()},
            reached=self._progress(),
            alone=self.hosts.alone(self.job.here),
            bad=self.ending.error.hosts if isinstance(self.ending.error, BadHostError) else (),
        )

    def conclude(self, end: Verdict) -> int:
        """Write the verdict.

        Args:
            end: The verdict.

        Returns:
            The exit code of the job script.
        """
        if not self._told:
            self._tell(end)  # whoever has waited for the verdict finds the events
        try:
            self._patiently(self._write, end)
        except GridtfError as error:
            self.job.system.log(str(error))
            self.reporter.settle()
            self._finish(end)
            return end.exit_code or 1
        self.reporter.report("ended", end.summary)
        self.reporter.settle()
        self._finish(end)
        self.listener.close()
        if self.ending.orphaned:
            self.ending.cancel()
        elif end.again and (end.state == JobState.SAVED or self._others):
            return self._start_again(end)
        return end.exit_code

    def _finish(self, end: Verdict) -> None:
        """Tell features the verdict."""
        try:
            self._load_features()  # it may have ended early
        except Exception as error:  # the verdict is written
            self.job.system.log(f"what is to follow the end of the job cannot be loaded: {error}")
        self.features.tell(lambda one: one.concluded(end), also_off=True)

    def _write(self, end: Verdict) -> None:
        self.attempt.write_verdict(end.record(self.nonce, self.reporter.started, self.job.system.time()))

    def _tell(self, end: Verdict) -> None:
        """Write the verdict to the log and to the events."""
        self._told = True
        self.job.system.log(end.text())
        more = {"task": end.cause["task"]} if end.cause and end.cause["task"] else {}
        more |= {"next": end.next} if end.next else {}
        self.reporter.note("verdict", state=end.state, text=end.summary, **more)
        self.reporter.journal.end()
        self.reporter.settle()

    def _patiently(self, write: Callable[..., _Made], *arguments: Any, **named: Any) -> _Made:
        """Make something in the run directory, as soon as that can be written.

        Raises:
            RunDirError: It cannot, for a minute.
        """
        deadline = self.job.system.monotonic() + _WRITE_LIMIT
        while True:
            try:
                return write(*arguments, **named)
            except RunDirError:
                if self.job.system.monotonic() >= deadline:
                    raise
                self.job.system.sleep(1.0)

    def _start_again(self, end: Verdict) -> int:
        """Have the scheduler start this job again; it may end this process at once. Returns the exit code."""
        injob, environ = self.job.scheduler.injob, self.job.system.environ
        try:
            code = injob.start_after(environ, self._others) if self._others else injob.start_again(environ)
            return code or end.exit_code
        except GridtfError as error:
            from gridtf.bootstrap.judge import walltime

            end = walltime.not_again(end, error, self.job.job_id)
            self.job.system.log(end.text())
            with contextlib.suppress(GridtfError):
                self._write(end)
            self._finish(end)
            return end.exit_code

    # --- from the allocation to the end of the tasks

    def _pause(self, seconds: float) -> None:
        self.contact.pause(seconds)

    def _run(self) -> Evidence:
        """Run the attempt. Returns what has ended it, as Watch.until_the_end does."""
        from gridtf.host.mounts import SHARED_HINT, not_shared

        processes.need_open_files(0)
        self.reporter.record()
        if self.attempt.number == 1:
            self._note_queued()
        if (end := self._wait_for_others()) is not None:
            return end
        allocation = self._allocate()
        self.reporter.note("allocated", hosts=[host.name for host in allocation.hosts])
        others = any(host.address != LOOPBACK for host in allocation.hosts[1:])
        if others and (why := not_shared(self.job.run.path)):
            raise RunDirError(f"{self.job.run.path} cannot be seen by other hosts", why=why, hint=SHARED_HINT)
        self._start_agents(allocation)
        plan = self._place(allocation)
        self.view.plan = plan
        self.job.system.collect_garbage()  # all modules are loaded; an agent that was forked turns it on itself
        for host in self.hosts.hosts:
            self.listener.send(host, messages.PLAN, plan.of_host(host).to_record())
        plan.write()
        make_folder(self.job.run.output)
        self._note_packages(plan)
        count = counted(len(allocation.hosts), "host")
        self.reporter.report("waiting", f"waiting for {count}")
        notes = self._gather(plan, allocation)
        started = f"{counted(len(plan.tasks), 'task')} on {count}"
        if self.following is not None:
            started = f"{started}; {self.following.why}"
        self.reporter.report("running", started)
        from gridtf.bootstrap.launcher.watch import Watch

        self._load_features(features.TASKS)
        self._watch = Watch(self.view, self.contact, self.starter, self.features, (started, *notes))
        self.hosts.listen()
        _preload()
        return self._watch.until_the_end()

    def _note_packages(self, plan: AttemptPlan) -> None:
        """Write which Python the tasks run, and what is installed for it, as this host has it; agents start meanwhile.

        A Python that differs from that of the first task type in nothing is not repeated.
        """
        from gridtf.bootstrap.plan import environment

        pythons: dict[str, Mapping[str, object]] = {}
        for task in {task.type: task for task in plan.tasks}.values():
            env = {**self.job.system.environ, **plan.spec.env, **plan.spec.task(task.type).env}
            found = self.job.system.packages(environment.program(plan, task), env, plan.cwd)
            if found is not None and found not in pythons.values():
                pythons[task.type] = found
        if pythons:
            text = json.dumps({"nonce": self.nonce, "pythons": pythons}, indent=1)
            self.recorder.write(self.attempt.packages, f"{text}\n")

    def _wait_for_others(self) -> Evidence | None:
        """Wait until this job may start. Returns its end where that can never be, or not yet in this allocation."""
        job = self.job
        if not any(getattr(job.spec, key) for key in CONDITIONS):
            return None
        from gridtf.bootstrap.judge.conditions import Conditions

        waited = job.scheduler.name == "local"
        conditions, told = Conditions(job.run, job.spec, job.scheduler, job.system.monotonic, waited=waited), ""
        while (now := conditions.look()).why:
            if now.ids and not job.scheduler.injob.why_not_again(job.system.environ):
                self._others = now.ids
                early = f"started too early: it waits further, {now.why}"
                return Evidence(STOP, early, state=JobState.CANCELLED, again=True)
            if told != now.why:
                job.system.log(f"waiting, {now.why}")
                told = now.why
            self.reporter.report(WAITING, now.why)
            self._pause(conditions.pause)
        return now.never

    def _note_queued(self) -> None:
        """Note when the job was submitted, by the clock of the host where that was done."""
        with contextlib.suppress(GridtfError):
            submitted = read_record(self.job.run.submitted, recordtypes.Submitted, own=True)
            if submitted and "time" in submitted:
                self.reporter.note("queued", time=submitted["time"])

    def _allocate(self) -> Allocation:
        """The hosts of this attempt."""
        job = self.job
        if self.allocation is None:
            self.allocation = job.scheduler.injob.allocation(job.system.environ, job.request, self._wait)
        if self.following is None and not job.spec.restarts:
            return self.allocation
        from gridtf.bootstrap.judge import attempts

        if self.following is None:
            self._history = attempts.History(reached=self._progress())
            hosts = attempts.choose(self.allocation.hosts, job.request, self._history)
            if isinstance(hosts, str):
                raise PlacementError(hosts)
            return self.allocation.replace(hosts=hosts)
        where = some([host.name for host in self.following.hosts])
        job.system.log(f"attempt {self.attempt.number} on {where}: {self.following.why}")
        for left in job.system.within(self.following.pause):
            self.reporter.report("allocating", self.following.why)
            self._pause(min(left, self.contact.longest))
        return self.allocation.replace(hosts=self.following.hosts)

    def _wait(self, why: str, seconds: float) -> None:
        """Wait for the allocation."""
        self.reporter.waiting(why)
        self._pause(seconds)

    def _progress(self) -> Progress:
        """How far the job has come."""
        from gridtf.bootstrap.judge import progress

        return progress.reached(progress.output_dir(self.job.run, self.job.spec), self.hosts.reports.tasks)

    def _start_agents(self, allocation: Allocation) -> None:
        job, hosts = self.job, [host.name for host in allocation.hosts]
        processes.need_open_files(3 * len(hosts))  # a process, its pipe and the agent's connection, each
        self._open(allocation)
        self.listener.expected = len(hosts)
        call = agent_call(self.attempt, self.nonce, job.spec, self.listener, restarted=self.following is not None)
        self.hosts.agents = job.scheduler.injob.start_agents(allocation, call, job.system.environ)
        self.hosts.hosts = hosts
        self._load_features()
        self.contact.tell_agents()

    def _load_features(self, when: str = features.START) -> None:
        """Import the features of a moment that the job wants, once."""
        if when in self._loaded:
            return
        self._loaded.add(when)
        found = features_of(self.view, when, self.before)
        self.features.add(found)
        for one in found:
            self.listener.kinds.update(one.hears)
            self.hosts.heard.update(dict.fromkeys(one.hears, partial(self._hear, one)))

    def _hear(self, one: Feature, host: str, content: Record) -> None:
        self.features.call(one, lambda: one.heard(host, content))

    def _open(self, allocation: Allocation) -> None:
        """Write where agents find the launcher, and the secret by which both sides know each other."""
        addresses = launcher_addresses(allocation, self.job.here, self.job.system.host)
        record = {
            "nonce": self.nonce,
            "addresses": addresses,
            "port": self.listener.port,
            "secret": self._secret.hex(),
        }
        write_record(self.attempt.listener, record, mode=0o600)

    def _place(self, allocation: Allocation) -> AttemptPlan:
        from gridtf.bootstrap.plan.placement import place
        from gridtf.bootstrap.plan.rendezvous import AttemptPlan

        spec = self.job.spec
        return AttemptPlan(
            attempt=self.attempt,
            nonce=self.nonce,
            job_id=self.job.job_id,
            spec=spec,
            request=self.job.request,
            hosts={host.name: host.address or host.name for host in allocation.hosts},
            tasks=place(allocation, self.job.request),
            python=wrappers.python(spec) or sys.executable,
            cwd=Path.cwd(),
            key=os.urandom(32).hex(),
        )

    def _gather(self, plan: AttemptPlan, allocation: Allocation) -> tuple[str, ...]:
        """Wait until every host has reported its ports, then write the rendezvous file and tell the agents.

        Args:
            plan: The plan of the attempt.
            allocation: Its hosts.

        Returns:
            Which GPUs no task uses, and how the hosts' versions of TensorFlow differ; both may be empty.
        """
        from gridtf.bootstrap.plan import addresses, environment, placement, rendezvous, versions

        self._wait_for_hosts(plan)
        published = self.hosts.reports.published
        addresses.check(sorted(published.items()))
        self.reporter.note("rendezvous")
        differing, in_use = versions.differing(plan.tasks, published), self.hosts.reports.gpus_in_use()
        self.ending.known = [Evidence(EXPLAINS, differing, on=OF_TASKS), Evidence(EXPLAINS, in_use, on=OF_TASKS)]
        # else the job has them since it has its hosts for itself
        wanted = 0 not in (plan.request.chosen("gpus_per_node"), plan.request.chosen("gpus_per_task"))
        idle = placement.idle_gpus(allocation.hosts, plan.tasks) if wanted else ""
        self.ending.known += [Evidence(NOTE, idle, on=WELL)] if idle else []
        notes = (idle, placement.ALL_GPUS), (differing, versions.ONE_VERSION), (in_use, "")
        for what, hint in notes:
            if what:
                self.reporter.notice(what, hint)
        self.features.tell(lambda one: one.met())
        cluster = rendezvous.merge(plan.tasks, published)
        environment.need_room(plan, cluster)
        self._publish(rendezvous.text_of(self.attempt, plan.job_id, self.nonce, cluster), cluster)
        return idle, differing

    def _replaceable(self, hosts: Sequence[str]) -> Sequence[str]:
        """Those of some hosts that spare ones can replace."""
        from gridtf.bootstrap.judge import attempts

        assert self.allocation is not None
        about = self.allocation.hosts, self.job.request, self._history or attempts.History()
        return attempts.replaceable(hosts, *about)

    def _wait_for_hosts(self, plan: AttemptPlan) -> None:
        begin, checked, told = self.job.system.monotonic(), 0.0, self.hosts.reports.waits.copy()
        while True:
            self.hosts.read()
            missing = [host for host in plan.hosts if host not in self.hosts.reports.published]
            if not missing:
                return
            self.hosts.check()
            if features.take_time(plan.spec) and told != self.hosts.reports.waits:  # there is progress
                begin, checked, told = self.job.system.monotonic(), 0.0, self.hosts.reports.waits.copy()
            waited = self.job.system.monotonic() - begin
            if waited > plan.spec.start_timeout:
                raise _missing(plan, missing)
            if waited - checked > _CHECK_PAUSE:
                checked = waited
                self.hosts.check_starts()
            if waited > _MOST_REPORT:
                waits = self.hosts.reports.waits
                missing = [f"{host} ({waits[host]})" if host in waits else host for host in missing]
            reported = f"{len(plan.hosts) - len(missing)} of {counted(len(plan.hosts), 'host')}"
            self.reporter.report("waiting", f"rendezvous: {reported}, waiting for {some(missing)}")
            self._pause(self.contact.longest)

    def _publish(self, text: str, cluster: Rendezvous) -> None:
        """Write the rendezvous file, which tasks read, then tell the agents, which start them."""
        path, begin = self.attempt.rendezvous, self.job.system.monotonic()
        self.recorder.write(path, text)
        while not self.recorder.settle(_RENDEZVOUS_STEP):
            error = self.recorder.errors.get(path)
            if error is not None and not may_pass(error):
                raise error
            if self.job.system.monotonic() - begin > self.job.spec.start_timeout:
                raise error or RunDirError(f"cannot write {path}: the file system does not respond")
            self.hosts.read()
            self.hosts.check()
            self._pause(_RENDEZVOUS_STEP)
        self.listener.send_all(messages.RENDEZVOUS, cluster.to_record())
        self.starter.met()


def _preload() -> None:
    """Import what the end of the attempt needs while all is well: a file system may not respond then."""
    from gridtf.bootstrap.agent import agent, supervisor  # noqa: F401


def _missing(plan: AttemptPlan, hosts: list[str]) -> RendezvousError:
    tasks = [task.name for task in plan.tasks if task.host in hosts]
    return RendezvousError(
        f"no report from {counted(len(hosts), 'host')} after {plan.spec.start_timeout:g} s: {some(hosts)}",
        why=f"their tasks: {some(tasks, most=32)}",
        hint="can those hosts start processes and see the run directory? --start-timeout allows more time",
    )


def launcher_addresses(allocation: Allocation, here: str, nodename: str) -> list[str]:
    """The addresses by which agents may reach the launcher, the best first.

    Args:
        allocation: The hosts of the job.
        here: The scheduler's name of the launcher's host.
        nodename: That host's own name.
    """
    if all(host.address == LOOPBACK for host in allocation.hosts):
        return [LOOPBACK]
    from gridtf.bootstrap.plan.addresses import of_this_host
    from gridtf.host.names import same_host
    from gridtf.host.network import is_loopback

    known = [host.address or host.name for host in allocation.hosts if same_host(host.name, here)]
    own = [address for address in of_this_host(nodename) if not is_loopback(address)]
    return list(dict.fromkeys([*known, *own]))


# --- how an agent is called

# sys.path is copied from the launcher, which is faster than site's search; no garbage collection while modules load.
# One line: Grid Engine 6.2 and Open Cluster Scheduler hand a newline on to the other host as the two characters \\n.
_AGENT_SUPERVISOR = (
    "import gc, sys; gc.disable(); sys.path[:] = {path!r}; "
    "from gridtf.bootstrap.agent.node import supervise_agent; sys.exit(supervise_agent(sys.argv[1:]))"
)


def agent_call(
    attempt: Attempt, nonce: str, spec: JobSpec, listener: Listener, *, restarted: bool = False
) -> AgentCall:
    """Describe how a scheduler starts the agents of an attempt: forked from this process, or as new processes.

    Args:
        nonce: Its nonce.
        listener: The launcher's end of the streams, which an agent that was forked closes.
        restarted: Whether agents of another attempt were started before in this allocation.
    """

    def main(arguments: Sequence[str], gpus: GpuGrant | None = None, /) -> int:
        from gridtf.bootstrap.agent import agent

        listener.close()
        return agent.main(arguments, gpus)

    return AgentCall(
        arguments=(str(attempt.run.path), str(attempt.number), nonce, str(spec.start_timeout)),
        main=main,
        command=tuple(isolated(sys.executable, "-c", _AGENT_SUPERVISOR.format(path=sys.path))),
        log=attempt.agents_log,
        outlives=bool(spec.restarts),
        restarted=restarted,
    )
