"""Words that users bring from elsewhere, and what to write instead. Pure; loaded only after a mistake.

The words are written as keys: ``num_ps`` stands for the option --num-ps as well. Single letters keep their case.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from gridtf.jobspec.options import Table, as_key
from gridtf.jobspec.spec import LISTS, container_path
from gridtf.jobspec.tasktypes import TASK_TYPES
from gridtf.jobspec.units import format_walltime
from gridtf.text import toml

_Row = TypeVar("_Row")

# Command -> other words for it, and what follows it: the job, the whole rest of the line, or nothing.
_COMMANDS = {
    "cancel": ("kill stop scancel qdel delete del rm remove abort terminate end", "JOB"),
    "tensorboard": ("tb board", "JOB"),
    "metrics": ("prometheus openmetrics", ""),
    "clean": ("cleanup prune purge gc rmdir tidy", ""),
    "list": ("ps jobs queue squeue qstat ls sacct history get", ""),
    "resume": ("restart retry rerun requeue continue resubmit", "JOB"),
    "report": ("usage plot curves compare cost efficiency seff sstat", "JOB"),
    "output": ("cp download fetch results outdir", "JOB"),
    "logs -f": ("tail follow attach stream", "JOB"),
    "logs": ("log cat less stdout stderr", "JOB"),
    "status --watch": ("watch top htop live", "JOB"),
    "status": ("show info describe stat inspect scontrol state why events tasks attempts steps", "JOB"),
    "render": ("check validate lint dryrun dry-run preview plan script config settings", "rest"),
    "submit": ("start launch sbatch qsub train job", "rest"),
    "run": ("exec srun local mpirun torchrun here", "rest"),
    "doctor": (
        "diagnose checkup healthcheck selftest test verify nodes hosts sinfo qhost partitions queues gpus nvidia-smi",
        "",
    ),
    "doctor --probe": ("probe", ""),
    "init": ("configure setup", ""),
}

# Words for what no command does, and what does it; {} is the job.
_NO_COMMANDS = {
    "exec ssh shell bash sh enter connect": (
        "gridtf status {} shows the hosts; Slurm opens a shell there by srun --jobid=ID --overlap --pty bash, else ssh"
    ),
    "hold release suspend unsuspend pause unpause signal update alter modify scale": (
        "the scheduler's own command does it, such as scontrol or qalter; gridtf status {} shows the job's id"
    ),
    "checkpoint save": (
        "SIGUSR1 to the job's script requests one: scancel --batch --signal=USR1 ID; or at the end of the walltime, by "
        "--checkpoint-before 5m"
    ),
}

# Options, by the names of their keys or flags -> other words for them.
_OPTIONS = {
    "workers": (
        "num_workers nworkers n_workers num_worker worker worker_count world_size ntasks num_tasks n_tasks tasks n np "
        "nproc num_processes processes replicas num_replicas instances"
    ),
    "ps": "num_ps nps n_ps ps_count parameter_server parameter_servers num_parameter_servers n_parameter_servers",
    "evaluator": "eval evaluators num_evaluators",
    "data_workers": "data_worker num_data_workers dataset_workers num_dataset_workers input_workers",
    "chief": "coordinator chiefs num_chiefs",
    "restarts": "retries retry max_retries restart max_restarts num_restarts restart_policy backoff_limit",
    "spare_nodes": "spares spare spare_hosts extra_nodes",
    "nodes": "nnodes num_nodes n_nodes node hosts num_hosts machines num_machines",
    "gpus_per_node gpus_per_task": "gpus gpu ngpus ngpu n_gpus num_gpus gpu_count G",
    "gpus_per_node": "gpus_per_host gpus_per_machine gpu_per_node",
    "gpus_per_task": "gpus_per_worker gpus_per_process gpu_per_task",
    "tasks_per_node": (
        "ntasks_per_node nproc_per_node nprocs_per_node processes_per_node workers_per_node tasks_per_host ppn"
    ),
    "cpus_per_task": (
        "cores cpus cpu ncpus ncores num_cpus num_cores cores_per_task cpus_per_worker threads nthreads num_threads "
        "omp_num_threads"
    ),
    "mem mem_per_task": "memory ram",
    "mem": "mem_per_node memory_per_node mem_per_host",
    "mem_per_task": "mem_per_cpu mem_per_gpu mem_per_worker memory_per_task",
    "time": (
        "walltime wall_time wall wall_clock_limit timelimit time_limit max_time max_runtime max_walltime runtime "
        "run_time duration"
    ),
    "time start_timeout": "timeout",
    "name": "job_name jobname title",
    "project": "P",
    "chdir": "workdir work_dir working_dir working_directory cwd wd dir directory",
    "run_root": "output_dir out_dir outdir log_dir logdir save_dir",
    "env": "environment environ envs variables v",
    "setup": "pre prolog prologue pre_run prerun before setup_commands init init_commands",
    "native": "extra extra_args scheduler_args scheduler_options sbatch_args qsub_args slurm_args sge_args",
    "python": "interpreter python_path",
    "scheduler": "executor launcher batch_system",
    "entry": "entrypoint entry_point function",
    "container_binds": "bind binds mount mounts volume volumes container_bind container_mounts B",
    "dry_run": "test_only dry preview check",
    "wait": "block sync attach foreground",
    "follow": "tail stream logs watch",
}

# What tells options apart that one word stands for.
_EACH = {
    "--gpus-per-node": " (on each host)",
    "--gpus-per-task": " (for each task)",
    "--mem": " (on each host)",
    "--mem-per-task": " (for each task)",
    "--time": " (of the job)",
    "--start-timeout": " (until all tasks have started)",
}

# Keys of a task type -> other words for them; task types -> other words for them.
_TASK_KEYS = {
    "count": "number num n replicas instances tasks workers",
    "cpus": "cpus_per_task cores cpu ncpus",
    "gpus": "gpus_per_task gpu ngpus num_gpus",
    "mem": "mem_per_task memory ram",
    "partition": "queue",
    "kind": "type role",
    "command": "cmd args program script run",
    "env": "environment variables",
}
_TASK_TYPES = {
    "worker": "num_workers slave trainer",
    "ps": "parameter_server parameter_servers server servers",
    "chief": "leader coordinator head",
    "evaluator": "eval validator",
    "data_worker": "dataset_worker input_worker data_workers",
    "data_dispatcher": "dispatcher",
}

# Items of lists, {} being the value.
_ITEMS = {
    "module modules module_load load": ("setup", "module load {}"),
    "conda conda_env conda_environment": ("setup", "conda activate {}"),
    "venv virtualenv virtual_env": ("setup", "source {}/bin/activate"),
    "mail email mail_to notify_email": ("notify", "mail:{}"),
    "env_file dotenv export_file": ("setup", "set -a; source {}; set +a"),
}

# Options of sbatch and qsub without a counterpart in gridtf, which --native passes on.
_SBATCH = (
    "array begin clusters comment constraint core_spec cpu_bind cpu_freq deadline dependency distribution "
    "gpu_bind gpu_freq gres_flags hint licenses mail_type mail_user mem_bind mincpus nice nodefile nodelist "
    "ntasks_per_socket open_mode prefer priority propagate qos reservation signal sockets_per_node switches "
    "threads_per_core tmp wckey"
)
_SBATCH_SWITCHES = "contiguous exclusive hold no_requeue overcommit oversubscribe requeue spread_job"
_SBATCH_LETTERS = {"C": "constraint", "d": "dependency", "w": "nodelist", "L": "licenses", "H": "hold"}
_QSUB = "R ac ar bamount binding btype bunit ckpt dl hard hold_jid l m M masterq notify now r soft tc"

_CONTAINER = "container_image image docker singularity apptainer sif"
_JOB_FILE = "f file config config_file job_file jobfile spec toml"
_COMMAND = "command cmd script program exec executable run wrap"
_VARIABLES = "export V"

# What has no counterpart at all.
_ANSWERS = {
    "quiet silent q": "gridtf submit has --quiet; elsewhere append > /dev/null",
    "verbose verbosity": "--debug shows the traceback of an error, `gridtf render` where every value comes from",
    "output o error e stdout stderr log log_file logfile j": (
        "every task has a log of its own in the run directory: gridtf logs JOB; --run-root DIR moves it"
    ),
    "parsable terse": "gridtf submit --quiet prints the job's id alone",
    "background detach yes force": "leave it out: gridtf submit asks nothing, and does not wait for the job",
    "resume resume_from": (
        "write: gridtf resume JOB; an option of your program goes after it: -- python train.py --resume"
    ),
    "checkpoint_dir ckpt_dir model_dir": (
        "gridtf gives its tasks a folder, OUTPUT_DIR; an option of your program goes after it: "
        "-- python train.py --model_dir={output_dir}"
    ),
    "standalone node_rank machine_rank rdzv_backend rdzv_endpoint rdzv_id rdzv_conf main_process_ip main_process_port "
    "bind_to map_by mca allow_run_as_root": "leave it out: gridtf starts all tasks, and they find each other",
    "port ports master_port master_addr hostfile machinefile": (
        "leave it out: gridtf takes the hosts from the scheduler, and finds free ports"
    ),
    "ps_hosts worker_hosts task_index job_type cluster_spec tf_config": (
        "gridtf sets TF_CONFIG; an argument of your program goes after it: "
        "-- python train.py '--ps_hosts={ps_hosts}' '--task_index={task_index}'"
    ),
    "interactive pty": "`gridtf run` runs a job in an allocation that you have, such as an salloc",
    "version": "write: gridtf --version",
    "S b y": "leave it out: gridtf writes the job script",
    "nv rocm": "leave it out: gridtf adds it for tasks with GPUs, on hosts with the driver",
}

_WITH_JOB = "address cancel logs monitor output report resume stacks status tensorboard wait"

# Commands, their options elsewhere, and what to write.
_OF_COMMANDS = (
    (_WITH_JOB, "j job jobid job_id id name J", "write the job without an option: {}"),
    ("cancel", "n", "write the job without an option: {}"),
    ("logs", "t", "write --task {}"),
    (
        "cancel",
        "a all u user me",
        "name the jobs, as in gridtf cancel 4711 4712; gridtf list --state RUNNING,PENDING shows them",
    ),
    ("list", "running pending failed completed cancelled", "write --state STATE, such as --state RUNNING,PENDING"),
    ("list", "n limit last tail", "the newest 20 are shown, and all with --all: gridtf list --all | head -n {}"),
    ("list", "sort order S", "leave it out: the newest job comes first"),
    ("logs", "n lines last", "write --tail {}"),
    ("logs", "worker rank index", "write --task worker:{}"),
    ("logs", "F watch", "write -f"),
    ("address", "task", "write the task after JOB: {}"),
    ("address", "worker rank index", "write the task after JOB: worker:{}"),
    ("list", "a", "write --all"),
    ("status", "f follow", "write: gridtf logs -f JOB, or gridtf status --watch JOB"),
    ("status", "wait", "write: gridtf wait JOB"),
    ("list", "u user", "leave it out: the list has your jobs alone"),
    ("list", "w watch", "write: gridtf status --watch JOB"),
    ("doctor", "fix repair", "write: gridtf init, which writes the settings that jobs need here"),
    ("init", "force f overwrite", "init overwrites no file: move it away first"),
    ("init", "write o output file", "write: gridtf doctor --write {}"),
    (
        "init",
        "probe scheduler s partition p queue account pe time nodes gpus_per_node site",
        "write: gridtf doctor --write FILE, with options of a job",
    ),
    ("cancel", "f force y yes 9 signal s", "leave it out: a task that ignores TERM is killed after the grace period"),
)

# Options of qsub with a single dash that argparse would read as other options: -pe as -p e.
QSUB_WORDS = frozenset(("-pe", "-cwd", "-wd", "-now", "-ckpt", "-tc", "-notify", "-dl", "-hold_jid", "-hard", "-terse"))


def command(word: str, rest: Sequence[str]) -> str:
    """What to write in place of a word that is no command.

    Args:
        word: The word.
        rest: The words after it.

    Returns:
        A hint; empty for a word that nobody would use for a command.
    """
    line = shlex.join(rest)
    if word.startswith("-"):
        return f"a command comes first: gridtf submit {shlex.join([word, *rest])}"
    if word.endswith(".toml"):
        return f"write: gridtf submit {shlex.join([word, *rest])}"
    job = next((part for part in rest if not part.startswith("-") and not part.isdecimal()), None)
    job = shlex.quote(job or next((part for part in rest if part.isdecimal()), "JOB"))
    if "--" not in rest and (told := _found(word.lower(), _NO_COMMANDS)):
        return told.format(job)
    found = next((row for row in _COMMANDS.items() if word.lower() in row[1][0].split()), None)
    if found is None:
        program = as_program([word, *rest])
        return f"write: gridtf submit -- {shlex.join(program)}" if program else ""
    name, (_, follows) = found
    after = {"JOB": job, "rest": line or "JOBFILE", "": ""}[follows]
    more = {"submit": " (or gridtf run, right here)"}.get(name, "")
    if word in ("check", "config", "settings"):
        more = "; gridtf doctor examines the site, gridtf init writes its settings"
    return f"write: gridtf {name} {after}".rstrip() + more


def qsub(word: str, after: Sequence[str]) -> str:
    """What to write in place of one of QSUB_WORDS. after: the words that follow it."""
    values = [part for part in after[:2] if not part.startswith("-")]
    if told := _found(word.lstrip("-"), _ANSWERS):
        return told
    if word == "-pe":
        return f"write --pe {(values or ['NAME'])[0]} --slots {values[1] if values[1:] else 'N'}"
    if word == "-cwd":
        return "leave it out: the job runs in the current folder, or in that of --chdir DIR"
    if word == "-wd":
        return f"write --chdir {shlex.quote((values or ['DIR'])[0])}"
    taken = [word] if word in ("-notify", "-hard") else [word, *values[:1]]
    return f"write {_as_option('native', ' '.join(taken))}"


def of_command(prog: str, flag: str, value: str) -> str:
    """What to write in place of an unknown option of a command without job options, such as ``gridtf logs``."""
    name = prog.rpartition(" ")[2]
    row = next((row for row in _OF_COMMANDS if name in row[0].split() and _word(flag) in row[1].split()), None)
    other = {"init": "FILE", **dict.fromkeys(_WITH_JOB.split(), "JOB"), "logs": "N"}.get(name, "N")
    return row[2].format(value or other) if row else ""


def of_argument(prog: str, word: str) -> str:
    """What to write in place of a second argument of a command that takes one job; empty for other commands."""
    name = prog.rpartition(" ")[2]
    if name == "logs" and re.fullmatch(r"([a-z_]+:)?\d+", word):
        return f"write --task {word if ':' in word else f'worker:{word}'}"
    one = name in _WITH_JOB.split() and name not in ("address", "report")
    return f"{prog} takes one job; write the command once for each" if one else ""


def as_program(words: Sequence[str]) -> list[str] | None:
    """The command that words without a ``--`` before them stand for; None where they are no command.

    Args:
        words: Such as ``["train.py", "--epochs", "3"]``, which lacks ``python``.
    """
    name = words[0].rsplit("/", 1)[-1] if words else ""
    if name.endswith(".py"):
        return ["python", *words]
    if name.endswith(".sh"):
        return ["bash", *words]
    known = re.fullmatch(r"i?python[\d.]*|bash|sh|mpirun|mpiexec|srun|env|apptainer|singularity|conda|uv", name)
    return list(words) if known and len(words) > 1 else None


def option(flag: str, value: str | None, prog: str, flags: Mapping[str, str]) -> str:
    """What to write in place of an unknown option of a job.

    Args:
        flag: The option as typed, such as ``--gres``.
        value: Its value, if it has one.
        prog: The command, such as ``gridtf submit``.
        flags: All flags of the command -> the metavar of their value, empty without one.

    Returns:
        A hint; empty for an option that nobody knows.
    """
    word = _word(flag)
    alone = is_switch(flag) or word in _QSUB.split()
    if pairs := _pairs(word, value or (True if alone else "…"), flag):
        return "write " + " ".join(_as_option(*pair) for pair in pairs)
    targets = _targets(word, _OPTIONS)
    if targets == "nodes" and value and not re.match("[0-9]", value):  # names of hosts
        return f"write {_as_option('native', f'--nodelist={value}')} (Slurm), or --native='-l hostname=…' (Grid Engine)"
    if targets == "entry" and value and as_program([value]):
        targets, word = "", "program"
    if targets:
        known = [name for target in targets.split() if (name := f"--{target.replace('_', '-')}") in flags]
        lines = [f"{name} {shlex.quote(value) if value else flags[name]}" if flags[name] else name for name in known]
        each = [_EACH.get(name, "") for name in known] if lines[1:] else [""]
        return f"write {' or '.join(line + more for line, more in zip(lines, each, strict=True))}" if lines else ""
    if word in _JOB_FILE.split():
        return f"the job file is an argument without an option: {prog} {shlex.quote(value or 'gridtf.toml')}"
    if word in _COMMAND.split():
        return f"the command goes after --: {prog} -- {shlex.join(as_list('command', value or 'python train.py'))}"
    if word == "arguments":
        return f"write --args={shlex.quote(value or '…')}"
    if word in _CONTAINER.split():
        return f"write --container {shlex.quote(_image(value)) if value else 'IMAGE'}"
    if word in _VARIABLES.split():
        names = [name for name in (value or "").split(",") if name not in ("", "ALL", "NONE")]
        return f"write {' '.join(f'--env {shlex.quote(name)}' for name in names) or '--env NAME for each variable'}"
    return _found(word, _ANSWERS) or ""


def is_switch(flag: str) -> bool:
    """Whether an option of sbatch takes no value of its own: the next word is something else."""
    word = _word(flag)
    return _SBATCH_LETTERS.get(word, word) in _SBATCH_SWITCHES.split()


def key(word: str, value: object, table: Table) -> str:
    """What to write in place of an unknown key of a job file.

    Args:
        word: The key as written, at the top of the file.
        value: Its value.
        table: All options.

    Returns:
        A hint; empty for a key that nobody knows.
    """
    name = _word(word)
    if (known := as_key(name, value, table)) != "":
        return known
    if isinstance(value, Mapping):
        return task_type(name) or ("write [env]" if _targets(name, _OPTIONS) == "env" else "")
    text = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
    if pairs := _pairs(name, text, name):
        merged: dict[str, object] = {}
        for target, item in pairs:
            merged[target] = [*merged.get(target, []), item] if target in LISTS else item  # type: ignore[misc]
        return f"write {' and '.join(f'{target} = {toml(item)}' for target, item in merged.items())}"
    if name in _COMMAND.split():
        return f"write command = {toml(as_list('command', value))}"
    if name == "arguments":
        return f"write args = {toml(as_list('args', value))}"
    if name in _CONTAINER.split():
        return f"write container = {toml(_image(str(value)))}"
    hints = [as_key(target, value, table) for target in _targets(name, _OPTIONS).split()]
    if hints:
        return " or ".join([hints[0], *(hint.removeprefix("write ") for hint in hints[1:])])
    return _found(name, _ANSWERS) or ""


def task_key(word: str, value: object, job_keys: Collection[str]) -> str:
    """What to write in place of an unknown key of ``[tasks.TYPE]``.

    Args:
        word: The key as written.
        value: Its value.
        job_keys: The keys of the job itself.

    Returns:
        A hint; empty for a key that nobody knows.
    """
    if target := _targets(_word(word), _TASK_KEYS):
        return f"write {target} = {toml(as_list('command', value) if target == 'command' else value)}"
    if word in job_keys:
        return f"it is a key of the job: write {word} = {toml(value)} above the first [table]"
    return ""


def task_type(word: str) -> str:
    """What to write in place of an unknown task type; empty for a word that nobody uses for one."""
    target = _targets(_word(word), _TASK_TYPES)
    return f"write [tasks.{target}]" if target in TASK_TYPES else ""


def variable(word: str) -> list[str]:
    """The names of the options that a word after GRIDTF_SUBMIT_ stands for."""
    return [name.upper() for name in _targets(_word(word), _OPTIONS).split()]


def _image(text: str) -> str:
    """An image as Apptainer names it: docker://HOST/NAME:TAG for the names of Docker and of pyxis (HOST#NAME:TAG)."""
    return text if "://" in text or container_path(text) else f"docker://{text.replace('#', '/')}"


def as_list(name: str, value: object) -> list[str]:
    """The list that a string in its place stands for: words of a command or of types, lines of anything else."""
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    text = str(value)
    if name == "container_command":
        return shlex.split(text) if _splits(text) else [text]
    if name == "args":
        return shlex.split(text) if _splits(text) else [text]
    if name == "command":
        words = shlex.split(text) if _splits(text) else [text]
        return as_program(words) or words
    if name == "serve":
        return [word for word in re.split(r"[\s,]+", text) if word]
    return [line for line in text.splitlines() if line.strip()] or [text]


def _word(text: str) -> str:
    word = text.lstrip("-").replace("-", "_")
    return word if len(word) == 1 else word.lower()


def _targets(word: str, table: Mapping[str, str]) -> str:
    return next((targets for targets, words in table.items() if word in words.split()), "")


def _found(word: str, table: Mapping[str, _Row]) -> _Row | None:
    return next((row for words, row in table.items() if word in words.split()), None)


def _splits(text: str) -> bool:
    try:
        return bool(shlex.split(text))
    except ValueError:  # an open quote
        return False


def _pairs(word: str, value: object, flag: str) -> list[tuple[str, object]]:
    """The (key, value) pairs of options that a scheduler's own option, or an item of a list, stands for.

    Args:
        word: The option or key.
        value: Its value; True without one.
        flag: The option as typed.
    """
    if value in (None, False):
        return []
    if word == "gres":
        gpus = re.fullmatch(r"(?:gres[:/])?gpu(?::(\d+))?", str(value))
        return [("gpus_per_node", int(gpus[1] or 1)) if gpus else ("native", f"--gres={value}")]
    if word == "pe":
        name, _, slots = str(value).partition(" ")
        return [("pe", name), ("slots", int(slots) if slots.isdecimal() else slots or "N")]
    if word in ("l", "h_rt"):
        return [_resource(part) for part in (f"h_rt={value}" if word == "h_rt" else str(value)).split(",")]
    if word in _QSUB.split() and not flag.startswith("--"):
        return [("native", f"-{word}" if value is True else f"-{word} {value}")]
    long = _SBATCH_LETTERS.get(word, word)
    if long in _SBATCH.split() or long in _SBATCH_SWITCHES.split():
        name = f"--{long.replace('_', '-')}"
        return [("native", name if value is True else f"{name}={value}")]
    key, item = _found(word, _ITEMS) or ("", "")
    return [(key, line) for line in item.format(value).splitlines()]


def _resource(part: str) -> tuple[str, object]:
    """One of the resources that qsub -l requests, such as ``h_rt=3600``."""
    name, _, value = part.partition("=")
    if name == "h_rt" and value:  # in seconds, where gridtf's plain numbers are minutes
        return "time", format_walltime(int(value)) if value.isdecimal() else value
    if name == "gpu" and value.isdecimal():
        return "gpus_per_task", int(value)
    return "native", f"-l {part}"


def _as_option(key: str, value: object) -> str:
    text = shlex.quote(str(value))
    return f"--native={text}" if key == "native" else f"--{key.replace('_', '-')} {text}"
