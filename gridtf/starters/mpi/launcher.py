"""The launcher's half of an MPI world: it says who starts the ranks, passes mpirun's commands on, and knows ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from gridtf.bootstrap.judge.evidence import BESIDE, EACH, EXPLAINS, OTHERS, STOP, Evidence
from gridtf.bootstrap.launcher import api
from gridtf.host.names import same_host
from gridtf.run.recordtypes import Kind
from gridtf.run.rundir import Record
from gridtf.starters import GLOO, named
from gridtf.starters.mpi import COMMANDS, REMOTE, WORLD, said_by_mpirun
from gridtf.states import ALONE, JobState, TaskState
from gridtf.text import some

_LAST_WORDS = 1.0  # seconds for mpirun to end for what a rank has told it, and to say so
_MPIRUN_LIMIT = 4.0  # seconds for mpirun to end when it has ended ranks
_ABORTED_LIMIT = 2.0  # seconds for mpirun to say that a rank has called MPI_Abort


class Starter(api.Starter):
    """The world of an attempt."""

    is_world = True
    hears: ClassVar[Mapping[str, Kind]] = {REMOTE: COMMANDS}

    def __init__(self, view: api.LauncherView) -> None:
        super().__init__(view)
        self._told: dict[str, Record] = {}  # host -> all that it was told: a connection that is made anew repeats it
        self._asking = ""  # the host that mpirun is on

    @property
    def _records(self) -> Mapping[str, Record]:
        return self.view.hosts.reports.tasks

    def met(self) -> None:
        ranks = [task.host for task in sorted(self.view.tasks, key=lambda task: task.rank or 0)]
        for host in dict.fromkeys(ranks) if self.view.job.request.mpi == GLOO else ranks[:1]:
            self.view.hosts.listener.send(host, WORLD, {"hosts": ranks})

    def heard(self, host: str, content: Record) -> None:
        hosts, changed = self.view.hosts.hosts, set[str]()

        def tell(target: str, kind: str, number: str, what: Any) -> None:
            told = self._told.setdefault(target, {"commands": {}, "codes": {}})[kind]
            if number not in told:
                told[number] = what
                changed.add(target)

        for number, command in content["commands"].items():
            self._asking = host
            # Open MPI 4 leaves out the domain
            like = (one for one in hosts if same_host(one, command[0]))
            target = command[0] if command[0] in hosts else next(like, "")
            if target:
                tell(target, "commands", number, command)
            else:
                tell(host, "codes", number, 1)
        for number, code in content["codes"].items():
            tell(self._asking, "codes", number, code)
        for target in changed:
            self.view.hosts.listener.send(target, REMOTE, self._told[target])

    def status(self) -> str:
        """That ranks have ended with 0 before the others, which may then wait for ever."""
        states = {task.name: self._records.get(task.name, {}).get("state") for task in self.view.tasks if task.trains}
        ended = [name for name, state in states.items() if state == TaskState.COMPLETED]
        others = len(ended) < len(states) and TaskState.SAVED not in states.values()
        return f"{some(ended)} ended with exit code 0 while others went on" if ended and others else ""

    def stop(self) -> Evidence | None:
        """That ranks are none to the MPI that their program has loaded."""
        alone = [name for name, record in self._records.items() if record.get("tensorflow") == ALONE]
        if not alone:
            return None
        who = f"{some(alone)} {'is' if len(alone) == 1 else 'are'}"
        return Evidence(
            STOP,
            f"{who} rank 0 of 1 to the MPI, or the Horovod, of the program",
            why=f"{named(self.view.job.request.mpi)} is not what that needs",
            hint="the mpirun of the program's MPI has to come first on PATH, with --mpi; a Horovod without MPI needs "
            "--mpi=gloo: `gridtf doctor` shows both",
        )

    def patience(self, *, well: bool) -> float:
        """A script may go on, and exit with 0, when the program in it has called MPI_Abort; and ranks fail without a
        word when mpirun has ended them."""
        records = self._records.values()
        abandoned = any(record.get("abandoned") for record in records)
        if well:
            return _ABORTED_LIMIT if abandoned else 0.0
        silent = [record for record in records if record.get("exit") and not record.get("exception")]
        if not silent:
            return 0.0
        return _MPIRUN_LIMIT if any(record.get("abandoned") for record in silent) else _LAST_WORDS

    def known(self, found: Evidence) -> Iterator[Evidence]:
        tasks, kind = self.view.tasks, self.view.job.request.mpi
        log = self.view.attempt.mpi / f"{tasks[0].host}.log" if tasks else None
        says = said_by_mpirun(log, first=False) if log and found.kind in OTHERS else ""
        yield Evidence(EXPLAINS, f"{named(kind)} says: {says}" if says else "", on=OTHERS)
        yield Evidence(BESIDE, self.status(), on=EACH - {JobState.NODE_FAIL})
