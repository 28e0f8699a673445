"""Slurm's commands: their environment, and what they print when they fail."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from gridtf.errors import SchedulerError
from gridtf.schedulers.commands import TRY_LATER, Answer, Commands, NoAnswerError, run_command

# What the commands read from the environment: SQUEUE_USERS=bob, handy in a shell, would hide the jobs of other users,
# and a job that is hidden looks like one that is purged.
_FILTERS = ("SQUEUE_", "SINFO_", "SACCT_")

# Since this version, steps of a job share its GPUs if they overlap (srun(1), --overlap); before, only its CPUs.
_SHARES_GPUS = (22, 5)

# Patterns are compiled only after a command has failed: rendering does not need them.
# slurm_load_jobs error: Unable to contact slurm controller (connect failure)
_UNREACHABLE = (
    r"(?i)unable to contact slurm controller|socket timed out|zero bytes were transmitted|"
    r"connection (refused|timed out)|no route to host|standby mode|transport endpoint|"
    r"batch job submission failed: i/o error"
)
# sbatch: error: Batch job submission failed: Socket timed out on send/recv operation
_ANSWER_LOST = (
    r"(?i)socket timed out|zero bytes were transmitted|(receive|shutdown) failure|timed out reading|"
    r"quiesce timeout|delayed socket error"
)
# sbatch: error: s_p_parse_file: cannot stat file /nope: No such file or directory, retrying in 1sec up to 60sec
# Slurm 20.11: unable to status file /nope: …
_NO_FILE = r"(?:cannot stat|unable to status) file (\S*): ([^,\n]+)"
# scontrol: error while loading shared libraries: /opt/lib/libreadline.so.8: file too short
_NO_LIBRARY = r"error while loading shared libraries: .*\S|symbol lookup error: .*\S|version `\S+' not found.*\S"
# Slurmctld(primary) at ctl1 is DOWN        (scontrol(1), ping)
_PING = r"Slurmctld\(\S+\) at (\S+) is (?:UP|DOWN)"
# Lines that are errors; what a site's plugin prints there may be ornament: sbatch: error: ------
_COMPLAINT = (
    r"(?m)^(?:\w+:? (?:error|fatal): (?:lua: )?|allocation failure: |sbatch: (?=unrecognized|invalid|option))"
    r"(.*\w.*?)\s*$"
)
# The end of the last one where the site's plugin has refused the job, and has said more before, or elsewhere.
_BY_PLUGIN = ("Unspecified error", "cli_filter plugin terminated with error")


class SlurmCommands(Commands):
    """Runs Slurm's commands."""

    title = "Slurm"

    def environment(self) -> dict[str, str]:
        environ = super().environment()
        kept = {name: text for name, text in environ.items() if not name.startswith(_FILTERS)}
        if "SLURM_JOB_ID" in environ:  # it names where the job was to be submitted, not where it runs
            kept.pop("SLURM_CLUSTERS", None)
        return {**kept, "SLURM_TIME_FORMAT": "%s"}  # the user's own format may be one that cannot be read back

    def message(self, answer: Answer) -> str:
        return complaint(answer.text) or answer.last_line

    def unreachable(self, answer: Answer) -> bool:
        return re.search(_UNREACHABLE, answer.err) is not None

    def unknown_job(self, answer: Answer) -> bool:
        return "Invalid job id" in answer.err

    def outcome_unknown(self, answer: Answer) -> bool:
        return re.search(_ANSWER_LOST, answer.err) is not None

    def need_set_up(self, command: str, answer: Answer) -> None:
        if answer.code and (missing := re.search(_NO_FILE, answer.err)):
            own = " (SLURM_CONF)" if os.environ.get("SLURM_CONF") == missing[1] else ""
            hint = "unset SLURM_CONF, or set it to the site's slurm.conf" if own else "ask the administrators"
            raise SchedulerError(f"cannot read {missing[1] or 'a file without a name'}{own}: {missing[2]}", hint=hint)
        if answer.code and (wrong := re.search(_NO_LIBRARY, answer.err)):
            hint = "unset LD_LIBRARY_PATH, or load its modules after Slurm's"
            raise SchedulerError(f"{command} does not start: {wrong[0]}", hint=hint)

    def no_answer(self, message: str) -> NoAnswerError:
        try:
            ping = run_command(["scontrol", "ping"], limit=5.0).out  # whatever its exit code
        except SchedulerError:
            ping = ""
        hosts = " and ".join(re.findall(_PING, ping))
        where = f" on {hosts}" if hosts else ""
        if "is UP" in ping and "has not answered" in message:
            return NoAnswerError(f"{message}, although Slurm's controller{where} does", hint=TRY_LATER)
        return NoAnswerError(f"Slurm's controller{where} does not answer: {message}", hint=TRY_LATER)

    def try_run(self, argv: Sequence[str], *, limit: float) -> str | None:
        """Run a command whose output is useful but not necessary.

        Args:
            argv: The command.
            limit: Seconds that it may take.

        Returns:
            Its standard output; None when it fails.
        """
        try:
            answer = run_command(argv, limit=limit, environ=self.environment())
        except SchedulerError:
            return None
        return None if answer.code else answer.out

    def without_shared_gpus(self) -> str:
        """Slurm's version, such as ``Slurm 20.11``, if steps of a job cannot share its GPUs; else empty."""
        found = re.search(r"(\d+)\.(\d+)", self.try_run(["srun", "--version"], limit=self.query_limit) or "")
        return f"Slurm {found[0]}" if found and (int(found[1]), int(found[2])) < _SHARES_GPUS else ""


def complaint(output: str) -> str:
    """Find the errors in the output of a failed command, in one line; empty if there are none.

    Args:
        output: As the command prints it. A site's plugin may print several lines, which need not be marked as errors.
    """
    marked = re.findall(_COMPLAINT, output)
    said = [text for text in marked if not text.endswith(_BY_PLUGIN)]
    if marked and not said:
        said = [line.strip() for line in output.splitlines() if line.strip() and not re.match(_COMPLAINT, line)]
    return joined(said or marked)


def joined(texts: Sequence[str]) -> str:
    """Texts in one line."""
    return re.sub(r"([.,:;!?]); ", r"\1 ", "; ".join(dict.fromkeys(text.strip() for text in texts)))


slurm = SlurmCommands()
