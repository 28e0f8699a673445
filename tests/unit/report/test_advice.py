"""Advice from what a job has used: the lines of a job file, with their reasons."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gridtf.jobspec.config import Typed, configure
from gridtf.jobspec.spec import JobSpec
from gridtf.report.advice import Advised
from gridtf.report.gather import gather, gather_all
from gridtf.run import jsonlines
from gridtf.run.rundir import RunDir
from tests.support import recordedruns
from tests.support.plans import NONCE
from tests.support.scheduler import FakeScheduler

GIB = 1 << 30
# The recorded jobs have one worker on each of two hosts, which used up to 3.6 cores and 2 GiB for 10 minutes.
RIGHT = {"cpus_per_task": 4, "mem_per_task": "2560M", "time": "15"}


@pytest.fixture
def make(fake: FakeScheduler, rough_path: Path) -> Callable[..., RunDir]:
    def made(name: str = "train", spec: Mapping[str, Any] = RIGHT, **more: Any) -> RunDir:
        run = recordedruns.make(rough_path / name, **{"workers": 2, **more})
        return recordedruns.describe(run, **spec)

    return made


def edit(run: RunDir, change: Callable[[dict[str, Any]], object]) -> RunDir:
    """Change each sample of a job."""
    path = run.attempt(1).samples
    samples = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    for sample in samples:
        change(sample)
    path.write_text(jsonlines.head(NONCE) + "".join(map(jsonlines.line, samples)))
    return run


def told(run: RunDir, **verdict: Any) -> RunDir:
    """Change the verdict on a job."""
    path = run.attempt(1).verdict
    path.write_text(json.dumps({**json.loads(path.read_text()), **verdict}))
    return run


def use(**more: Any) -> Callable[[dict[str, Any]], object]:
    """What all tasks use."""
    return lambda sample: [task.update(more) for task in sample["tasks"].values()]


def gpus(use_of: Callable[[str, str], float], memory: int = 60 * GIB) -> Callable[[dict[str, Any]], object]:
    """What GPUs are used: (host, index) -> percent."""

    def change(sample: dict[str, Any]) -> None:
        for index, gpu in sample["gpus"].items():
            gpu.update(use=use_of(sample["host"], index), memory=memory)

    return change


def lines(*runs: RunDir, now: float = recordedruns.BEGIN) -> list[str]:
    found = Advised([gather(run, now) for run in runs]).lines()
    Path("advice.toml").write_text("\n".join(found))  # which is a job file
    environ = {"GRIDTF_SITE_CONFIG": "", "HOME": str(Path.cwd()), "GRIDTF_SUBMIT_TIME": "9:00:00"}
    configure(Typed("advice.toml", (), ["x"]), environ, Path.cwd())
    return [" ".join(line.split()) for line in found]


def test_request_that_was_too_large(make: Callable[..., RunDir]) -> None:
    run = make(spec={"cpus_per_task": 8, "mem_per_task": "16G", "time": "24:00:00"})
    assert lines(run) == [
        "cpus_per_task = 4 # 3.6 cores in 95 % of the samples; 8 requested",
        'mem_per_task = "2560M" # 2.0 GiB + 25 %; 16G requested',
        'time = "00:13:00" # 10 min 11 s + 25 %; 1-00:00:00 requested',
    ]


def test_request_that_was_too_small(make: Callable[..., RunDir]) -> None:
    run = make(spec={"cpus_per_task": 3, "mem_per_task": "2100M", "time": "11"})
    assert lines(run) == [
        "cpus_per_task = 4 # 3.6 cores in 95 % of the samples; 3 requested",
        'mem_per_task = "2560M" # 2.0 GiB + 25 %; 2100M requested',
        'time = "00:13:00" # 10 min 11 s + 25 %; 00:11:00 requested',
    ]


def test_nothing_was_requested(make: Callable[..., RunDir]) -> None:
    assert [line.partition(" # ")[2] for line in lines(make(spec={}))] == [
        "3.6 cores in 95 % of the samples",
        "2.0 GiB + 25 %",
        "10 min 11 s + 25 %",
    ]


ABOUT_RIGHT = "# about right: cpus_per_task (4), mem_per_task (2560M), time (00:15:00)"


def test_request_that_was_about_right(make: Callable[..., RunDir]) -> None:
    assert lines(make()) == [ABOUT_RIGHT]


def test_memory_of_a_host_and_of_a_type(make: Callable[..., RunDir]) -> None:
    spec = {"mem": "64G", "cpus_per_task": 4, "time": "15"}
    assert lines(make(spec=spec, host_count=1))[0] == 'mem = "5G" # 4.0 GiB + 25 %; 64G requested'
    ps = {"count": 1, "mem": "9G", "cpus": 4}
    both = {"tasks": {"worker": {"count": 1}, "ps": ps}, **RIGHT}
    assert lines(make("ps", spec=both, workers=1, ps=1))[:1] == [
        'tasks.ps.mem = "2560M" # 2.0 GiB + 25 %; 9G requested'
    ]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (
            {"state": "OUT_OF_MEMORY"},
            [
                "# about right: cpus_per_task (4)",
                "# nothing is advised on memory: it has ended OUT_OF_MEMORY, and needs more than it had",
                "# nothing is advised on the walltime: it is OUT_OF_MEMORY, and only a COMPLETED job shows how long it "
                "takes",
            ],
        ),
        (
            {"state": "TIMEOUT"},
            [
                "# about right: cpus_per_task (4), mem_per_task (2560M)",
                "# nothing is advised on the walltime: it is TIMEOUT, and only a COMPLETED job shows how long it takes",
            ],
        ),
        (
            {"state": "FAILED"},
            [
                "# nothing is advised on memory and CPUs: it is FAILED, and might have needed more later",
                "# nothing is advised on the walltime: it is FAILED, and only a COMPLETED job shows how long it takes",
            ],
        ),
    ],
)
def test_what_a_job_cannot_tell(make: Callable[..., RunDir], change: dict[str, Any], found: list[str]) -> None:
    assert lines(told(make(), **change)) == found


def test_short_job_and_one_without_records(make: Callable[..., RunDir]) -> None:
    few = "# nothing is advised on memory and CPUs: a task was measured {} times, at least 5 needed"
    assert few.format(3) in lines(make(minutes=0.25, gpus=2))
    run = make("bare")
    run.attempt(1).samples.unlink()
    run.job.unlink()
    assert few.format(0) in lines(run)


def test_continued_job_tells_how_long_it_took_in_all(make: Callable[..., RunDir]) -> None:
    run = told(make(), state="SAVED")
    recordedruns.make(run.path, workers=2, begin=recordedruns.BEGIN + 3600)
    assert lines(run)[-1] == "# nothing is advised on the walltime: it has had 2 attempts, 20 min 22 s in all"


def test_cpus_that_were_all_busy(make: Callable[..., RunDir]) -> None:
    run = edit(make(), use(cpu=4.04))
    why = "4.0 cores in 95 % of the samples, 4 in 75 %: more may be faster; 4 requested"
    assert lines(run)[0] == f"cpus_per_task = 4 # {why}"


def test_gpus_that_wait_for_data(make: Callable[..., RunDir]) -> None:
    run = edit(edit(make(gpus=1), use(cpu=3.9)), gpus(lambda host, index: 38.0))
    waits = "GPUs idle 62 %, all CPUs of worker:0, worker:1 busy: they waited for data; try more"
    assert f"tasks.data_worker.count = 2 # {waits}" in lines(run)
    edit(run, gpus(lambda host, index: 80.0))
    assert not any("data_worker" in line for line in lines(run))
    edit(edit(run, use(cpu=2.0)), gpus(lambda host, index: 38.0))  # it waits, but not for CPUs
    assert not any("data_worker" in line for line in lines(run))


@pytest.mark.parametrize(
    ("use_of", "why"),
    [
        (
            lambda host, index: 90.0 if host == "h0" else 1.0,
            "1 host less: 2 of 4 GPUs used less than 5 %: 0 on h1, 1 on h1",
        ),
        (lambda host, index: 90.0 * (index == "0"), "fewer GPUs: 2 of 4 GPUs used less than 5 %: 1 on h0, 1 on h1"),
        (
            lambda host, index: 0.0,
            "fewer GPUs: 4 of 4 GPUs used less than 5 %: 0 on h0, 1 on h0, 0 on h1, 1 on h1",
        ),
        (lambda host, index: 50.0, ""),
    ],
)
def test_gpus_that_were_not_used(make: Callable[..., RunDir], use_of: Callable[[str, str], float], why: str) -> None:
    assert lines(edit(make(gpus=2), gpus(use_of))) == [*([f"# {why}"] if why else []), ABOUT_RIGHT]
    short = edit(make("short", gpus=2, minutes=4.0), gpus(use_of))  # the start of a job leaves GPUs idle
    assert not any("GPU" in line for line in lines(short))


def test_spare_host_is_idle_on_purpose(make: Callable[..., RunDir]) -> None:
    spec = {**RIGHT, "nodes": 1, "spare_nodes": 1, "restarts": 1}
    run = edit(make(spec=spec, gpus=2, workers=1), gpus(lambda host, index: 90.0 * (host == "h0")))
    assert not [line for line in lines(run) if "GPU" in line]


def test_type_of_the_job_s_own(make: Callable[..., RunDir]) -> None:
    """Another job's, of which this one knows nothing."""
    run = make(workers=1, ps=1)
    samples = run.attempt(1).samples
    samples.write_text(samples.read_text().replace('"ps:0"', '"board:0"'))
    plan = json.loads(run.attempt(1).plan.read_text())
    plan["tasks"][1] |= {"type": "board", "kind": "service"}
    run.attempt(1).plan.write_text(json.dumps(plan))
    recordedruns.describe(run, tasks={"worker": {"count": 1}, "board": {"kind": "service", "count": 1}})
    assert lines(run)[0].startswith("# about right")
    run.job.unlink()
    found = Advised([gather(run, recordedruns.BEGIN)], JobSpec(command=("x",))).to_dict()
    assert [one["key"] for one in found["advice"] if one["taken"]] == ["cpus_per_task", "mem_per_task"]


def test_gpu_memory_that_was_not_used(make: Callable[..., RunDir]) -> None:
    run = edit(make(gpus=1), gpus(lambda host, index: 90.0, memory=3 * GIB))
    small = "# GPU memory: at most 3.0 GiB of 80.0 GiB used: a larger batch, or a smaller GPU, may do"
    assert lines(run)[0] == small


def test_tasks_that_did_nothing(make: Callable[..., RunDir]) -> None:
    def idle(sample: dict[str, Any]) -> None:
        if "worker:1" in sample["tasks"]:
            sample["tasks"]["worker:1"]["cpu"] = 0.01

    found = lines(edit(make(), idle))
    assert found[0] == "# fewer workers: worker:1 of 2 workers used less than 0.05 cores"


@pytest.mark.parametrize(
    ("state", "left", "found"),
    [
        ("SAVED", 20.0, 'checkpoint_before = "13m" # 9 min 40 s to save + 25 %; 00:10:00 requested'),
        ("SAVED", 300.0, ""),
        ("TIMEOUT", -1.0, "# checkpoint_before: 10 min 0 s were too little to save"),
        ("COMPLETED", 20.0, ""),
    ],
)
def test_time_to_save(make: Callable[..., RunDir], state: str, left: float, found: str) -> None:
    run = told(make(spec={**RIGHT, "time": "2:00:00", "checkpoint_before": "10m"}), state=state)
    end = recordedruns.BEGIN + 630
    attempt = run.attempt(1)
    launcher = {**json.loads(attempt.launcher.read_text()), "checkpoint": True, "ends": end + left}
    attempt.launcher.write_text(json.dumps(launcher))
    events = attempt.events.read_text()
    attempt.events.write_text(events.replace('"state": "COMPLETED", "exit": 0', '"state": "SAVED", "exit": 42'))
    assert [line for line in lines(run) if "checkpoint_before" in line.partition("#")[0] + line[:20]] == (
        [found] if found else []
    )


def test_what_some_elements_have_used_is_not_idle(make: Callable[..., RunDir]) -> None:
    runs = [edit(make(str(number), gpus=2), gpus(lambda host, index: 90.0 * (index == "0"))) for number in range(2)]
    assert "fewer GPUs: 2 of 4" in lines(*runs)[0]
    edit(runs[1], gpus(lambda host, index: 90.0))
    assert lines(*runs) == [ABOUT_RIGHT]


def test_attempt_that_ran_out_of_memory(make: Callable[..., RunDir]) -> None:
    run = told(make(), state="OUT_OF_MEMORY")
    recordedruns.make(run.path, workers=2, begin=recordedruns.BEGIN + 3600)
    assert "# nothing is advised on memory: it has ended OUT_OF_MEMORY, and needs more than it had" in lines(run)


def test_advice_needs_no_curves(make: Callable[..., RunDir]) -> None:
    run = make("one", gpus=1)
    (material,), whole = (
        gather_all(run, 0.0),
        gather(run, 0.0),
    )  # curves would take as long as all else: think of arrays
    assert not material.usage.curves
    assert whole.usage.curves
    assert Advised([material]).to_dict() == Advised([whole]).to_dict()


@pytest.mark.thorough
def test_largest_of_all_elements(make: Callable[..., RunDir]) -> None:
    runs = [make(str(number), minutes=10.0 + number) for number in range(3)]
    edit(runs[1], use(memory=6 * GIB))
    edit(runs[2], use(cpu=7.0))
    assert lines(*runs) == [
        "cpus_per_task = 7 # 7.0 cores in 95 % of the samples, 4 in 75 %: more may be faster; 4 requested",
        'mem_per_task = "8G" # 6.0 GiB + 25 %; 2560M requested',
        "# about right: time (00:15:00)",
    ]
    told(runs[0], state="FAILED")  # which is no matter, since others tell
    assert lines(*runs)[-1] == "# about right: time (00:15:00)"
    told(runs[0], state="OUT_OF_MEMORY")
    told(runs[1], state="TIMEOUT")
    assert [line.partition(" = ")[0].partition(":")[0] for line in lines(*runs)] == [
        "cpus_per_task",
        "# nothing is advised on memory",
        "# nothing is advised on the walltime",
    ]
