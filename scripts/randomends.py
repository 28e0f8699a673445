"""Random ends of attempts, for scripts/differential.

It runs in a tree of gridtf, takes the launcher of that, with the hosts, agents and clock of its unit tests, and prints
a line of JSON for each attempt.

    python scripts/randomends.py TREE FIRST LAST [KIND KIND ...]

The kinds are those of ends, in another order than the one in which they outrank each other.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

CLOSED = "Collective ops is aborted by: Socket closed"
STATES = ("TIMEOUT", "PREEMPTED", "CANCELLED", "NODE_FAIL", "FAILED", "OUT_OF_MEMORY", "RUNNING")
_LONGEST = 200.0  # simulated seconds, after which the attempt is interrupted


class End:
    """An attempt that a seed decides, before it begins.

    Args:
        seed: The same one makes the same attempt in each tree.
        folder: For its run directory.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        from tests.unit.bootstrap.test_launcher import Attempt

        self.random = random.Random(seed)
        count = self.random.choice([1, 2, 2, 3, 3])
        hosts = tuple(f"h{number}" for number in range(count))
        self.mpi = self.maybe(0.45)
        spec: dict[str, Any] = {"heartbeat_timeout": 10}
        # what meets seldom otherwise: no task does anything; all succeed, and at the same moment an agent ends; agents
        # end since the launcher was stopped, and the scheduler ends the job; it ends an agent for an earlier start
        self.theme = self.random.choice(["still", "done", "stopped", "cleaned up", *[""] * 16])
        self.evaluator = count > 1 and not self.mpi and self.maybe(0.15)
        if self.mpi:
            spec["mpi"] = "mpirun"
        if self.evaluator:
            spec |= {"tasks": {"worker": {"count": count - 1}, "evaluator": {"count": 1}}, "evaluator_wait": 5}
        if self.theme == "still":
            spec |= {"stall_after": "20s", "on_stall": self.random.choice(["end", "restart"]), "restarts": 1}
        for likely, more in (
            (0.2, {"leader_wait": 4}),
            (0.15, {"success_policy": "chief"}),
            (0.1, {"restarts": 1}),
            (0.15, {"continuations": 2, "checkpoint_before": "1m"}),
        ):
            spec |= more if self.maybe(likely) else {}
        self.attempt = Attempt(folder, hosts, **spec)
        self.attempt.cluster.suspended = lambda environ: False  # type: ignore[method-assign]
        self.hosts = hosts
        self.names = [f"worker:{number}" for number in range(count - self.evaluator)] + ["evaluator:0"] * self.evaluator

    def maybe(self, likely: float) -> bool:
        """Whether something happens."""
        return self.random.random() < likely

    def at(self, *seconds: float) -> Callable[..., None]:
        """Decorates what happens after one of so many seconds."""
        return lambda action: self.attempt.at(self.random.choice(seconds), action)

    def plan(self) -> None:
        """Decide what happens."""
        for host, name in zip(self.hosts, self.names, strict=True):
            self.task(host, name)
        happens = [self.silence, self.closes, self.agent_ends, self.scheduler, self.cancel, self.signal, self.host_ends]
        happens += [self.stall, self.gone] if self.mpi or self.maybe(0.3) else []
        themes = {"done": self.host_ends, "stopped": self.gone, "cleaned up": self.agent_ends}
        if self.theme in themes:
            themes[self.theme]()
        for happening in self.random.sample(happens, self.random.choice([0, 1, 1, 2, 2, 3, 4])):
            happening()
        if self.mpi and self.maybe(0.4):
            self.mpirun_says()
        for host in self.hosts:
            self.attempt.skew[host] = 30.0 if self.maybe(0.05) else 0.0
        if self.maybe(0.2):
            self.attempt.published = self.random.choice([{"gpus_in_use": {"0": 512}}, {"tensorflow": {"x": "2.16"}}])
        self.attempt.system.every(0.5, self.answer_dumps)
        self.attempt.at(_LONGEST, lambda: self.attempt.system.receive(signal.SIGINT))

    # --- what may happen

    def task(self, host: str, name: str) -> None:
        """A task ends, or goes on."""
        attempt, seconds, more = self.attempt, self.random.choice([3, 4, 5, 5, 5.2, 5.5, 6, 7]), dict[str, Any]()
        if self.maybe(0.4):
            more["tensorflow"] = self.random.choice(["loaded", "joined", "alone", "elsewhere"])
        if self.maybe(0.15) and len(attempt.states) > 1:  # with one host nobody looks for that
            more["own_folder"] = "/local/logs"
        if self.mpi and self.maybe(0.4):
            more["abandoned"] = True
        if self.maybe(0.1):
            more["restarts"] = 1
        other, when = self.random.choice(self.names), attempt.system.wall + seconds - 0.3
        kind, _, index = other.partition(":")
        closed = f"{CLOSED} /job:{kind}/replica:0/task:{index}"
        text = closed if self.maybe(0.6) else "bad label 11"
        raised = {"type": "ValueError", "message": text, "place": "train.py:41", "pid": 7, "time": when}
        how: list[tuple[str, dict[str, Any]]] = [
            *[("COMPLETED", {"exit": 0})] * 6,
            *[("FAILED", {"exit": self.random.choice([1, 3, 195, 127, 137])})] * 2,
            ("FAILED", {"signal": self.random.choice(["SIGKILL", "SIGABRT", "SIGSEGV"]), "oom": self.maybe(0.3)}),
            *[("FAILED", {"exit": 1, "exception": raised})] * 4,
            *[("SAVED", {"exit": 42})] * 2,
            *[("STOPPED", {})] * 2,
            ("RUNNING", {"exception": raised}),
            *[("RUNNING", {"quiet": attempt.system.wall})] * 3,
        ]
        state, ended = how[-1] if self.theme == "still" else how[0] if self.theme == "done" else self.random.choice(how)
        seconds = 5 if self.theme == "done" else seconds
        if state == "RUNNING":
            attempt.at(seconds, lambda: attempt.states[host].get(name, {}).update(more | ended))
        else:
            attempt.task(host, name, state, seconds, **more, **ended)

    def silence(self) -> None:
        """A host says nothing more."""
        host = self.random.choice(self.hosts)
        self.at(2, 4, 4.5, 6)(lambda: self.attempt.quiet.add(host))

    def closes(self) -> None:
        """The connection of an agent is closed."""
        attempt, host = self.attempt, self.random.choice(self.hosts)

        @self.at(3, 4, 5)
        def _() -> None:
            attempt.quiet.add(host)
            attempt.listener.lost[host] = attempt.system.clock

    def gone(self) -> None:
        """An agent ends by itself, and says why; the launcher may have been stopped for a while before."""
        what: dict[str, Any] = {
            "what": "mpirun, which the ranks need, ended with exit code 255",
            "why": "x",
            "hint": "",
        }
        what |= self.random.choice([{}, {}, {"signal": 15}, {"orphaned": True}, {"unheard": True}])
        stops = what.keys() & {"signal", "unheard"} and self.maybe(0.6)
        if self.theme == "stopped":
            what, stops = what | {"signal": 15}, True
            self.scheduler()
        attempt, host = self.attempt, self.random.choice(self.hosts)

        @self.at(4, 5, 5.2, 6)
        def _() -> None:
            attempt.more[host] = {"gone": what}
            if stops:
                attempt.system.clock += 60
                attempt._report()

    def stall(self) -> None:
        """The launcher is stopped for a while."""
        attempt = self.attempt

        @self.at(4, 5)
        def _() -> None:
            attempt.system.clock += 60

    def scheduler(self) -> None:
        """The scheduler reports a state of the job."""
        from gridtf.schedulers.api import JobStatus
        from gridtf.states import JobState

        status = JobStatus(
            JobState(self.random.choice(STATES)), self.random.choice(["", "says s"]), requeued=self.maybe(0.2)
        )
        self.attempt.cluster.status = status
        if self.maybe(0.6):
            self.signal()

    def cancel(self) -> None:
        """A user cancels the job by gridtf."""
        from gridtf.run.rundir import write_record

        cancelled = {"time": 0.0, "user": "ann", "host": "login", "pid": 1}
        self.at(3, 4.5, 5, 7)(lambda: write_record(self.attempt.run.cancelled, cancelled))
        if self.maybe(0.6):
            self.signal()

    def agent_ends(self) -> None:
        """An agent, or what has started it, ends."""
        from gridtf.errors import CleanedUpError, GridtfError, HostLostError, OutOfMemoryError, TerminatedError
        from gridtf.schedulers.api import AgentEnd

        host, code = self.random.choice(self.hosts), self.random.choice([0, 1, 3, -9, -15, 137])
        errors = [
            None,
            None,
            HostLostError("lost by srun", host=host),
            TerminatedError("agents were ended", why=self.random.choice(["", "y"])),
            CleanedUpError("all of the job there was killed", host=host),
            OutOfMemoryError("the kernel has ended all of the step"),
            GridtfError("qrsh failed", why="z"),
        ]
        error = errors[4] if self.theme == "cleaned up" else self.random.choice(errors)
        end = AgentEnd(code, host, (), error)
        self.at(0.5, 4, 5, 5.2, 6)(partial(setattr, self.attempt.cluster.agents[host], "end", end))

    def host_ends(self) -> None:
        """An agent says that no process is left on its host."""
        host = self.random.choice(self.hosts)
        self.at(5, 5 if self.theme else 6)(lambda: self.attempt.more[host].update(over=True))

    def signal(self) -> None:
        """The launcher receives a signal."""
        number = self.random.choice([signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGALRM])
        self.at(0.5, 4, 5, 6, 8)(lambda: self.attempt.system.receive(number))

    def mpirun_says(self) -> None:
        """mpirun has written why it ends."""
        attempt = self.attempt

        @self.at(3)
        def _() -> None:
            attempt.attempt.mpi.mkdir(exist_ok=True)
            (attempt.attempt.mpi / "h0.log").write_text("mpirun noticed that rank 1 exited on signal 9\n")

    def answer_dumps(self) -> None:
        """The agents answer requests for stacks: all tasks are where they were."""

        listener, process = self.attempt.listener, {"pid": 7, "name": "python", "state": "S", "text": "x"}
        for host in sorted(set(self.hosts) - self.attempt.quiet):
            asked = (listener.told(host, "dump") or {}).get("id")
            if asked:
                tasks = {name: {"processes": [process]} for name in self.attempt.states[host]}
                listener.say(host, "stacks", {"id": asked, "tasks": tasks})


def ends(seed: int, folder: Path) -> dict[str, Any]:
    """One attempt, as it has ended."""
    from gridtf.run.rundir import read_record

    try:
        end = End(seed, folder)
        end.plan()
        attempt = end.attempt
        begin = attempt.system.clock
        code, verdict = attempt.launch()
        stop, found = read_record(attempt.attempt.stop) or {}, attempt.run.attempts()
        for key in ("nonce", "started", "ended"):
            verdict.pop(key, None), stop.pop(key, None)
        reasons = [(read_record(each.verdict) or {"reason": ""})["reason"] for each in found[1:]]
        more = {"code": code, "stop": stop, "seconds": round(attempt.system.clock - begin, 1), "later": reasons}
        return {"seed": seed, "verdict": verdict, **more}
    except Exception as error:  # this is an end as well, which is compared
        return {"seed": seed, "error": f"{type(error).__name__}: {error}"[:300]}


def main(tree: str, first: str, last: str, *order: str) -> None:
    sys.path.insert(0, tree)
    import gridtf

    assert gridtf.__file__ and Path(gridtf.__file__).is_relative_to(tree), gridtf.__file__
    if order:
        from gridtf.bootstrap.judge import evidence

        evidence.ORDER = dict.fromkeys(order, "")
    for seed in range(int(first), int(last)):
        with tempfile.TemporaryDirectory() as folder:
            line = json.dumps(ends(seed, Path(folder)), sort_keys=True)
            print(line.replace(folder, "TMP"), flush=True)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main(*sys.argv[1:])
