"""The command ``gridtf``: finds the command, runs it, and turns errors into a few lines.

This module is all that ``gridtf --help`` loads, so it imports nothing before it needs it.
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
    "render": "show what submit would do: the script and where every value comes from",
    "list": "list your jobs",
    "status": "how a job and its tasks stand, and why it ended",
    "logs": "what the tasks print",
    "output": "print the folder that the tasks have written their results to",
    "wait": "wait for the end of a job; its exit code is the job's",
    "cancel": "end a job",
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
    """Run a command line; gives the exit code: 0 fine, 1 the job or gridtf failed, 2 wrong usage, 130 Ctrl-C."""
    words = [*(sys.argv[1:] if argv is None else argv)]  # here list is the command, once it has been imported
    debug = _take_debug(words)
    output.prepare()
    try:
        code = _run(words)
        output.write("")  # flushes what is left
    except BrokenPipeError:  # the reader, such as head, has seen enough
        return _SIGPIPE
    except KeyboardInterrupt:
        return _SIGINT
    except Exception as error:
        if debug:
            raise
        return _tell(error)
    return code


def _run(words: list[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:
        from gridtf.cli.completion import complete

        return complete()
    if not words:
        output.tell(HELP.rstrip())
        return 2
    if words[0] in ("-h", "--help", "help"):
        output.write(HELP)
        return 0
    if words[0] in ("-V", "--version"):
        from gridtf import __version__

        output.write(f"gridtf {__version__}\n")
        return 0
    if words[0] == "list" and {*words[1:]} <= {"--all", "--json"}:  # half of its time would go into the parser
        from gridtf.cli.status import list_jobs

        return list_jobs(everything="--all" in words, as_json="--json" in words)
    from gridtf.cli.common import run_command

    return run_command(words[0], words[1:])


def heed_children() -> None:
    """Undo an inherited SIGCHLD = ignore, with which no exit code of squeue, sbatch or qsub could be read."""
    import signal

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _take_debug(words: list[str]) -> bool:
    """Remove --debug, unless it belongs to the user's command."""
    end = words.index("--") if "--" in words else len(words)
    debug = "--debug" in words[:end]
    words[:end] = [word for word in words[:end] if word != "--debug"]
    return debug


def _tell(error: Exception) -> int:
    from gridtf.errors import GridtfError
    from gridtf.text import plain

    if isinstance(error, GridtfError):
        lines, code = [error.what, error.why, error.hint], error.exit_code
    else:
        lines = [f"{type(error).__name__}: {error}", "this should not happen: --debug shows where it comes from"]
        code = 1
    output.tell("gridtf: " + "\n  ".join(plain(line) for line in lines if line))
    return code
