"""The command ``gridtf``: runs one of its commands, and turns errors into a few lines.

``gridtf --help`` loads only this module, which imports nothing before it is needed.
"""

from __future__ import annotations

import os
import sys

from gridtf.cli import output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "submit": "submit a job",
    "run": "run a job right here: on the hosts of an salloc, or on this machine",
    "render": "show what submit would do: the script, and where every value comes from",
    "list": "list your jobs",
    "status": "show the state of a job and its tasks, and why it ended",
    "monitor": "show a job live on the whole terminal: tasks, hosts, events, curves",
    "logs": "show the output of the tasks",
    "stacks": "show where all tasks of a running job are",
    "exec": "run a command beside a task of a running job, on its host and in its environment",
    "shell": "open a shell beside a task of a running job",
    "report": "write what happened in a job, and what it used, as an HTML page; compare two jobs",
    "output": "print the folder with the results of the tasks",
    "address": "print host:port of a task of a running job, for a client outside the job",
    "wait": "wait until a job has ended; the exit code is the job's",
    "cancel": "cancel a job",
    "resume": "submit a job again that has saved or failed: it goes on from there",
    "tensorboard": "show the results of a job in TensorBoard, and how to reach it",
    "metrics": "print your waiting and running jobs as metrics, for Prometheus",
    "clean": "remove run directories of jobs that ended long ago, after asking",
    "doctor": "examine this site and this host: what jobs need here, and what is amiss",
    "init": "write your file of defaults with what jobs need at this site",
    "import": "print a job file made from the description of a job elsewhere, such as a TFJob",
    "completion": "print the code for tab completion in bash, zsh or fish",
    "bootstrap-path": "print where gridtf-bootstrap.sh is, for hand-written job scripts",
}

HELP = f"""\
usage: gridtf COMMAND [options]

Runs distributed TensorFlow on Slurm, Grid Engine or this machine: one task per GPU.

commands:
{"".join(f"  {name:<16}{summary}{chr(10)}" for name, summary in COMMANDS.items())}
JOB is a run directory, a job id or a job's name (the newest of that name).
--version prints the version; --debug, anywhere, shows the traceback of an error.

examples:
  gridtf submit --ps 1 --workers 2 --wait -- python train.py
  gridtf submit gridtf.toml
  gridtf COMMAND --help
"""

_SIGINT, _SIGPIPE = 128 + 2, 128 + 13


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        argv: The words after ``gridtf``; None: those of this process.

    Returns:
        The exit code: 0 success, 1 the job or gridtf failed, 2 wrong usage, 124 timeout, 130 Ctrl-C.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    debug = _take_debug(words)
    try:
        output.prepare()
        code = _run(words)
        output.write("")  # flush
    except BrokenPipeError:  # the reader, such as head, has exited
        return _SIGPIPE
    except KeyboardInterrupt:
        return _SIGINT
    except Exception as error:
        if debug:
            raise
        return report_error(error)
    return code


def _run(words: list[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:
        from gridtf.cli.completion import complete

        return complete()
    if not words:
        output.message(HELP.rstrip())
        return 2
    if words[0] == "help" and words[1:]:
        words = [words[1], "--help"]
    if words[0] in ("-h", "--help", "help"):
        output.write(HELP)
        return 0
    if words[0] in ("-V", "--version", "version"):
        from gridtf import __version__

        output.write(f"gridtf {__version__}\n")
        return 0
    if words[0] == "list" and {*words[1:]} <= {"--all", "--json"}:  # the parser would take half of the run time
        from gridtf.cli.status import list_jobs

        return list_jobs(everything="--all" in words, as_json="--json" in words)
    from gridtf.cli.common import run_command

    return run_command(words[0], words[1:])


def restore_sigchld() -> None:
    """Reset SIGCHLD to its default: if it is inherited as ignored, exit codes of squeue, sbatch and qsub are lost."""
    import signal

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _take_debug(words: list[str]) -> bool:
    """Remove --debug from the words before ``--``; whether it was there."""
    end = words.index("--") if "--" in words else len(words)
    debug = "--debug" in words[:end]
    words[:end] = [word for word in words[:end] if word != "--debug"]
    return debug


def report_error(error: Exception) -> int:
    """Print an error to stderr. Returns the exit code."""
    from gridtf.errors import GridtfError
    from gridtf.text import plain

    if isinstance(error, GridtfError):
        lines, code = [error.what, error.why, error.hint], error.exit_code
    else:
        lines = [f"{type(error).__name__}: {error}", "this is a bug in gridtf: --debug shows where"]
        code = 1
    output.message("gridtf: " + "\n  ".join(plain(line) for line in lines if line))
    return code
