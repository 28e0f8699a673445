"""Who is slow where tasks train in lock-step: all of them show the same rate, and the slow one is who does not wait.

In a step, all tasks wait for the last one: in a collective operation, whose threads sleep. So a thread of the slow
task that waits for a CPU, a disk or the network nearly all of the time, while those of the others do not, is the
reason. All judgement is relative to the other hosts of the job. The samples are those that users see.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence

from gridtf.bootstrap.agent.sampler import sample_interval
from gridtf.bootstrap.launcher import api
from gridtf.bootstrap.launcher.reports import SAMPLES
from gridtf.run.rundir import Record
from gridtf.values import Value, as_dict

WINDOW = SAMPLES  # of each host that are judged
FEWEST_HOSTS = 3  # with two, there is only one that the other differs from
_AGE = 2.5  # windows' mean intervals by which the newest sample of a host may be older than that of another
_STEPS, _ALIKE = 3, 2.0  # steps by which tasks may be apart at least, and the ratio of their rates at most
_SENDS = 0.002  # the share of the time in which a host that makes steps has something to send, in all samples but one
_IN_A_ROW = 3  # judgements that must agree until somebody is named
_WITHDRAWN = 6  # judgements that must not, until the name is withdrawn

CPU, INPUT, NETWORK, GPU, CLOCK = "CPU", "input", "network", "GPU throttled", "GPU clock"
WORK = "more to compute"  # its host lacks nothing
LIKELY, VERY_LIKELY = "likely", "very likely"

Samples = Mapping[str, Sequence[Record]]  # host -> its samples, oldest first


class Straggler(Value):
    """The task that the others wait for.

    Attributes:
        task: Its name; of several on its host, the one that differs most from those of other hosts.
        host: Its host.
        what: What it lacks: ``CPU``, ``input`` (or another file), ``network``, or ``GPU throttled`` or ``GPU clock``;
            or ``more to compute``.
        sure: ``likely`` or ``very likely``.
        text: All of this in one line, with the measurements.
    """

    task: str
    host: str
    what: str
    sure: str
    text: str


class _Measure(Value):
    """Something that is measured on each host, and is large on one that is slow.

    Attributes:
        what: As in Straggler.
        of: Returns the value of a task in a sample of its host; None where that is not known.
        join: Makes one value of those of a window.
        least: The value from which on it explains that a task is slow.
        clear: The value from which on it is very likely, if those of all others are below a sixth of it; below, they
            must be below a third.
        scarce: The value of another host from which on only what is very likely counts: all lack it, and who does most
            of the work, or has the launcher beside it, lacks it most.
        text: Says it, with the value of the task and the largest one of the other hosts.
    """

    what: str
    of: Callable[[Record, Record], float | None]
    join: Callable[[Sequence[float]], float]
    least: float
    clear: float
    text: str
    scarce: float = 1.0


_OTHERS, _CLEARLY = 3.0, 6.0  # how many times the value of each other host it must be
_MORE = 1.25  # times the CPU time of each other task: one that lacks CPUs had 0.9 to 1.0 times as much on test beds


def _worst_gpu(sample: Record, key: str) -> float | None:
    known = [gpu[key] for gpu in sample["gpus"].values() if key in gpu]
    return max(known) if known else None


def _slowest_clock(sample: Record, _: Record) -> float | None:
    """1 / MHz of the slowest GPU that is busy."""
    busy = [gpu["clock"] for gpu in sample["gpus"].values() if gpu.get("clock") and gpu.get("use", 0.0) >= 50]
    return 1 / min(busy) if busy else None


# Medians, since a spike of one sample explains nothing; what is only seen at one moment must be seen nearly always.
_MEASURES = (
    _Measure(
        GPU, lambda sample, _: _worst_gpu(sample, "throttled"), statistics.mean, 0.8, 0.8,
        "a GPU was throttled, by heat or its power supply, in {:.0%} of the samples, others in {:.0%} at most",
    ),
    _Measure(
        CPU, lambda _, task: task.get("delay"), statistics.median, 0.5, 1.0,
        "its threads wait for a CPU {:.2g} s in a second, all together, those of each other task {:.2g} s at most",
        scarce=0.8,
    ),
    _Measure(
        INPUT, lambda _, task: float("D" in task["threads"]), statistics.mean, 0.8, 0.8,
        "a thread waits for a disk or a file system in {:.0%} of the samples, of each other task in {:.0%} at most",
    ),
)  # fmt: skip


def find(samples: Samples, tasks: Collection[str]) -> Straggler | None:
    """Find out who is slow.

    Args:
        samples: The newest samples of all hosts, WINDOW of each.
        tasks: The tasks that train in lock-step.

    Returns:
        The straggler; None where it is not known: there are fewer than three hosts or too few samples, no steps are
        made, the tasks are not in step, all are alike, or there is evidence on several hosts.
    """
    hosts = {host: known for host, known in samples.items() if tasks & known[-1]["tasks"].keys()} if tasks else {}
    if len(hosts) < FEWEST_HOSTS or not _complete(hosts) or not _in_step(hosts, tasks):
        return None
    found = [straggler for measure in _MEASURES if (straggler := _stands_out(measure, hosts, tasks))]
    found = [_with_more_work(each, hosts, tasks) if each.what == CPU else each for each in found]
    found += [straggler for judge in (_slow_clock, _slow_link) if (straggler := judge(hosts, tasks))]
    # a slow link delays files of a server, and without a CPU all is slow
    order = (GPU, CLOCK, NETWORK, CPU, WORK, INPUT)
    found.sort(key=lambda straggler: order.index(straggler.what))
    return found[0] if len({straggler.host for straggler in found}) == 1 else None


def _complete(hosts: Samples) -> bool:
    """Whether all hosts have sent enough samples, and are still heard."""
    if any(len(known) < WINDOW for known in hosts.values()):
        return False
    newest = [known[-1]["time"] for known in hosts.values()]
    pause = max(known[-1]["time"] - known[0]["time"] for known in hosts.values()) / (WINDOW - 1)
    return bool(max(newest) - min(newest) <= _AGE * pause)


def _in_step(hosts: Samples, tasks: Collection[str]) -> bool:
    """Whether steps are made, and those tasks that tell of theirs are at the same one, and equally fast.

    Where none does, or none has told for some time of a step that lasts, as while one of them evaluates, steps are made
    while each host sends to another one of the job all the time.
    """
    steps, rates, pause, still = [], [], 0.0, False
    for known in hosts.values():
        pause = max(pause, (known[-1]["time"] - known[0]["time"]) / (WINDOW - 1))
        for name in tasks & known[-1]["tasks"].keys():
            of_task = [sample["tasks"].get(name, {}) for sample in known]
            if any("step" in one for one in of_task):
                steps.append(of_task[-1].get("step", 0))
                rates.append([one.get("rate", 0.0) for one in of_task])
                often = pause * min(rates[-1]) >= 2  # it should have made steps between any two samples
                still = still or (often and len({one.get("step", 0) for one in of_task}) < WINDOW - 1)
    if still or not all(rate > 0 for each in rates or [[0.0]] for rate in each):
        sends = {host for (host, _), shares in _shares(hosts).items() if sorted(shares)[1] >= _SENDS}
        if sends != hosts.keys():
            return False
    medians = [statistics.median(each) for each in rates] or [0.0]  # which differ for a while when the rate changes
    apart = max([0.0, *(max(each) for each in rates)]) * pause * _AGE  # samples are not taken at the same moment
    spread = max(steps) - min(steps) if steps else 0
    return bool(max(medians) <= _ALIKE * min(medians) and spread <= max(_STEPS, apart))


def _values(measure: _Measure, hosts: Samples, tasks: Collection[str]) -> dict[str, tuple[float, str]]:
    """Host -> its largest value, and the task that has it."""
    found: dict[str, tuple[float, str]] = {}
    for host, known in hosts.items():
        for name in sorted(tasks & known[-1]["tasks"].keys()):
            each = [measure.of(sample, sample["tasks"][name]) for sample in known if name in sample["tasks"]]
            values = [value for value in each if value is not None]
            if len(values) >= WINDOW - 1:
                found[host] = max(found.get(host, (-1.0, "")), (measure.join(values), name), key=lambda one: one[0])
    return found


def _stands_out(measure: _Measure, hosts: Samples, tasks: Collection[str]) -> Straggler | None:
    """The host whose value is far from those of all others."""
    values = _values(measure, hosts, tasks)
    if len(values) < len(hosts):
        return None
    host = max(values, key=lambda one: values[one][0])
    value, task = values[host]
    others = max(known for one, (known, _) in values.items() if one != host)
    sure = VERY_LIKELY if value >= measure.clear and value >= _CLEARLY * others else LIKELY
    if value < measure.least or value < _OTHERS * others or (sure == LIKELY and others >= measure.scarce):
        return None
    return _made(task, host, measure.what, sure, measure.text.format(value, others))


def _with_more_work(named: Straggler, hosts: Samples, tasks: Collection[str]) -> Straggler:
    """That a task which waits for CPUs most has more to compute, where it has also used more CPU time than all others:
    one that lacks CPUs has used as much as they have in as many steps."""
    used = _Measure(WORK, lambda _, task: task.get("cpu"), statistics.median, 0.0, 0.0, "")
    values = {host: value for host, (value, _) in _values(used, hosts, tasks).items()}
    own = values.pop(named.host, 0.0)
    if len(values) < len(hosts) - 1 or own <= _MORE * max(values.values()):
        return named
    text = f"it uses {own:.2g} s of CPU time in a second, each other task {max(values.values()):.2g} s at most"
    return _made(named.task, named.host, WORK, named.sure, text)


def _slow_clock(hosts: Samples, tasks: Collection[str]) -> Straggler | None:
    """The host of a busy GPU with a lower clock than those of all others, which are equal."""
    measure = _Measure(CLOCK, _slowest_clock, statistics.median, 0.0, 0.0, "")
    values = {host: (1 / value, task) for host, (value, task) in _values(measure, hosts, tasks).items()}
    if len(values) < len(hosts):
        return None
    host = min(values, key=lambda one: values[one][0])
    clock, task = values[host]
    others = [known for one, (known, _) in values.items() if one != host]
    if clock > 0.85 * min(others) or min(others) < 0.95 * max(others):
        return None
    text = f"the clock of a GPU is {clock:.0f} MHz, those of the others {min(others):.0f} MHz at least"
    return _made(task, host, CLOCK, LIKELY, text)


def _shares(hosts: Samples) -> dict[tuple[str, str], list[float]]:
    """(host, another host of the job) -> in each sample the share of the time in which it had something to send."""
    owner: dict[str, str] = {}  # address -> the host that has it; empty: several, as of a bridge for containers
    for host, known in hosts.items():
        for address in {pair.split()[0] for sample in known for pair in sample.get("links", {})}:
            owner[address] = "" if address in owner else host
    found: dict[tuple[str, str], list[float]] = {}
    for host, known in hosts.items():
        for at, sample in enumerate(known):
            for pair, share in sample.get("links", {}).items():
                other = owner.get(pair.split()[1], "")
                if other not in ("", host):
                    of_pair = found.setdefault((host, other), [0.0] * len(known))
                    of_pair[at] = max(of_pair[at], share)
    return found


def _slow_link(hosts: Samples, tasks: Collection[str]) -> Straggler | None:
    """The host that all connections belong to which are always busy, though it sends no more than others do."""
    busy = {ends: statistics.median(shares) for ends, shares in _shares(hosts).items()}
    top = max(busy.values(), default=0.0)
    if top < 0.6:
        return None
    strong = [ends for ends, share in busy.items() if share >= top / 2]
    common = set(strong[0]).intersection(*strong)
    if len(common) != 1:  # of one connection, either end may be slow
        return None
    (host,) = common
    sent = {host: statistics.median(one["sent"] + one["received"] for one in known) for host, known in hosts.items()}
    if sent[host] > 1.5 * statistics.median(sent.values()):
        return None
    others = max((share for ends, share in busy.items() if ends not in strong), default=0.0)
    text = (
        f"its connections have data that the network has not taken for {top:.0%} of the time, others for {others:.0%}"
    )
    sure = VERY_LIKELY if others <= top / 3 else LIKELY
    return _made(min(tasks & hosts[host][-1]["tasks"].keys()), host, NETWORK, sure, f"{text} at most")


def _made(task: str, host: str, what: str, sure: str, why: str) -> Straggler:
    return Straggler(task, host, what, sure, f"{task} on {host} holds the others up ({what}, {sure}): {why}")


class InLauncher(api.Feature):
    """Looks after the samples of an attempt.

    Attributes:
        named: Who is slow; None where nobody is known to be.
    """

    vital = False

    def __init__(self, view: api.LauncherView, before: api.Feature | None) -> None:
        super().__init__(view, before)
        trains = [task for task in view.tasks if task.trains]
        # the clients of parameter servers, and what is no cluster, do not wait for each other in each step
        lone = any(task.row.alone if task.row.trains else task.row.in_cluster for task in view.tasks)
        self._tasks = frozenset(() if lone else (task.name for task in trains))
        self._hosts = sorted({task.host for task in trains})
        self._interval = sample_interval(view.job.spec.sample_interval, len(self._hosts))
        enough = self._tasks and self._interval and len(self._hosts) >= FEWEST_HOSTS
        self._next = float("-inf") if enough else float("inf")  # when it is looked at next
        self._newest = 0.0  # when the last sample was taken that was judged
        self._last: tuple[str, str] | None = None  # host and cause of the last judgement
        self._agree = self._differ = 0
        self.named: Straggler | None = None

    def look(self) -> None:
        now = self.view.job.system.monotonic()
        if now < self._next or self.view.now is None:
            return
        self._next = now + self._interval / 4
        reports = self.view.hosts.reports
        samples = {host: reports.samples.get(host, ()) for host in self._hosts}
        newest = max((known[-1]["time"] for known in samples.values() if known), default=0.0)
        if newest < self._newest + self._interval or any(len(known) < WINDOW for known in samples.values()):
            return
        self._newest = newest
        found = find(samples, self._tasks)
        key = (found.host, found.what) if found else None
        self._agree = self._agree + 1 if key == self._last else 1
        self._last = key
        named = (self.named.host, self.named.what) if self.named else None
        self._differ = 0 if key == named else self._differ + 1
        if found and key != named and self._agree >= _IN_A_ROW:
            self._name(found)
        elif self.named and not found and self._differ >= _WITHDRAWN:
            self._name(None)

    def status(self) -> str:
        return self.named.text if self.named else ""

    def _name(self, found: Straggler | None) -> None:
        """Tell users who it is; None: nobody any more."""
        before, self.named = self.named, found
        if about := found or before:
            where = {"task": about.task, "host": about.host, "what": about.what}
            more = {"text": about.text} if found else {}
            self.view.reporter.show("slow", as_dict(found) if found else {})
            self.view.reporter.note("slow" if found else "in step", **where, **more)
