"""The mpirun of the program's MPI starts the ranks, from the host of rank 0.

It starts a daemon on each other host by a remote shell, which is shim as well: the command goes by the launcher to the
agent of that host. A second qrsh or srun could take a slot, or GPUs, that the agent has.
"""

from __future__ import annotations

import os
import pwd
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from gridtf.errors import GridtfError
from gridtf.run.rundir import write_text
from gridtf.starters import MPIRUN
from gridtf.starters.mpi import COMMANDS, REMOTE
from gridtf.starters.mpi.world import SHIM, World, answer, ended_how, outside

if TYPE_CHECKING:
    import socket

    from gridtf.bootstrap.agent.api import AgentView
    from gridtf.run.recordtypes import Kind

# How each mpirun is told to start its daemons by the program SHELL, each from the first host, to leave them in its
# session, to place the ranks as the file of hosts says, and to bind none to cores. Open MPI asks whether root may.
_OPEN_MPI_4 = (
    "OMPI_MCA_plm=rsh OMPI_MCA_plm_rsh_agent=SHELL OMPI_MCA_plm_rsh_no_tree_spawn=1 OMPI_MCA_rmaps=seq "
    "OMPI_MCA_orte_leave_session_attached=1 OMPI_MCA_hwloc_base_binding_policy=none "
    "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
)
_OPEN_MPI_5 = (
    "PRTE_MCA_plm=ssh PRTE_MCA_plm_ssh_agent=SHELL PRTE_MCA_plm_ssh_no_tree_spawn=1 "
    "PRTE_MCA_prte_leave_session_attached=1 PRTE_MCA_rmaps_default_mapping_policy=seq "
    "PRTE_MCA_hwloc_default_binding_policy=none"
)
_MPICH = "HYDRA_LAUNCHER=ssh HYDRA_LAUNCHER_EXEC=SHELL"
_INTEL_MPI = "I_MPI_HYDRA_BOOTSTRAP=ssh I_MPI_HYDRA_BOOTSTRAP_EXEC=SHELL I_MPI_HYDRA_BRANCH_COUNT=-1 I_MPI_PIN=0"
_SETTINGS = [pair.split("=") for pair in f"{_OPEN_MPI_4} {_OPEN_MPI_5} {_MPICH} {_INTEL_MPI}".split()]


class Starter(World):
    """This host's part: mpirun, or one of its daemons."""

    hears: ClassVar[Mapping[str, Kind]] = {**World.hears, REMOTE: COMMANDS}
    on_each_host = True

    def __init__(self, view: AgentView) -> None:
        super().__init__(view)
        self._asking: dict[str, socket.socket] = {}  # number of a command for another host -> who waits for its end
        self._commands: dict[str, Sequence[str]] = {}  # the number of such a command -> host, command
        self._new = False  # whether the launcher has not been told of one
        self._started: dict[int, str] = {}  # pid of a command of mpirun for this host -> its number
        self._codes: dict[str, int] = {}  # the number of a command that has ended here -> its exit code

    def command(self, hosts: Sequence[str]) -> tuple[Sequence[str], Mapping[str, str]]:
        shell = self.folder() / "shell"
        write_text(shell, f'#!/bin/sh\nexec {shlex.join([*SHIM, "remote"])} "$@"\n', mode=0o700)
        settings = {name: str(shell) if text == "SHELL" else text for name, text in _SETTINGS}
        argv = [MPIRUN, "-machinefile", str(self.file_of(hosts)), "-n", str(len(hosts)), *SHIM, "rank"]
        return argv, {**self._environ(), **settings}

    def _environ(self) -> dict[str, str]:
        """The environment of mpirun and its daemons: MPIs leave files in TMPDIR."""
        local = self.view.state.local_dir
        return {**outside(self.environ), **({"TMPDIR": str(local)} if local else {})}

    def take_command(self, words: Sequence[str], link: socket.socket) -> None:
        command = str(len(self._commands))
        self._commands[command], self._asking[command], self._new = words, link, True

    def ended_early(self) -> GridtfError | None:
        if self._new:
            self._tell()
        said = self.view.conversation.latest.get(REMOTE, {"commands": {}, "codes": {}})
        for number, (_, command) in said["commands"].items():
            if number not in self._codes and number not in self._started.values():
                self._started[self.run([*_shell(), "-c", command], self._environ())] = number
        for pid, number in [*self._started.items()]:
            if (code := self.supervisor.others[pid]) is not None:
                del self._started[pid]
                self._codes[number] = code if code >= 0 else 128 - code
                self._tell()
                killed = -code if code < 0 else code - 128  # as a shell tells it
                if 0 < killed < signal.NSIG and self.places:
                    return self.broken(f"a daemon of {MPIRUN} on host {self.host} {ended_how(-killed)}")
        for number, code in said["codes"].items():
            if number in self._asking:
                answer(self._asking.pop(number), code)
        return None

    def _tell(self) -> None:
        """Tell the launcher which commands mpirun has for other hosts, and which commands have ended here."""
        self.view.conversation.send(REMOTE, {"commands": self._commands, "codes": self._codes})
        self._new = False


def _shell() -> list[str]:
    """The shell whose syntax mpirun uses: as a remote shell, that of the user's entry in the database of users."""
    try:
        shell = pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        shell = ""
    return [shell, "-f"] if Path(shell).name in ("csh", "tcsh") else ["/bin/sh"]
