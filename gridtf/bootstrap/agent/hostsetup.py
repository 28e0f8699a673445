"""The set-up lines of a host (`host_setup`): bash runs them before its tasks start, which get what they export."""

from __future__ import annotations

import os

from gridtf import contract, files, schedulers
from gridtf.bootstrap.agent.conversation import Conversation
from gridtf.bootstrap.agent.hoststate import HostState
from gridtf.bootstrap.plan.rendezvous import GPU_SHARE, AttemptPlan
from gridtf.bootstrap.system import System
from gridtf.errors import GridtfError
from gridtf.host.processes import signal_name
from gridtf.run.rundir import make_folder, open_log
from gridtf.run.tail import last_lines, last_text
from gridtf.schedulers.api import Scheduler

# As in the job script: the first line that fails ends it; failures inside functions and sourced files do not count.
_SCRIPT = """\
_gridtf_failed() {{
    [ "${{#BASH_SOURCE[@]}}" -gt 2 ] && return
    printf '%d' "$(($2 - _gridtf_above))" >&{told}
    exit "$1"
}}
trap '_gridtf_failed "$?" "${{LINENO}}"' ERR
_gridtf_above=${{LINENO}}
{lines}
trap - ERR
command -p env -0 >&{told}
"""
_MOST_LOG = 16 << 20  # bytes, beyond which the log is begun anew, with the end of what it had
_OF_THE_SHELL = frozenset({"_", "SHLVL", "PWD", "OLDPWD"})


def run(plan: AttemptPlan, scheduler: Scheduler, state: HostState, talk: Conversation, system: System) -> None:
    """Run the lines, and take what they have exported into the environment of this agent.

    Args:
        plan: The part of the plan for this host.
        scheduler: The scheduler of the job.
        state: The state of this host.
        talk: The conversation with the launcher.
        system: This host.

    Raises:
        GridtfError: A line has failed, or they take too long.
        Stopped: The agent is stopped meanwhile.
    """
    log, limit = plan.attempt.host_setup / f"{state.host}.log", GPU_SHARE * plan.spec.start_timeout
    before = {
        **schedulers.without_place(system.environ, scheduler),
        contract.RUN_DIR: str(plan.attempt.run.path),
        contract.JOB_ID: plan.job_id,
        contract.JOB_NAME: plan.spec.title,
        contract.ATTEMPT: str(plan.attempt.number),
    }
    make_folder(log.parent)
    state.waits = "host_setup"
    talk.report(now=True)
    others = state.supervisor.others
    with open_log(log) as output, files.unnamed("") as told:
        text = _SCRIPT.format(lines="\n".join(plan.spec.host_setup), told=told.fileno())
        # by a descriptor: a command line would show the lines, which may contain a key, to other users
        with files.unnamed(text) as script:
            argv, keep = ["bash", f"/dev/fd/{script.fileno()}"], (script.fileno(), told.fileno())
            pid = system.start(argv, before, cwd=plan.cwd, output=output, keep=keep)
            others[pid] = None
        try:
            for _ in talk.waiting(limit):
                state.supervisor.collect()
                if others[pid] is not None:
                    break
                if os.fstat(output.fileno()).st_size > _MOST_LOG:
                    end = last_text(log).encode()
                    output.truncate(0)  # it is open for appending
                    output.write(end)
                talk.report()
                talk.listen()
        finally:
            code = others.pop(pid)
        told.seek(0)
        after = told.read().decode(errors="surrogateescape")
    if code != 0 or "\0" not in after:
        line = f" line {after}" if after else ""
        how = f"failed with exit code {code}" if code else "ended before its last line"
        if code is None:
            how = f"has not ended within {limit:.0f} s"
        elif code < 0:
            how = f"was killed by {signal_name(-code)}"
        said = "".join(last_lines(log)[-1:])
        raise GridtfError(f"host_setup{line} {how} on host {state.host}", why=said, hint=f"see {log}")
    exported = dict(each.split("=", 1) for each in after.split("\0") if "=" in each)
    for name in {*before, *exported} - _OF_THE_SHELL:
        if name in exported and exported[name] != before.get(name):
            system.environ[name] = exported[name]
        elif name not in exported:
            system.environ.pop(name, None)
