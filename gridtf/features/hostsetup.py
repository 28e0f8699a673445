"""The set-up lines of a host (`host_setup`): bash runs them before its tasks start, which get what they export."""

from __future__ import annotations

import os

from gridtf import contract, files, schedulers
from gridtf.bootstrap.agent import api
from gridtf.bootstrap.plan.rendezvous import GPU_SHARE
from gridtf.errors import GridtfError
from gridtf.host.processes import signal_name
from gridtf.run.rundir import make_folder, open_log
from gridtf.run.tail import last_lines, last_text

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


class InAgent(api.Feature):
    """Runs the lines, and takes what they have exported."""

    vital = True

    def prepare(self) -> api.Prepared:
        plan, system, host = self.view.plan, self.view.system, self.view.state.host
        log, limit = plan.attempt.host_setup / f"{host}.log", GPU_SHARE * plan.spec.start_timeout
        before = {
            **schedulers.without_place(system.environ, self.view.scheduler),
            contract.RUN_DIR: str(plan.attempt.run.path),
            contract.JOB_ID: plan.job_id,
            contract.JOB_NAME: plan.spec.title,
            contract.ATTEMPT: str(plan.attempt.number),
        }
        make_folder(log.parent)
        self.view.waits_for("host_setup")
        with open_log(log) as output, files.unnamed("") as told:
            text = _SCRIPT.format(lines="\n".join(plan.spec.host_setup), told=told.fileno())
            # by a descriptor: a command line would show the lines, which may contain a key, to other users
            with files.unnamed(text) as script:
                argv, keep = ["bash", f"/dev/fd/{script.fileno()}"], (script.fileno(), told.fileno())
                pid = system.start(argv, before, cwd=plan.cwd, output=output, keep=keep)
            code = None
            for code in self.view.until_ended(pid, limit):  # noqa: B007 - the last one counts
                if os.fstat(output.fileno()).st_size > _MOST_LOG:
                    end = last_text(log).encode()
                    output.truncate(0)  # it is open for appending
                    output.write(end)
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
            raise GridtfError(f"host_setup{line} {how} on host {host}", why=said, hint=f"see {log}")
        exported = dict(each.split("=", 1) for each in after.split("\0") if "=" in each)
        changed = {name: exported.get(name) for name in {*before, *exported} - _OF_THE_SHELL}
        return api.Prepared({name: text for name, text in changed.items() if text is None or text != before.get(name)})
