"""A launcher whose scheduler simulates several hosts on this machine, with a process for each agent.

Called with a JSON list of hosts, each {"name", "slots", "gpus", "address", "prefix"}. The address is 127.0.0.1 by
default, and the host's name if it is null. The prefix of an agent's command can give the host another view of the file
system, or keep the agent from starting.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gridtf.bootstrap.launcher import launcher
from gridtf.bootstrap.plan.launchedjob import LaunchedJob
from gridtf.bootstrap.system import System
from gridtf.jobspec.request import Request
from gridtf.jobspec.spec import JobSpec
from gridtf.run.rundir import RunDir
from gridtf.schedulers.api import LOOPBACK, AgentCall, AgentEnd, AgentHandle, Allocation, Host, Wait
from gridtf.schedulers.local import LocalScheduler
from gridtf.schedulers.local.injob import LocalInJob


@dataclasses.dataclass
class ProcessAgent:
    host: str
    process: subprocess.Popen[bytes]

    def poll(self) -> AgentEnd | None:
        code = self.process.poll()
        return None if code is None else AgentEnd(code, self.host)

    def terminate(self) -> None:
        """Does nothing: as on a real cluster, the agent reads stop.json on the shared file system."""

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)


class ManyHosts(LocalInJob):
    def __init__(self, hosts: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(LocalScheduler())
        vars(self.scheduler)["injob"] = self  # the half that it shows
        self.hosts = hosts

    def allocation(self, environ: Mapping[str, str], request: Request, wait: Wait) -> Allocation:
        return Allocation(
            tuple(
                Host(str(host["name"]), int(str(host.get("slots", 1))), cpus=1, address=host.get("address", LOOPBACK))
                for host in self.hosts
            )
        )

    def start_agents(
        self, allocation: Allocation, call: AgentCall, environ: Mapping[str, str]
    ) -> Sequence[AgentHandle]:
        agents = []
        for host in self.hosts:
            name = str(host["name"])
            command = [*map(str, host.get("prefix", ())), *call.command, name, *call.arguments]
            env = {**environ, "CUDA_VISIBLE_DEVICES": ""}
            process = subprocess.Popen(command, env=env, start_new_session=True, stdin=subprocess.DEVNULL)
            agents.append(ProcessAgent(name, process))
        return agents


def main() -> int:
    spec = JobSpec.from_dict(json.loads(os.environ.pop("GRIDTF_SPEC")))
    run = RunDir(Path(os.environ["GRIDTF_RUN_DIR"]))
    run.path.mkdir(exist_ok=True)
    scheduler = ManyHosts(json.loads(sys.argv[1])).scheduler
    request = scheduler.login.resolve(spec, in_job=True)
    return launcher.launch(LaunchedJob(run, spec, request, scheduler, "4711", System(os.environ)))


if __name__ == "__main__":
    sys.exit(main())
