"""A test bed of scripts/testbed: a real scheduler on several hosts of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any
from unittest import mock

import pytest

from tests.support.jobs import until

CHECKOUT = Path(__file__).resolve().parents[2]
SHARED = "/mnt/shared"  # as the hosts see it
HOSTS = ("ctl", "login", "n1", "n2", "n3", "n4", "c1")
PATH = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"


class Bed:
    """A Slurm test bed. Beds of other schedulers derive from it, and override the last methods here.

    Args:
        state: The test bed's folder on this machine.
        script: scripts/testbed, possibly of another checkout.
    """

    kind = "slurm"
    hosts: tuple[str, ...] = HOSTS
    path = PATH
    # The same requests in the options of each scheduler. options: those of every job, except for its number of hosts.
    options: tuple[str, ...] = ("--scheduler", "slurm")
    two_gpus_on_each_of_four_hosts: tuple[str, ...] = ("--nodes", "4", "--gpus-per-node", "2")
    array: tuple[str, ...] = ("--array=0-2",)
    elements = ("0", "1", "2")
    element_variable, element_separator = "SLURM_ARRAY_TASK_ID", "_"
    delete, deleted = "scancel", "cancelled with scancel"
    server = "Slurm's controller on ctl"
    questions: tuple[str, ...] = (  # that show what became of a job
        "squeue --long",
        "scontrol show job {id}",
        "scontrol --oneliner show nodes",
    )

    def __init__(self, state: Path, script: Path = CHECKOUT / "scripts/testbed") -> None:
        self.state = state
        self.script = script

    @property
    def shared(self) -> Path:
        """The real shared folder, without any caches, which hosts see as /mnt/shared."""
        return self.state / self.kind / "shared"

    def home(self, user: str = "alice") -> Path:
        """The real home folder of a user, which hosts see as /mnt/shared/home/USER."""
        return self.shared / "home" / user

    def seen(self, path: Path) -> str:
        """The hosts' path of a path in the real shared folder."""
        return f"{SHARED}/{path.relative_to(self.shared)}"

    def own_command(self, *arguments: str) -> list[str]:
        """The command line of scripts/testbed KIND …; without site, since it takes a third of the time."""
        return [sys.executable, "-S", str(self.script), self.kind, *arguments]

    def tool(self, *arguments: str, timeout: float = 240, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run scripts/testbed KIND …; AssertionError with its output when it fails.

        Skips the test where this machine cannot have what the bed needs.
        """
        from testbeds.errors import UNAVAILABLE  # here, since not all that use this module have scripts on their path

        command = self.own_command(*arguments)
        done = subprocess.run(command, env=self.environ(), capture_output=True, text=True, timeout=timeout)
        if check and done.returncode == UNAVAILABLE:
            pytest.skip(" ".join(done.stderr.rpartition("error: ")[2].split()))
        assert not check or not done.returncode, f"{arguments}: exit code {done.returncode}\n{done.stderr}{done.stdout}"
        return done

    def up(
        self,
        *,
        shared: str = "plain",
        cgroups: bool = False,
        accounting: bool = False,
        second_network: bool = False,
        version: str = "",
        share: Sequence[Path] = (),
        options: Sequence[str] = (),
        more: Sequence[str] = (),
    ) -> None:
        arguments = ["up", *more, "--shared", shared, *["--cgroups"] * cgroups, *["--accounting"] * accounting]
        arguments += ["--second-network"] * second_network + [f"--version={version}"] * bool(version)
        arguments += [f"--share={folder}" for folder in share] + [f"--option={option}" for option in options]
        self.tool(*arguments, timeout=900)  # packages may have to be installed

    def down(self) -> None:
        self.tool("down")

    def kill(self, host: str) -> None:
        """Cut the power of a host."""
        self.tool("kill", host)

    def cut(self, host: str) -> None:
        """Take the network link of a host down."""
        self.tool("cut", host)

    def spoil(self, host: str, state: str) -> None:
        """Have the shared folder of a remote bed hang, or be full, read-only or unmounted, on a host."""
        self.tool("shared", host, state)

    def mend(self, host: str) -> None:
        """Restore link, shared folder and power of a host; returns when the scheduler can use it again."""
        self.tool("mend", host)

    def command(
        self,
        host: str,
        *argv: str,
        user: str = "alice",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> list[str]:
        """The command that runs argv on a host, in ``cwd`` (the host's path) or else the user's home folder."""
        variables = [f"--env={name}={value}" for name, value in {"PATH": self.path, **(env or {})}.items()]
        return self.own_command("exec", "--user", user, "--cwd", self._where(user, cwd), *variables, host, *argv)

    def _where(self, user: str, cwd: str | None) -> str:
        return cwd or ("/root" if user == "root" else f"{SHARED}/home/{user}")

    def run(
        self,
        host: str,
        *argv: str,
        user: str = "alice",
        timeout: float = 180,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host; with ``check``, AssertionError with its output when it fails.

        As the tool's `exec` does, but for its Python, which takes longer than most commands: tests run thousands.
        """
        from testbeds import enter, processes

        known = json.loads((self.state / self.kind / "bed.json").read_text())
        first, environ = processes.Process(**known["hosts"][host]), self.environ()
        command = self.command(host, *argv, user=user, env=env, cwd=cwd)  # which says so where the host has no power
        if processes.alive(first):
            environ = {**enter.environment(user, environ, known["variables"]), "PATH": self.path, **(env or {})}
            command = enter.command(first, user, argv, self._where(user, cwd))
        done = subprocess.run(command, env=environ, input=stdin or "", capture_output=True, text=True, timeout=timeout)
        done.returncode = done.returncode if done.returncode >= 0 else 128 - done.returncode
        assert not check or not done.returncode, (
            f"{host}: {argv}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done

    def popen(
        self,
        host: str,
        *argv: str,
        user: str = "alice",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdout: int | IO[Any] | None = subprocess.PIPE,
        stderr: int | IO[Any] | None = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a command on a host. Signals sent to this process reach the command, and it dies with it."""
        command, nothing = self.command(host, *argv, user=user, env=env, cwd=cwd), subprocess.DEVNULL
        return subprocess.Popen(command, env=self.environ(), stdin=nothing, stdout=stdout, stderr=stderr, text=True)

    @contextmanager
    def running(self, host: str, script: str, **options: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
        """Start a shell script on a host; yields its process and its first line of output, and kills it at the end."""
        process = self.popen(host, "bash", "-c", script, **options)
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()
            process.communicate(timeout=180)

    def await_state(self, host: str, expected: str, limit: float = 180) -> None:
        """Wait until the state of a node begins with this word."""
        until(lambda: self.states()[host].startswith(expected), f"{host} to be {expected}", limit)

    def about(self, job_id: str) -> str:
        """What the scheduler says of a job and its queue, for the message of a test that fails."""
        said = []
        for question in self.questions:
            try:
                done = self.run("login", *question.format(id=job_id).split(), timeout=60, check=False)
                said.append(done.stdout + done.stderr)
            except subprocess.TimeoutExpired:
                said.append(f"{question}: no answer")
        return "\n".join(said)

    def stop_server(self) -> None:
        """Shut slurmctld down in order, so that it saves its state: otherwise it would start recent jobs again."""
        self.run("ctl", "scontrol", "shutdown", "slurmctld", user="root")
        asked = partial(self.run, "ctl", "pgrep", "-x", "slurmctld", user="root", check=False)
        until(lambda: not asked().stdout, "the end of slurmctld", 180)

    def tidy(self) -> None:
        """Cancel all jobs, mend all hosts, and wait until they are idle."""
        from testbeds.bed import require
        from testbeds.cluster import stands

        with mock.patch.dict(os.environ, self.environ()):
            for host in self.hosts:
                if stands(require(self.kind), host) != "up":
                    self.mend(host)
        (self.home() / ".local/state/gridtf/hosts.jsonl").unlink(missing_ok=True)  # notes on the hosts that were lost
        self.idle()

    def idle(self, limit: float = 180) -> None:
        """Cancel all jobs, and wait until the hosts are idle."""
        begin = time.monotonic()
        while busy := self.busy(time.monotonic() - begin):
            assert time.monotonic() < begin + limit, f"still not idle after {limit:.0f} s:\n" + "\n".join(busy)
            time.sleep(0.3)

    def environ(self) -> dict[str, str]:
        return {"PATH": PATH, "LANG": "C.UTF-8", "GRIDTF_TESTBED_STATE": str(self.state)}

    def states(self) -> dict[str, str]:
        """Node -> its state as the scheduler reports it, such as idle or down*."""
        lines = self.run("ctl", "sinfo", "-h", "-N", "-o", "%N %T", user="root").stdout.splitlines()
        return dict(line.split() for line in lines)

    def busy(self, since: float = 0) -> list[str]:
        """Cancel all jobs, and resume drained nodes; returns a line for each of them, and for nodes that are not idle.

        since: seconds since the first try.
        """
        idle = (
            "squeue --noheader --format=%i | sort -u | xargs -r scancel;"
            # Slurm drains a node when a job ends there while the controller is down
            " for node in $(sinfo -hNo %N --states=drained); do scontrol update nodename=$node state=resume; done"
        )
        if since > 10:  # the order to end a job was lost with the host's link, and Slurm repeats it after minutes
            node = "for node in $(sinfo -hNo %N --states=completing | sort -u); do scontrol update nodename=$node"
            idle = (
                f"{node} state=down reason=tidy; done; {node.replace('completing', 'down')} state=resume; done; {idle}"
            )
        look = "left=$(squeue --noheader; sinfo -hNo '%N %T') || exit; grep -v ' idle$' <<<\"$left\""
        return self.run("ctl", "bash", "-c", f"{look} && {{ {idle}; }} >&2 || :", user="root").stdout.splitlines()
