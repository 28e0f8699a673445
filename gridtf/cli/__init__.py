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

# When a command is needed -> the commands, and what they do: in 62 characters, so that 80 columns have room for them.
MOMENTS = {
    "before a job": {
        "doctor": "examine this site and this host: what jobs need, what is amiss",
        "init": "write your file of defaults with what jobs need at this site",
        "import": "print a job file made from another system's, such as a TFJob",
        "render": "show what submit would do: the script, the source of values",
        "when": "show when a job would start, on which partition, and end",
        "submit": "submit a job",
        "sweep": "submit a job for each row of parameters, as one array",
        "run": "run a job here: on the hosts of an salloc, or on this machine",
    },
    "while it runs": {
        "list": "list your jobs",
        "status": "show the state of a job and its tasks, and why it ended",
        "monitor": "show a job live: its tasks, hosts, events and curves",
        "logs": "show the output of the tasks",
        "stacks": "show where all tasks of a running job are",
        "exec": "run a command beside a task: on its host, in its environment",
        "shell": "open a shell beside a task",
        "address": "print host:port of a task, for a client outside the job",
        "wait": "wait until a job has ended; the exit code is the job's",
        "cancel": "cancel jobs",
    },
    "afterwards": {
        "report": "write what happened, or how runs compare, as an HTML page",
        "advise": "print what a job could have asked for, as lines of a job file",
        "diff": "show what differs between two runs: settings, code, outcome",
        "output": "print the folder with the results of the tasks",
        "tensorboard": "show the results in TensorBoard, and how to reach it",
        "resume": "submit a job again that has saved or failed: it goes on",
        "rerun": "submit a job again from its beginning, with changes",
        "clean": "remove run directories of jobs that ended long ago",
    },
    "for a site": {
        "nodes": "show hosts that were bad in your jobs, or forget them",
        "metrics": "print your waiting and running jobs as metrics, for Prometheus",
        "completion": "print the code for tab completion in bash, zsh or fish",
        "bootstrap-path": "print where gridtf-bootstrap.sh is, for your own job scripts",
    },
}
COMMANDS = {name: summary for commands in MOMENTS.values() for name, summary in commands.items()}


def _listed(moment: str) -> str:
    return "\n".join([f"{moment}:", *(f"  {name:<16}{summary}" for name, summary in MOMENTS[moment].items())])


HELP = f"""\
usage: gridtf COMMAND [options]

Runs distributed TensorFlow on Slurm, Grid Engine or here: one task per GPU.

{chr(10).join(map(_listed, MOMENTS))}

JOB is a run directory, a job id or a job's name (the newest of that name).
anywhere: --version, --debug (the traceback of an error),
          --color auto|always|never (auto: on a terminal without NO_COLOR)

  gridtf submit --ps 1 --workers 2 -f -- python train.py
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
    debug, colours = _take_general(words)
    try:
        output.prepare()
        output.choose_colours(colours)
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


def _take_general(words: list[str]) -> tuple[bool, str]:
    """Remove --debug and --color from the words before ``--``; whether it was there, and when to print colours."""
    end = words.index("--") if "--" in words else len(words)
    debug, colours, kept, own = False, "auto", list[str](), iter(words[:end])
    for word in own:
        flag, equals, value = word.partition("=")
        if word == "--debug":
            debug = True
        elif flag == "--color":
            colours = value if equals else next(own, "")
        else:
            kept.append(word)
    words[:end] = kept
    return debug, colours


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
