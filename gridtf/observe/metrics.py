"""Running jobs as metrics in the text format of OpenMetrics, which Prometheus and its node exporter read as well. Pure.

All metrics are gauges, and none has a timestamp: the node exporter does not know the types that OpenMetrics has added,
and refuses files with timestamps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gridtf.observe.views import JobView, TaskView
from gridtf.text import plain
from gridtf.values import Value

END = "# EOF\n"

# Metric -> its unit, which OpenMetrics wants at the end of the name, and its help.
_FAMILIES = {
    "gridtf_job_state": ("", "1 for the state that the job is in: PENDING or RUNNING."),
    "gridtf_job_tasks": ("", "Tasks of the job in this state."),
    "gridtf_job_attempt": ("", "Number of the latest attempt, from 1 on."),
    "gridtf_job_running_seconds": ("seconds", "Time since the first task of the latest attempt started."),
    "gridtf_job_heartbeat_age_seconds": ("seconds", "Time since the last sign of life of the job's launcher."),
    "gridtf_task_state": ("", "1 for the state that the task is in."),
    "gridtf_task_restarts": ("", "How many times the task was started again within its attempt."),
    "gridtf_task_step": ("", "The step that the task has reported last."),
    "gridtf_task_steps_per_second": ("", "Steps a second, as the task has reported them."),
    "gridtf_task_progress_age_seconds": ("seconds", "Time since the task has reported a step."),
    "gridtf_task_cpu_cores": ("cores", "Cores that the processes of the task use."),
    "gridtf_task_memory_bytes": ("bytes", "Memory of the processes of the task, without files that are cached."),
    "gridtf_task_read_bytes_per_second": ("", "Bytes a second that the task reads from files."),
    "gridtf_task_written_bytes_per_second": ("", "Bytes a second that the task writes to files."),
    "gridtf_host_sample_age_seconds": ("seconds", "Time since the host was last measured."),
    "gridtf_host_cpu_cores": ("cores", "Cores of the host that are busy, with all of its jobs."),
    "gridtf_host_memory_bytes": ("bytes", "Memory in use on the host, or in the job's cgroup where that has a limit."),
    "gridtf_host_memory_limit_bytes": ("bytes", "Memory of the host, or the limit of the job's cgroup."),
    "gridtf_host_received_bytes_per_second": ("", "Bytes a second that the host receives."),
    "gridtf_host_sent_bytes_per_second": ("", "Bytes a second that the host sends."),
    "gridtf_gpu_use_ratio": ("ratio", "Part of the time in which the GPU computed, from 0 to 1."),
    "gridtf_gpu_memory_bytes": ("bytes", "Memory of the GPU in use."),
    "gridtf_gpu_memory_limit_bytes": ("bytes", "Memory of the GPU."),
    "gridtf_gpu_power_watts": ("watts", "Power that the GPU draws."),
}
_OF_HOST = {
    "cpu": "gridtf_host_cpu_cores",
    "memory": "gridtf_host_memory_bytes",
    "memory_total": "gridtf_host_memory_limit_bytes",
    "received": "gridtf_host_received_bytes_per_second",
    "sent": "gridtf_host_sent_bytes_per_second",
}
_OF_TASK = {
    "rate": "gridtf_task_steps_per_second",
    "cpu": "gridtf_task_cpu_cores",
    "memory": "gridtf_task_memory_bytes",
    "read": "gridtf_task_read_bytes_per_second",
    "written": "gridtf_task_written_bytes_per_second",
}
_OF_GPU = {
    "memory": "gridtf_gpu_memory_bytes",
    "memory_total": "gridtf_gpu_memory_limit_bytes",
    "power": "gridtf_gpu_power_watts",
}


class Sample(Value):
    """One line: a metric, its labels and its value."""

    metric: str
    labels: Mapping[str, str]
    value: float


def text(views: Sequence[JobView], heartbeats: Mapping[Path, float], now: float) -> str:
    """The metrics of jobs.

    Args:
        views: Jobs that wait or run.
        heartbeats: Run directory -> when the job's launcher last gave a sign of life, where that is known.
        now: Seconds since the epoch.

    Returns:
        The text, which ends with ``# EOF``.
    """
    by_metric: dict[str, list[str]] = {metric: [] for metric in _FAMILIES}
    for view in views:
        for sample in _of_job(view, heartbeats.get(view.run_dir), now):
            by_metric[sample.metric].append(_line(sample))
    return "".join([_head(metric) + "".join(lines) for metric, lines in by_metric.items() if lines] + [END])


def _head(metric: str) -> str:
    unit, about = _FAMILIES[metric]
    return f"# TYPE {metric} gauge\n" + (f"# UNIT {metric} {unit}\n" if unit else "") + f"# HELP {metric} {about}\n"


def _line(sample: Sample) -> str:
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items())
    return f"{sample.metric}{{{labels}}} {sample.value:.15g}\n"


def _escaped(value: str) -> str:
    """A label's value: with backslashes and quotes escaped, and nothing else that could end it or that is not UTF-8."""
    valid = value.encode(errors="surrogateescape").decode(errors="replace")
    return plain(valid).replace("\\", "\\\\").replace('"', '\\"')


def _of_job(view: JobView, heartbeat: float | None, now: float) -> Iterator[Sample]:
    job = {"job": view.job_id, "name": view.name, "scheduler": view.scheduler}
    yield Sample("gridtf_job_state", {**job, "state": view.state}, 1)
    for state, count in Counter(task.state for task in view.tasks).items():
        yield Sample("gridtf_job_tasks", {**job, "state": state}, count)
    if view.attempt is not None:
        yield Sample("gridtf_job_attempt", job, view.attempt)
    if view.started is not None:
        yield Sample("gridtf_job_running_seconds", job, _age(view.started, now))
    if heartbeat is not None:
        yield Sample("gridtf_job_heartbeat_age_seconds", job, _age(heartbeat, now))
    for task in view.tasks:
        yield from _of_task(task, {**job, "task": task.name, "host": task.host or ""}, now)
    owners = {(task.host, gpu): task.name for task in view.tasks for gpu in task.gpus}
    for host in view.hosts:
        labels = {**job, "host": host.name}
        sample = host.sample or {}
        if "time" in sample:
            yield Sample("gridtf_host_sample_age_seconds", labels, _age(sample["time"], now))
        yield from _each(_OF_HOST, sample, labels)
        for name, gpu in sample.get("gpus", {}).items():
            of_gpu = {**labels, "gpu": name, "task": owners.get((host.name, name), "")}
            if "use" in gpu:
                yield Sample("gridtf_gpu_use_ratio", of_gpu, gpu["use"] / 100)
            yield from _each(_OF_GPU, gpu, of_gpu)


def _of_task(task: TaskView, labels: Mapping[str, str], now: float) -> Iterator[Sample]:
    yield Sample("gridtf_task_state", {**labels, "state": task.state}, 1)
    yield Sample("gridtf_task_restarts", labels, task.restarts)
    if task.progress:
        yield Sample("gridtf_task_step", labels, task.progress["step"])
        yield Sample("gridtf_task_progress_age_seconds", labels, _age(task.progress["time"], now))
    yield from _each(_OF_TASK, task.sample or {}, labels)


def _each(metrics: Mapping[str, str], sample: Mapping[str, float], labels: Mapping[str, str]) -> Iterator[Sample]:
    return (Sample(metric, labels, sample[key]) for key, metric in metrics.items() if key in sample)


def _age(then: float, now: float) -> float:
    """Seconds since then; 0 for the future, which clocks of other hosts may be in."""
    return round(max(0.0, now - then), 3)
