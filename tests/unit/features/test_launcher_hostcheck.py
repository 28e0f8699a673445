"""The launcher has the hosts checked before the tasks start: what it orders, and what follows from the answers."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gridtf.bootstrap.launcher.api import LauncherView
from gridtf.features.hostcheck import CHECK, CHECKED
from gridtf.features.stalls.launcher import InLauncher
from gridtf.run import hosthistory, jsonlines, recordtypes
from gridtf.run.rundir import Record, RunDir, read_record, write_record
from gridtf.schedulers.api import LOOPBACK, Allocation, Host
from tests.unit.bootstrap.test_launcher import Attempt

HOSTS = ("h0", "h1", "h2", "h3")
WELL = {
    "share": 96.0,
    "cpu": 800.0,
    "memory": 10.0,
    "tmp_write": 900.0,
    "tmp_read": 900.0,
    "run_write": 300.0,
    "run_read": 900.0,
}


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process of its own does, lest the home folder hangs, is done here."""
    monkeypatch.setattr(LauncherView, "aside", lambda view, write, limit=2.0: write())


class Checked(Attempt):
    """An attempt whose hosts answer two seconds after they were asked.

    orders: host -> what it was told. values: host -> returns what it measures the next time; None: nothing ever.
    lacks: host -> what it cannot measure.
    """

    def __init__(self, folder: Path, hosts: tuple[str, ...] = HOSTS, exclusive: bool = True, **spec: Any) -> None:
        super().__init__(folder, hosts, check="quick", tasks_per_node=1, **spec)
        self.orders: dict[str, list[Record]] = {host: [] for host in hosts}
        self.values: dict[str, Callable[[], dict[str, float] | None]] = {}
        self.lacks: dict[str, set[str]] = {}
        self.system.environ["XDG_STATE_HOME"] = str(folder / "state")
        self.cluster.is_exclusive = lambda request: exclusive  # type: ignore[method-assign]
        vars(self.cluster.scheduler.login)["cluster"] = lambda environ: "slurm:c"
        self.system.every(0.5, self._check)
        for host, name in zip(hosts, (f"worker:{number}" for number in range(len(hosts))), strict=True):
            self.task(host, name, "COMPLETED", 100, exit=0)

    def _check(self) -> None:
        for host, orders in self.orders.items():
            order = self.listener.told(host, CHECK)
            if order and order["number"] > len(orders):
                order = order["order"] | {"number": order["number"]}
                orders.append(order)
                known = {**WELL, "bandwidth": 900.0, **({"round_trips": 9000.0} if order.get("peer") else {})}
                more = self.values.get(host, dict)()
                names = order["measures"]
                said = {name: value for name, value in known.items() if _of(name, names)}
                said |= {name: value for name, value in (more or {}).items() if _of(name, names)}
                said = {name: value for name, value in said.items() if name not in self.lacks.get(host, ())}
                time = self.system.wall + self.skew[host]
                about = {"number": order["number"], "alike": {}, "missing": {}, "port": 4000, "time": time}
                if more is not None:
                    self.listener.say(host, CHECKED, {**about, "values": said})

    @property
    def found(self) -> Record:
        return read_record(self.attempt.check, nonce=self.nonce) or {}

    def events(self, kind: str) -> list[str]:
        return [
            event["text"]
            for event in jsonlines.read(self.attempt.events, recordtypes.Event, self.nonce)
            if event.get("event") == kind
        ]


def _of(name: str, measures: list[str]) -> bool:
    return name.partition("_")[0] in measures or ("pair" in measures and name in ("bandwidth", "round_trips"))


def remembered(attempt: Checked) -> set[str]:
    return set(hosthistory.checked_since(attempt.system.environ, "slurm:c", 0.0))


def test_hosts_measure_at_once_then_in_pairs_and_tasks_start_after_that(tmp_path: Path) -> None:
    attempt = Checked(tmp_path)
    _, verdict = attempt.launch()
    assert verdict["state"] == "COMPLETED"
    first, *pairs = attempt.orders["h0"]
    assert first["measures"] == ["share", "cpu", "memory", "tmp", "run"]
    size = first["run"][1]
    assert 3 * len(HOSTS) * size <= 64 << 20
    assert [order["peer"] for order in pairs] == [None, ["h1", 4000], ["h2", 4000]] or len(pairs) == 3
    tokens = {host: [order["token"] for order in orders[1:]] for host, orders in attempt.orders.items()}
    assert len({token for each in tokens.values() for token in each}) == 6, "each pair has its own"
    assert not attempt.found["bad"]
    assert attempt.found["values"]["h3"].keys() == {*WELL, "bandwidth", "round_trips", "clock"}
    assert attempt.events("check") == [
        f"4 hosts checked in {attempt.found['seconds']:.1f} s: none far from the others",
    ]
    assert not attempt.events("notice")
    assert remembered(attempt) == {*HOSTS}


def test_gpus_are_measured_where_the_job_has_some_and_for_longer(tmp_path: Path) -> None:
    """A host whose tasks have none may have GPUs, of other jobs."""
    tasks = {"worker": {"count": 3, "gpus": 1}, "ps": {"count": 1, "gpus": 0}}
    attempt = Checked(tmp_path, tasks=tasks, gpus_per_node=1)
    allocation = Allocation(tuple(Host(host, 4, 1, 4, LOOPBACK) for host in HOSTS))
    vars(attempt.cluster)["allocation"] = lambda *_: allocation
    attempt.values["h1"] = lambda: None
    attempt.launch()
    slow = "h1: its check did not end within 180 s"  # TensorFlow may be imported for long
    assert attempt.events("notice") == ["no task uses 1 of 4 GPUs: 1 on h3", slow]
    assert ["gpu" in orders[0]["measures"] for orders in attempt.orders.values()] == [True, True, True, False]


def test_slow_host_is_measured_again_and_named_and_the_job_goes_on(tmp_path: Path) -> None:
    attempt = Checked(tmp_path)
    attempt.values["h2"] = lambda: {"cpu": 300.0}
    _, verdict = attempt.launch()
    assert verdict["state"] == "COMPLETED"
    told = "h2: matrix product 38 % of the median (300 of 800 GFLOPS)"
    assert attempt.events("notice") == [told]
    assert any(told in phase for phase in attempt.phases), "the status shows it while the job runs"
    again = [order["measures"] for order in attempt.orders["h0"] if "pair" not in order["measures"]]
    assert len(again) == 3
    assert remembered(attempt) == {"h0", "h1", "h3"}
    (suspect,) = hosthistory.read(attempt.system.environ, attempt.system.wall).suspects
    assert (suspect.host, suspect.reason) == ("h2", "check: matrix product 38 % of the median (300 of 800 GFLOPS)")


@pytest.mark.parametrize("times", [1, 2])
def test_host_that_is_slow_now_and_then_is_not_named(tmp_path: Path, times: int) -> None:
    attempt = Checked(tmp_path)
    speeds = iter([100.0] * times)
    attempt.values["h2"] = lambda: {"cpu": next(speeds, 800.0) if len(attempt.orders["h2"]) in (1, 5) else 800.0}
    attempt.launch()
    assert not attempt.events("notice")
    assert next(speeds, None) is None, "it was slow"


def test_slow_link_is_measured_again_in_pairs_and_its_other_ends_are_innocent(tmp_path: Path) -> None:
    attempt = Checked(tmp_path, on_bad_host="end", restarts=2)
    attempt.values["h1"] = lambda: {"bandwidth": 9.0}
    _, verdict = attempt.launch()
    assert verdict["state"] == "FAILED"
    assert "h1: bandwidth 1 % of the median (9 of 900 MB/s)" in verdict["reason"]
    assert 'on_bad_host is "end"' in verdict["reason"]
    assert "h0" not in verdict["reason"]
    assert "next" not in verdict, "it is not restarted"
    assert len(attempt.run.attempts()) == 1


def test_way_that_one_end_has_not_measured_is_not_known(tmp_path: Path) -> None:
    """Another program may have disturbed it: it is not one of 0 MB/s, and the host is not bad."""
    attempt = Checked(tmp_path, on_bad_host="end")
    attempt.lacks["h1"] = {"bandwidth"}
    _, verdict = attempt.launch()
    assert verdict["state"] == "COMPLETED"
    assert not attempt.found["bad"]
    assert "bandwidth" not in attempt.found["values"]["h1"]
    assert attempt.found["values"]["h3"]["bandwidth"] == 900.0
    assert not attempt.events("notice")


@pytest.mark.parametrize("when", [0, 1])
def test_host_whose_check_hangs_is_named_and_the_job_goes_on(tmp_path: Path, when: int) -> None:
    attempt = Checked(tmp_path)
    attempt.values["h3"] = lambda: None if len(attempt.orders["h3"]) > when else {}
    _, verdict = attempt.launch()
    assert verdict["state"] == "COMPLETED"
    assert attempt.events("notice") == ["h3: its check did not end within 60 s"]
    assert remembered(attempt) == {"h0", "h1", "h2"}
    # somebody may have stopped it
    assert not hosthistory.read(attempt.system.environ, attempt.system.wall).suspects
    assert attempt.found["seconds"] < 62
    assert ("bandwidth" in attempt.found["values"]["h0"]) == (when == 1)


def test_check_that_hangs_on_most_hosts_says_nothing_about_hosts(tmp_path: Path) -> None:
    attempt = Checked(tmp_path)
    for host in HOSTS[1:]:
        attempt.values[host] = lambda: None
    attempt.launch()
    assert not attempt.events("notice")
    assert not remembered(attempt)


def test_clock_of_a_host_is_compared(tmp_path: Path) -> None:
    attempt = Checked(tmp_path)
    attempt.skew["h1"] = 600.0
    attempt.launch()
    assert attempt.events("notice") == ["h1: its clock differs by 600.0 s"]


def test_nothing_is_remembered_of_hosts_that_other_jobs_may_have_used(tmp_path: Path) -> None:
    attempt = Checked(tmp_path, exclusive=False)
    attempt.values["h2"] = lambda: {"cpu": 300.0}
    attempt.launch()
    assert len(attempt.events("notice")) == 1
    assert not remembered(attempt)
    assert not hosthistory.read(attempt.system.environ, attempt.system.wall).suspects


def test_hosts_that_have_passed_are_not_checked_again_within_a_day(tmp_path: Path) -> None:
    attempt = Checked(tmp_path)
    wall = attempt.system.wall
    hosthistory.note_checked(attempt.system.environ, HOSTS, wall - 3600, "slurm:c")
    attempt.launch()
    assert attempt.events("check") == ["the hosts are not checked: they have passed a check within a day"]
    assert not any(attempt.orders.values())


def test_home_that_hangs_is_waited_for_by_another_process_and_the_hosts_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LauncherView, "aside", lambda view, work: "")
    attempt = Checked(tmp_path)
    hosthistory.note_checked(attempt.system.environ, HOSTS, attempt.system.wall, "slurm:c")
    attempt.launch()
    assert all(attempt.orders.values())


def test_hosts_are_checked_where_one_of_them_is_new(tmp_path: Path) -> None:
    attempt = Checked(tmp_path)
    hosthistory.note_checked(attempt.system.environ, HOSTS[:3], attempt.system.wall, "slurm:c")
    attempt.launch()
    assert all(attempt.orders.values())


def test_elements_of_a_sweep_but_the_first_check_nothing(tmp_path: Path) -> None:
    for element, checks in (("1", True), ("2", False)):
        folder = tmp_path / element
        folder.mkdir()
        attempt = Checked(folder)
        array = RunDir(folder / "sweep")
        write_record(_made(array.sweep), {"rows": [{}, {}], "at_once": 1, "pack": 1, "numbers": []})
        (array.elements / element).mkdir(parents=True)
        vars(attempt.launcher.job)["run"] = RunDir(array.elements / element)
        attempt.launch()
        assert any(attempt.orders.values()) == checks


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    return path


def test_job_can_be_ended_during_the_check(tmp_path: Path) -> None:
    attempt = Checked(tmp_path)
    attempt.values["h3"] = lambda: None
    attempt.system.at(10.0, lambda: attempt.system.received.append(signal.SIGTERM))
    _, verdict = attempt.launch()
    assert verdict["state"] == "CANCELLED"
    assert attempt.system.clock < 1030


def test_two_hosts_are_measured_and_not_judged(tmp_path: Path) -> None:
    attempt = Checked(tmp_path, hosts=("h0", "h1"))
    attempt.values["h1"] = lambda: {"cpu": 3.0, "bandwidth": 1.0}
    attempt.launch()
    assert not attempt.events("notice")
    assert attempt.found["values"]["h1"]["bandwidth"] == 1.0
    assert not remembered(attempt), "nobody can say that they are well"


@pytest.mark.parametrize(("unrecorded", "found"), [("", ["h1"]), ("records could not be written for some time", [])])
def test_stall_says_nothing_about_a_host_where_the_run_directory_has_not_responded_either(
    unrecorded: str, found: list[str], tmp_path: Path
) -> None:
    """As with a file server that hangs while rank 0 saves a checkpoint, and all others wait for it."""
    attempt = Checked(tmp_path)
    started = attempt.launcher.reporter.report

    def report(phase: str, detail: str) -> None:
        started(phase, detail)
        if attempt.launcher._watch is not None:
            (stalls,) = (one for one in attempt.launcher.features if isinstance(one, InLauncher))
            stalls._host = "h1"
            attempt.launcher.reporter.unrecorded = unrecorded

    attempt.launcher.reporter.report = report  # type: ignore[method-assign]
    attempt.launch()
    suspects = hosthistory.read(attempt.system.environ, attempt.system.wall).suspects
    assert [each.host for each in suspects] == found
