"""The table of options, shared by command line, job file and environment. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from gridtf.errors import UsageError
from gridtf.values import Value

Key = tuple[str, ...]  # a key as its parts: ("tasks", "ps", "count")

PREFIX = "GRIDTF_SUBMIT_"
_NUMBER = re.compile(r"[0-9.e-]+")  # Python accepts more, which is more likely a slip: 1_000, +3, inf, ٣


class Kind(Value):
    """What values an option has.

    Attributes:
        read: Makes the value from text. Text in place of a number stays text, which JobSpec refuses.
        of_flag: Makes the value that a flag without text sets, given whether it turns the option on; None for an option
            whose flags need text.
        repeats: Whether the option may be repeated, so that each line of its variable is a value.
    """

    read: Callable[[str], object] = str
    of_flag: Callable[[bool], object] | None = None
    repeats: bool = False


def _number(kind: type[int] | type[float], more: Mapping[str, object] | None = None) -> Callable[[str], object]:
    """Makes numbers from text. more: what other words than numbers stand for."""

    def read(text: str) -> object:
        try:
            return (more or {}).get(text, kind(text) if _NUMBER.fullmatch(text) else text)
        except ValueError:
            return text

    return read


def _arguments(text: str) -> object:
    import shlex

    try:
        return tuple(shlex.split(text))
    except ValueError:
        raise UsageError(f"a quote is not closed in {text}", hint="write it as in a shell") from None


def _gres(text: str) -> object:
    """The GPUs of Slurm's ``--gres``: ``gpu``, ``gpu:4``, ``gpu:a100``, ``gpu:a100:4``."""
    if not re.fullmatch(r"(gres[:/])?gpu(:[\w.+-]+){0,2}", text, re.ASCII):
        others = ",".join(part for part in text.split(",") if not re.match(r"(gres[:/])?gpu", part))
        hint = f"write gpu:4, or gpu:a100:4{f', or for others --native=--gres={others}' if others else ''}"
        raise UsageError(f"{text} is not only GPUs of one model", hint=hint)
    return text if re.search(r":\d+$", text) else f"{text}:1"


_TRUTHS = {"1": True, "true": True, "0": False, "false": False}
KINDS = {
    "text": Kind(),
    "whole": Kind(_number(int)),
    "size": Kind(_number(int)),  # or text that JobSpec parses, such as 2h
    "gres": Kind(_gres),
    "seconds": Kind(_number(float)),
    "lines": Kind(lambda text: (text,), repeats=True),
    "words": Kind(lambda text: tuple(word.strip() for word in text.split(",") if word.strip())),
    "arguments": Kind(_arguments),  # split as a shell does
    "variables": Kind(repeats=True),  # K=V
    "parameters": Kind(repeats=True),  # K=V, where V stays text until the type of K is known
    "count": Kind(_number(int, {"true": 1, "false": 0}), of_flag=int),  # 1 or 0 tasks
    "truth": Kind(lambda text: _TRUTHS.get(text, text), of_flag=bool),
    "replace": Kind(_number(int), of_flag=lambda on: True),  # drop what lower layers have
    "served_ps": Kind(of_flag=lambda on: ("ps",)),
}


class Option(Value):
    """One option.

    Attributes:
        key: The JobSpec key that it sets, dotted as in the job file; or one of MERGED.
        flags: The long one first; ``--no-…`` turns it off.
        kind: One of KINDS.
        metavar: Stands for the value in the help; empty for a flag without a value.
        help: One line for the help.
        group: Heading in the help.
    """

    key: str
    flags: tuple[str, ...]
    kind: Kind
    metavar: str
    help: str
    group: str

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that set it: GRIDTF_SUBMIT_ and the name of each long flag."""
        if self.kind is KINDS["served_ps"]:
            return ()
        longs = [flag[2:] for flag in self.flags if flag.startswith("--") and not flag.startswith("--no-")]
        return tuple(PREFIX + name.upper().replace("-", "_") for name in longs or [self.key])


# Keys that change how layers are merged, and are no fields of a JobSpec: arguments are added to the command below them.
MERGED = ("args", "profile", "setup_replace")

REQUESTS = "what to request from the scheduler"

# fmt: off
# columns: key, flags, kind, metavar, help
_TABLE = {
    "what runs": (
        ("entry", "--entry", "text", "MODULE:FUNCTION", "the training loop as a function, instead of a command"),
        ("args", "--args", "arguments", "'ARG …'", "arguments to add to the job file's command; also after --"),
        ("chdir", "--chdir -D", "text", "DIR", "working folder (default: the current or the job file's)"),
        ("params", "--set", "parameters", "K=V", "a parameter of the program: {params.K} in its command; repeatable"),
        ("env", "--env", "variables", "K=V", "set a variable; K alone copies its value; repeatable"),
        ("setup", "--setup", "lines", "LINE", "shell line to run first, such as 'module load cuda'; repeatable"),
        ("host_setup", "--host-setup", "lines", "LINE", "shell line to run first on every host; repeatable"),
        ("stage", "--stage", "lines", "PATH", "copy or unpack this to the local disk of every host; repeatable"),
        ("on", "--on", "lines", "COMMAND", "run this at start, first step, failure and end; repeatable"),
        ("snapshot", "--snapshot --no-snapshot", "truth", "", "run a copy of the working folder, made now"),
        ("setup_replace", "--no-setup", "replace", "", "leave out the set-up lines of files and variables"),
        ("checkpoint_signal", "--checkpoint-signal", "text", "USR1|USR2", "also signal programs that catch it to save"),
        ("hook", "--hook --no-hook", "truth", "", "note the exception that ends a Python program (default)"),
        ("python", "--python", "text", "PROGRAM", "the Python that runs --entry and served tasks"),
    ),
    "containers": (
        ("container", "--container", "text", "IMAGE", "run the tasks in a container: a path, or docker://…"),
        ("container_binds", "--container-binds", "lines", "SRC[:DST]", "a path that exists in it as well; repeatable"),
        ("container_command", "--container-command", "arguments", "'ARG …'", "what runs it, if not Apptainer"),
    ),
    "tasks": (
        ("tasks.worker.count", "--workers", "whole", "N", "workers (default: as many as fit; local, no GPUs: one)"),
        ("tasks.ps.count", "--ps", "whole", "N", "parameter servers"),
        ("leader", "--leader", "text", "chief|master|first-worker", "which task leads; a chief or master is added"),
        ("tasks.chief.count", "--chief --no-chief", "count", "", "a chief in addition to the workers"),
        ("tasks.master.count", "--master --no-master", "count", "", "a chief under TensorFlow 1's name"),
        ("tasks.evaluator.count", "--evaluator --no-evaluator", "count", "", "an evaluator"),
        ("tasks.data_worker.count", "--data-workers", "whole", "N", "tasks that prepare the data for those that train"),
        ("serve", "--serve", "words", "TYPE[,TYPE]", "run TensorFlow servers as ps or worker tasks"),
        ("serve", "--ps-builtin", "served_ps", "", "the same as --serve ps"),
        ("serve_imports", "--serve-imports", "words", "MODULE[,MODULE]", "modules with operations that these need"),
        ("mpi", "--mpi --no-mpi", "truth", "", "start the tasks as the ranks of an MPI world, by mpirun"),
        ("mpi", "--mpi-type", "text", "mpirun|TYPE|gloo", "what starts them: mpirun, a type of `srun --mpi`, or gloo"),
        ("success_policy", "--success-policy", "text", "all|chief", "whose exit code 0 completes the job"),
    ),
    REQUESTS: (
        ("scheduler", "--scheduler", "text", "local|slurm|sge", "default: the one found on this host, else local"),
        ("profile", "--profile", "text", "NAME", "values under [profiles.NAME] of the site, your or the job file"),
        ("name", "--name -J", "text", "NAME", "the job's name"),
        ("nodes", "--nodes -N", "size", "N[-M]", "hosts"),
        ("gpus_per_node", "--gpus-per-node", "size", "[MODEL:]N", "GPUs on each host, such as 4 or a100:4"),
        ("gpus_per_node", "--gres", "gres", "gpu[:MODEL]:N", "the same, in Slurm's words"),
        ("gpus", "--gpus -G", "size", "[MODEL:]N", "GPUs of all hosts together"),
        ("tasks_per_node", "--tasks-per-node", "whole", "N", "training tasks on each host, if GPUs do not decide it"),
        ("gpus_per_task", "--gpus-per-task", "size", "[MODEL:]N", "GPUs of each training task"),
        ("cpus_per_task", "--cpus-per-task -c", "whole", "N", "CPUs of each task"),
        ("mem_per_task", "--mem-per-task", "size", "SIZE", "memory of each task, such as 8G"),
        ("mem", "--mem", "size", "SIZE", "memory of each host instead, such as 16G"),
        ("time", "--time -t", "size", "TIME", "walltime: minutes, or 2:00:00, 90m, 1-12"),
        ("checkpoint_before", "--checkpoint-before", "size", "TIME", "request a checkpoint 10m, say, before the end"),
        ("continuations", "--continue", "whole", "N", "start a job that has saved again, at most N times"),
        ("native", "--native", "lines", "OPTION", "an option passed to the scheduler unchanged; repeatable"),
    ),
    "after other jobs": (
        ("after", "--after", "words", "JOB[,JOB]", "start when these jobs have completed"),
        ("after_any", "--after-any", "words", "JOB[,JOB]", "start when these jobs have ended"),
        ("after_failed", "--after-failed", "words", "JOB[,JOB]", "start when these jobs have failed"),
    ),
    "after a failure": (
        ("restarts", "--restarts", "whole", "N", "restart all tasks in the same allocation up to N times (default: 0)"),
        ("stall_after", "--stall-after", "size", "TIME|off", "a job without any activity is stalled (default: 10m)"),
        ("on_stall", "--on-stall", "text", "report|restart|end", "what to do with a stalled job (default: report)"),
        ("check", "--check", "text", "quick|off", "measure all hosts before the tasks start (default: off)"),
        ("on_bad_host", "--on-bad-host", "text", "warn|end", "what to do if a host is far slower than the others"),
        ("avoid_bad_hosts", "--avoid-bad-hosts --no-avoid-bad-hosts", "truth", "", "exclude hosts that were bad"),
        ("spare_nodes", "--spare-nodes", "whole", "N", "request N more hosts, to replace those that are lost"),
    ),
    "which network": (
        ("address", "--address", "text", "PATTERN", "name by which tasks reach a host, such as '{host}i'"),
        ("interface", "--interface", "text", "NAME", "network interface by which tasks reach a host, such as ib0"),
        ("ports", "--ports", "text", "hold|release|auto", "release: for TensorFlow before 2.3, which auto recognizes"),
        ("fence", "--fence", "text", "users|hosts|off|auto", "who may connect to the tasks (default: off)"),
    ),
    "folders and timeouts": (
        ("template", "--template", "text", "FILE", "your own template of the job script"),
        ("run_dir", "--run-dir", "text", "DIR", "the run directory; must not exist yet"),
        ("run_root", "--run-root", "text", "DIR", "where run directories are made (default: gridtf-runs)"),
        ("log_limit", "--log-limit", "size", "SIZE", "how large the log of a task may become, such as 1G"),
        ("kill_grace", "--kill-grace", "seconds", "S", "seconds from TERM to KILL (default: 5)"),
        ("start_timeout", "--start-timeout", "seconds", "S", "seconds to wait for hosts and tasks (default: 600)"),
        ("heartbeat_timeout", "--heartbeat-timeout", "seconds", "S", "seconds a host may be silent (default: 30)"),
        ("sample_interval", "--sample-interval", "seconds", "S", "seconds between two samples; 0: none (default: 5)"),
        ("leader_wait", "--leader-wait", "seconds", "S", "seconds left to other tasks after the leader (default: 300)"),
        ("evaluator_wait", "--evaluator-wait", "seconds", "S", "seconds left to an evaluator at the end (default: 60)"),
    ),
}
# fmt: on

GROUPS = tuple(_TABLE)
OPTIONS = tuple(
    Option(key, tuple(flags.split()), KINDS[kind], metavar, text, group)
    for group, rows in _TABLE.items()
    for key, flags, kind, metavar, text in rows
)

Table = Sequence[Option]  # the options of a command line: OPTIONS, then those that only some schedulers know


def of_scheduler(key: str, flags: str, metavar: str, text: str, *, kind: str = "text") -> Option:
    """Make an Option that only some schedulers know.

    Args:
        key: As in Option, and so is ``metavar``.
        flags: With spaces between them.
        metavar: As in Option.
        text: One line for the help.
        kind: The name of one of KINDS.
    """
    return Option(key, tuple(flags.split()), KINDS[kind], metavar, text, REQUESTS)


def aliases(table: Table) -> dict[str, str]:
    """Other names of keys that job files accept, from further long flags: ``queue`` -> ``partition``."""
    plain = [one for one in table if one.metavar and "." not in one.key and one.kind is not KINDS["gres"]]
    names = {flag[2:].replace("-", "_"): option.key for option in plain for flag in option.flags if flag[1] == "-"}
    return {name: key for name, key in names.items() if name != key}


def by_variable(table: Table) -> dict[str, Option]:
    """Environment variable -> the option that it sets."""
    return {variable: option for option in table for variable in option.variables}


def read(option: Option, text: str, environ: Mapping[str, str]) -> dict[Key, object]:
    """Read the value of an option.

    Args:
        option: A row of the table.
        text: The value as typed.
        environ: Where ``--env K`` finds the value of K.

    Returns:
        Key -> value.

    Raises:
        UsageError: For ``--env K`` when K is not set, for ``--set K``, and for arguments with an open quote.
    """
    key = tuple(option.key.split("."))
    if option.kind is KINDS["parameters"]:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{text!r} is not a parameter", hint="write NAME=VALUE, such as lr=0.01")
        return {(*key, name): value}
    if option.kind is not KINDS["variables"]:
        return {key: option.kind.read(text)}
    name, equals, value = text.partition("=")
    if not equals and not re.fullmatch("[A-Za-z0-9_]+", name):
        raise UsageError(f"{text!r} is not a variable", hint="write NAME=VALUE, or NAME to copy its value")
    if not equals and name not in environ:
        raise UsageError(f"{name} is not set", hint=f"a name alone copies its value; to set one, write {name}=VALUE")
    return {(*key, name): value if equals else environ[name]}


def of_flag(option: Option, flag: str) -> dict[Key, object]:
    """The key and value that a flag without text sets. flag: as typed, such as ``--no-chief``."""
    made = option.kind.of_flag
    return {tuple(option.key.split(".")): made(not flag.startswith("--no-")) if made else None}


def flag(key: str) -> str:
    """The option that sets a key, as in messages; the key itself where none does, as for ``tasks.ps.cpus``, and for a
    variable of the scheduler's commands, such as ``SBATCH_TIMELIMIT``."""
    known = next((option.flags[0] for option in OPTIONS if option.key == key), "")
    return known or (
        key if "." in key or key in ("command", "tasks") or key.isupper() else f"--{key.replace('_', '-')}"
    )
