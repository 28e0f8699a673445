"""Steps per second of training on this machine: under gridtf and by hand, averaged often and seldom.

Each program measures itself, after its first steps. By hand means TF_CONFIG and one process per task, once with the
thread settings that gridtf has chosen for the tasks, once with those of TensorFlow, which are all cores for each task.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from measure import scratch, table
from training_task import PREPARATION, THREADS

ROUNDS = 5
LIMIT = 180.0  # seconds for a program
TASK = str(Path(__file__).with_name("training_task.py"))
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
Cluster = dict[str, int]
TWO: Cluster = {"worker": 2}
CLUSTERS: dict[str, Cluster] = {"mirrored": TWO, "coordinated": {"chief": 1, "worker": 2, "ps": 1}}
NOT_TRAINING = ("ps", "data_worker")
SAME, DEFAULT = "by hand, same threads", "by hand, default threads"
AIMS = {SAME: "0.98 or more", DEFAULT: "more than 1"}
NAMES = {
    "mirrored": "MultiWorkerMirroredStrategy, 2 workers",
    "coordinated": "ParameterServerStrategy, 2 workers, 1 ps",
}

Result = Mapping[str, float]
Threads = Mapping[str, Mapping[str, str]]  # task -> thread settings


def main() -> None:
    with scratch() as folder:
        print(f"Steps per second, medians of {ROUNDS}, interleaved")
        strategies(folder)
        averages(folder)
        data_workers(folder)


def strategies(folder: Path) -> None:
    rows = [["", "steps/s", "from", "to", "gridtf is of it", "aim"]]
    for program, name in NAMES.items():
        cluster = CLUSTERS[program]
        _, threads = job(folder, cluster, program)  # also to warm up
        ways = {
            "under gridtf": partial(measured, folder, cluster, program),
            SAME: partial(by_hand, folder, cluster, program, threads),
            DEFAULT: partial(by_hand, folder, cluster, program, {}),
        }
        rates = {way: [result["rate"] for result in results] for way, results in interleaved(ways).items()}
        own = statistics.median(rates["under gridtf"])
        rows.append([name, *[""] * 5])
        for way, values in rates.items():
            ratio = f"{own / statistics.median(values):.2f}" if way in AIMS else ""
            rows.append([f"  {way}", *spread(values), ratio, AIMS.get(way, "")])
    table(rows)


def averages(folder: Path) -> None:
    job(folder, TWO, "averaged", "20")  # to warm up
    found = interleaved({every: partial(measured, folder, TWO, "averaged", every) for every in ("1", "20")})
    rates = {every: [result["rate"] for result in results] for every, results in found.items()}
    floor = statistics.median(rates["1"])
    rows = [["Averaging, 2 workers", "steps/s", "from", "to", "ratio", "aim", "accuracy"]]
    for every, name, aim in (("1", "  every step", ""), ("20", "  every 20 steps", "2 or more")):
        accuracy = statistics.median(result["accuracy"] for result in found[every])
        ratio = f"{statistics.median(rates[every]) / floor:.2f}"
        rows.append([name, *spread(rates[every]), ratio, aim, f"{accuracy:.3f}"])
    print()
    table(rows)
    print("  aim: accuracies within 0.01 of each other")


def data_workers(folder: Path) -> None:
    rounds = str(measured(folder, {"worker": 1}, "calibrate")["rounds"])
    clusters: dict[str, Cluster] = {
        "  by the worker itself": {"worker": 1},
        "  by two data workers": {"worker": 1, "data_worker": 2},
    }
    found = interleaved({way: partial(measured, folder, cluster, "fed", rounds) for way, cluster in clusters.items()})
    rates = {way: [result["rate"] for result in results] for way, results in found.items()}
    floor, more = (statistics.median(values) for values in rates.values())
    rows = [[f"A batch takes {PREPARATION * 1000:.0f} ms of CPU", "steps/s", "from", "to", "ratio", "aim"]]
    ends = ([""] * 2, [f"{more / floor:.2f}", "1.6 or more"])
    rows += [[way, *spread(values), *end] for (way, values), end in zip(rates.items(), ends, strict=True)]
    print()
    table(rows)


def interleaved(ways: Mapping[str, Callable[[], Result]]) -> dict[str, list[Result]]:
    """Way -> its results: each round runs all ways in turn."""
    found: dict[str, list[Result]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, measure in ways.items():
            found[way].append(measure())
    return found


def spread(values: list[float]) -> list[str]:
    return [f"{value:.1f}" for value in (statistics.median(values), min(values), max(values))]


def measured(folder: Path, cluster: Cluster, program: str, *arguments: str) -> Result:
    return job(folder, cluster, program, *arguments)[0]


def job(folder: Path, cluster: Cluster, program: str, *arguments: str, fence: str = "auto") -> tuple[Result, Threads]:
    """Run a program as a local job; returns its result and the thread settings of its tasks."""
    import gridtf

    folder = fresh(folder)
    submitted = gridtf.submit(
        gridtf.JobSpec(
            command=(sys.executable, TASK, program, *arguments),
            name="bench",
            scheduler="local",
            tasks={kind: gridtf.TaskSpec(count=count) for kind, count in cluster.items()},
            tasks_per_node=sum(count for kind, count in cluster.items() if kind not in NOT_TRAINING),
            gpus_per_task=0,
            success_policy="chief" if "chief" in cluster else "all",
            env=QUIET,
            fence=fence,
            run_dir=str(folder / "run"),
        )
    )
    try:
        view = submitted.wait(timeout=LIMIT, poll=0.1)
    finally:
        submitted.cancel()
    logs = "".join(log.read_text() for log in (folder / "run").glob("attempt-1/logs/*"))
    if view.state != "COMPLETED":
        raise SystemExit(f"{program} ended {view.state}: {logs[-3000:]}")
    output = submitted.run.output
    threads = {
        path.stem.removeprefix("threads-"): json.loads(path.read_text()) for path in output.glob("threads-*.json")
    }
    result = json.loads((output / "result.json").read_text())
    return {**result, "start": result["warm"] - (view.started or 0.0)}, threads


def by_hand(folder: Path, counts: Cluster, program: str, threads: Threads) -> Result:
    """Run a program as one process per task, each with these thread settings."""
    cluster = {kind: [f"127.0.0.1:{port}" for port in free(count)] for kind, count in counts.items()}
    folder = fresh(folder)
    base = {name: value for name, value in os.environ.items() if name not in THREADS}
    leader = "chief" if "chief" in cluster else "worker"
    with ExitStack() as stack:
        started = {}
        for kind, index in ((kind, index) for kind, members in cluster.items() for index in range(len(members))):
            config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
            environ = {**base, **QUIET, **threads.get(f"{kind}-{index}", {}), "TF_CONFIG": config}
            log = stack.enter_context((folder / f"{kind}-{index}.log").open("wb"))
            started[kind, index] = subprocess.Popen(
                [sys.executable, TASK, program],
                env={**environ, "OUTPUT_DIR": str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # as srun, ssh and gridtf do: Linux shares CPUs out by session
            )
            stack.callback(end, started[kind, index])
        for task, process in started.items():
            if task[0] == leader and process.wait(LIMIT):
                log_text = (folder / f"{task[0]}-{task[1]}.log").read_text()
                raise SystemExit(f"{program} by hand, {task[0]}:{task[1]}: {log_text[-3000:]}")
    result: Result = json.loads((folder / "result.json").read_text())
    return result


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def free(count: int) -> list[int]:
    """Ports that nothing uses now, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def fresh(folder: Path) -> Path:
    made = folder / f"run-{len(list(folder.iterdir()))}"
    made.mkdir()
    return made
