"""gridtf render, and gridtf submit --dry-run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gridtf.cli import main
from gridtf.cli.render import _components, _resources, _tasks
from gridtf.jobspec.request import Request
from gridtf.jobspec.spec import JobSpec, TaskSpec
from gridtf.run import recordtypes
from tests.support.plans import resolved
from tests.support.rendering import plan
from tests.support.scheduler import FakeScheduler

Captured = pytest.CaptureFixture[str]

JOB = """\
command = ["python", "train.py"]
run_dir = "run"
gpus_per_node = 2
[tasks.ps]
count = 2
cpus = 4
[tasks.evaluator]
"""


def test_render_prints_the_script_to_stdout_and_the_summary_to_stderr(
    fake: FakeScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gridtf.toml").write_text(JOB)
    words = ["render", "--scheduler", "slurm", "--nodes", "2", "--env", "A=it's", "--serve", "ps"]
    assert main(words) == 0
    given = capsys.readouterr()
    assert main([*words, "--defaults"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("#!/bin/bash\n")
    assert captured.out.endswith("gridtf_exec\n")
    assert captured.err.replace(str(tmp_path), "HERE").splitlines() == [
        "gridtf: the job is taken from gridtf.toml",
        "name           train",
        "scheduler      slurm",
        "run directory  HERE/run",
        "submit runs    sbatch --parsable < HERE/run/job.sh",
        "resources      2 hosts, 2 training tasks each, 2 GPUs each, 1 per task",
        "tasks          worker:0 to worker:3, ps:0 to ps:1 (served by gridtf), evaluator:0",
        "values",
        _value(tmp_path, 'chdir = "HERE"', "the folder of gridtf.toml"),
        _value(tmp_path, 'command = ["python", "train.py"]', "gridtf.toml:1"),
        _value(tmp_path, 'env.A = "it\'s"', "--env"),
        _value(tmp_path, "gpus_per_node = 2", "gridtf.toml:3"),
        _value(tmp_path, "nodes = 2", "--nodes"),
        _value(tmp_path, 'run_dir = "HERE/run"', "gridtf.toml:2"),
        _value(tmp_path, 'serve = ["ps"]', "--serve"),
        _value(tmp_path, "tasks.evaluator = {}", "gridtf.toml:7"),
        _value(tmp_path, "tasks.ps.count = 2", "gridtf.toml:5"),
        _value(tmp_path, "tasks.ps.cpus = 4", "gridtf.toml:6"),
        _value(tmp_path, 'scheduler = "slurm"', "--scheduler"),
        _value(tmp_path, "snapshot = false", "default"),
        _value(tmp_path, "mpi = false", "default"),
        _value(tmp_path, 'success_policy = "all"', "default"),
        _value(tmp_path, "continuations = 0", "default"),
        _value(tmp_path, 'gpu_resource = "gpu"', "default"),
        _value(tmp_path, "kill_grace = 5.0", "default"),
        _value(tmp_path, 'ports = "auto"', "default"),
        _value(tmp_path, 'fence = "off"', "default"),
        _value(tmp_path, "hook = true", "default"),
        _value(tmp_path, "restarts = 0", "default"),
        _value(tmp_path, "spare_nodes = 0", "default"),
        _value(tmp_path, "avoid_bad_hosts = false", "default"),
        _value(tmp_path, 'stall_after = "10m"', "default"),
        _value(tmp_path, 'on_stall = "report"', "default"),
        _value(tmp_path, 'check = "off"', "default"),
        _value(tmp_path, 'on_bad_host = "warn"', "default"),
        _value(tmp_path, "sample_interval = 5.0", "default"),
        _value(tmp_path, "start_timeout = 600.0", "default"),
        _value(tmp_path, "heartbeat_timeout = 30.0", "default"),
        _value(tmp_path, "evaluator_wait = 60.0", "default"),
        _value(tmp_path, "leader_wait = 300.0", "default"),
    ]
    lines = captured.err.splitlines(keepends=True)
    assert given == (captured.out, "".join(line for line in lines if not line.endswith("  default\n")))


def _value(tmp_path: Path, text: str, source: str) -> str:
    longest = max(len(f'run_dir = "{tmp_path}/run"'), len('command = ["python", "train.py"]'))
    padding = " " * (min(50, longest) - len(text.replace("HERE", str(tmp_path))))
    return f"  {text}{padding}  {source}"


@pytest.mark.parametrize("scheduler", ["local", "slurm", "sge"])
def test_render_changes_nothing_and_needs_no_scheduler(
    scheduler: str, rough_path: Path, tmp_path: Path, capsys: Captured
) -> None:
    run_dir = str(tmp_path / "run")
    words = ["--scheduler", scheduler, "--workers", "2", "--pe", "mpi", "--run-dir", run_dir, "--", "python", "a b.py"]
    assert main(["render", *words]) == 0
    rendered = capsys.readouterr()
    assert main(["submit", "--dry-run", *words]) == 0
    assert capsys.readouterr() == rendered
    assert list(rough_path.iterdir()) == []
    assert list(tmp_path.iterdir()) == [rough_path]
    subprocess.run(["bash", "-n"], input=rendered.out.encode(), timeout=180, check=True)


def test_render_shows_set_up_lines_in_their_order_with_their_sources(
    rough_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    Path("site.toml").write_text(f"setup = {[f'echo {number}' for number in range(1, 10)]}\n")
    Path("job.toml").write_text('command = ["x"]\nsetup = ["echo 10"]\n')
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", "site.toml")
    words = ["job.toml", "--scheduler", "slurm", "--setup", "echo 11"]
    assert main(["render", *words]) == 0
    captured = capsys.readouterr()
    rows = [line.split("  ") for line in captured.err.splitlines() if line.startswith("  setup.")]
    assert [(row[1], row[-1]) for row in rows] == [
        *((f'setup.{number} = "echo {number}"', "site.toml:1") for number in range(1, 10)),
        ('setup.10 = "echo 10"', "job.toml:2"),
        ('setup.11 = "echo 11"', "--setup"),
    ]
    lines = captured.out.splitlines()
    assert [line for line in lines if line.startswith("echo ")] == [f"echo {number}" for number in range(1, 12)]
    assert main(["render", "--json", *words]) == 0
    described = json.loads(capsys.readouterr().out)
    assert (described["sources"]["setup.9"], described["sources"]["setup.10"]) == ("site.toml:1", "job.toml:2")
    assert described["spec"]["setup"][9:] == ["echo 10", "echo 11"]


def test_values_of_this_job_come_before_those_of_the_site(
    rough_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    Path("site.toml").write_text('account = "lab"\nmem = "8G"\n')
    Path("job.toml").write_text('command = ["x"]\nname = "n"\n')
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", "site.toml")
    assert main(["render", "job.toml", "--scheduler", "slurm", "--workers", "2", "--mem", "9G"]) == 0
    values = capsys.readouterr().err.partition("values\n")[2]
    keys = [line.split()[0] for line in values.splitlines()]
    assert keys == ["chdir", "command", "mem", "name", "tasks.worker.count", "account", "scheduler"]


def test_render_reports_what_the_scheduler_cannot_do_with_its_source(rough_path: Path, capsys: Captured) -> None:
    assert main(["render", "--scheduler", "local", "--nodes", "2", "--", "x"]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err[:17]) == ("", "gridtf: --nodes: ")


def test_render_reports_an_existing_run_directory(rough_path: Path, capsys: Captured) -> None:
    words = ["render", "--scheduler", "local", "--run-dir", "run", "--", "x"]
    assert main(words) == 0
    assert f"run directory  {rough_path}/run\n" in capsys.readouterr().err
    Path("run").mkdir()
    assert main(words) == 0
    assert f"run directory  {rough_path}/run (already exists: submit would refuse it)\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--scheduler", "slurm", "--run-dir", "a\\b"], "gridtf: --run-dir: "),
        (["--scheduler", "sge", "--run-dir", "a,b"], "gridtf: --run-dir: "),
        (["--scheduler", "slurm", "--native", "--array=x"], "gridtf: --native: "),
    ],
)
def test_render_reports_values_invalid_in_the_submit_command(
    words: list[str], what: str, rough_path: Path, capsys: Captured
) -> None:
    assert main(["render", *words, "--", "x"]) == 2
    assert capsys.readouterr().err.startswith(what)


def test_render_preserves_undecodable_bytes_of_set_up_lines(
    fake: FakeScheduler, rough_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    words = ["--run-dir", "run", "--setup", "echo \udcff", "--", "x"]
    assert main(["render", *words]) == 0
    script = capsysbinary.readouterr().out
    assert b"\necho \xff\n" in script
    assert main(["submit", *words]) == 0
    assert Path("run/job.sh").read_bytes() == script


@pytest.mark.parametrize(
    ("spec", "tasks"),
    [
        (JobSpec(command=("x",)), ["worker:0 and as many more as there are GPUs for"]),
        (JobSpec(command=("x",), tasks_per_node=2), ["worker:0 and as many more as fit"]),
        (JobSpec(command=("x",), nodes=2, gpus_per_node=2), ["worker:0 to worker:3"]),
        (JobSpec(command=("x",), nodes=2, gpus_per_node=4, gpus_per_task=2), ["worker:0 to worker:3"]),
        (JobSpec(command=("x",), nodes=2, tasks_per_node=3), ["worker:0 to worker:5"]),
        (JobSpec(command=("x",), nodes=2), ["worker:0 and as many more as there are GPUs for"]),
        (JobSpec(command=("x",), nodes="2-4", gpus_per_node=2), ["worker:0 and as many more as there are GPUs for"]),
        (
            JobSpec(command=("x",), nodes=2, gpus_per_node=2, tasks={"chief": TaskSpec(count=1)}),
            ["chief:0", "worker:0 to worker:2"],
        ),
        (
            JobSpec(command=("x",), nodes=2, gpus_per_node=2, tasks={"chief": TaskSpec(count=1, gpus=0)}),
            ["chief:0", "worker:0 to worker:3"],
        ),
        (
            JobSpec(entry="a:b", tasks={"worker": TaskSpec(count=3), "ps": TaskSpec(), "chief": TaskSpec(count=1)}),
            ["chief:0", "worker:0 to worker:2", "ps:0 (served by gridtf)"],
        ),
        (JobSpec(command=("x",), tasks={"chief": TaskSpec(), "worker": TaskSpec(count=0)}), ["chief:0"]),
    ],
)
def test_render_shows_the_tasks_known_before_allocation(spec: JobSpec, tasks: list[str]) -> None:
    assert list(_tasks(resolved(spec))) == tasks


def test_render_json_has_request_script_and_sources(
    fake: FakeScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gridtf.toml").write_text(JOB)
    assert main(["render", "--json", "--scheduler", "slurm", "--nodes", "2"]) == 0
    captured = capsys.readouterr()
    shown = json.loads(captured.out)
    request = recordtypes.read(Request, shown["request"])
    assert (request.nodes, request.gpus_per_node, request.role("ps").count, request.role("ps").cpus) == (
        (2, 2),
        2,
        2,
        4,
    )
    assert shown["script"].startswith("#!/bin/bash\n")
    assert (shown["run_dir"], shown["command"][0]) == (str(tmp_path / "run"), "sbatch")
    assert (shown["sources"]["nodes"], shown["sources"]["gpus_per_node"]) == ("--nodes", "gridtf.toml:3")
    assert list(tmp_path.iterdir()) == [tmp_path / "gridtf.toml"]


@pytest.mark.parametrize(
    ("spec", "resources"),
    [
        (JobSpec(command=("x",)), "1 host, 1 training task each, no GPUs"),
        (JobSpec(command=("x",), nodes="2-4", tasks_per_node=3), "2-4 hosts, 3 training tasks each, no GPUs"),
        (
            JobSpec(command=("x",), nodes=2, gpus_per_node=8, gpus_per_task=2, cpus_per_task=6),
            "2 hosts, 4 training tasks each, 8 GPUs each, 2 per task, 6 CPUs per task",
        ),
    ],
)
def test_render_describes_the_resources(spec: JobSpec, resources: str) -> None:
    assert _resources(resolved(spec), spec.cpus_per_task) == resources


@pytest.mark.parametrize(
    ("words", "resources"),
    [
        ("--nodes 2", "2 hosts, a training task for each of their GPUs, all GPUs that each has"),
        ("--nodes 2 --workers 4", "2 hosts, 2 training tasks each, all GPUs that each has"),
        ("--nodes 2 --tasks-per-node 2", "2 hosts, 2 training tasks each, all GPUs that each has"),
        ("--nodes 2 --gpus-per-node 0", "2 hosts, 1 training task each, no GPUs"),
        ("--nodes 2 --gpus-per-node 2", "2 hosts, 2 training tasks each, 2 GPUs each, 1 per task"),
    ],
)
def test_render_says_that_a_job_with_its_hosts_for_itself_gets_their_gpus(
    rough_path: Path, capsys: Captured, words: str, resources: str
) -> None:
    assert main(["render", "--scheduler", "slurm", "--native=--exclusive", *words.split(), "--", "x"]) == 0
    assert f"resources      {resources}" in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("spec", "slots", "resources"),
    [
        (
            JobSpec(command=("x",), tasks={"worker": TaskSpec(count=8)}, gpus_per_task=1),
            "8",
            "8 slots on hosts that the job learns when it starts, 8 training tasks, 1 GPU per task",
        ),
        (JobSpec(command=("x",), slots="4-8"), "4-8", "4-8 slots on hosts that the job learns when it starts, no GPUs"),
        (JobSpec(command=("x",)), "1", "1 slot, no GPUs"),
    ],
)
def test_render_describes_slots_whose_hosts_are_not_known(spec: JobSpec, slots: str, resources: str) -> None:
    assert _resources(resolved(spec), spec.cpus_per_task, slots) == resources


def test_render_for_grid_engine_describes_slots(rough_path: Path, capsys: Captured) -> None:
    assert main(["render", "--scheduler", "sge", "--workers", "8", "--pe", "mpi", "--run-dir", "/run", "--", "x"]) == 0
    expected = "resources      8 slots on hosts that the job learns when it starts, 8 training tasks, no GPUs"
    assert expected in capsys.readouterr().err.splitlines()


def test_render_masks_secrets_everywhere_but_in_the_script(rough_path: Path, capsys: Captured) -> None:
    Path("gridtf.toml").write_text(
        'command = ["x"]\n[env]\nTOKENIZERS_PARALLELISM = "no"\nDB_PASSWORD1 = "s3"\nGIT_AUTH = "s3"\n'
        'MAX_TOKENS = "4096"\n'
        '[tasks.ps]\nenv.aws_secret_access_key = "s3"\n'
    )
    assert main(["render", "--scheduler", "slurm", "--env", "WANDB_API_KEY=s3"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("s3") >= 3
    assert "s3" not in captured.err
    shown = [line.split("  ")[1].strip() for line in captured.err.splitlines() if "env." in line]
    assert shown == [
        "env.DB_PASSWORD1 = ***",
        "env.GIT_AUTH = ***",
        'env.MAX_TOKENS = "4096"',
        'env.TOKENIZERS_PARALLELISM = "no"',
        "env.WANDB_API_KEY = ***",
        "tasks.ps.env.aws_secret_access_key = ***",
    ]
    assert main(["render", "--json", "--scheduler", "slurm", "--env", "WANDB_API_KEY=s3"]) == 0
    shown_json = json.loads(capsys.readouterr().out)
    assert "s3" in shown_json.pop("script")
    assert "s3" not in json.dumps(shown_json)


def test_render_describes_requests_on_other_partitions() -> None:
    tasks: dict[str, dict[str, Any]] = {
        "ps": {"count": 3, "partition": "cpu", "cpus": 4},
        "evaluator": {"partition": "big"},
    }
    assert list(_components(plan("slurm", tasks=tasks).request)) == [
        "partition cpu: up to 3 hosts, 3 ps, 4 CPUs per task",
        "partition big: 1 host, 1 evaluator",
    ]
    tasks["evaluator"]["partition"] = "cpu"
    assert list(_components(plan("slurm", tasks=tasks).request)) == [
        "partition cpu: up to 4 hosts, 3 ps and 1 evaluator, 4 CPUs per task"
    ]
    assert list(_components(plan("slurm", partition="cpu", tasks=tasks).request)) == []
    assert list(_components(plan("local", tasks=tasks).request)) == []


def test_render_shows_other_partitions_with_the_resources(
    fake: FakeScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gridtf.toml").write_text(f'{JOB}partition = "cpu"\n')
    assert main(["render", "--scheduler", "slurm"]) == 0
    expected = (
        "resources      1 host, 2 training tasks each, 2 GPUs each, 1 per task; partition cpu: 1 host, 1 evaluator"
    )
    assert expected in capsys.readouterr().err.splitlines()
