"""What the launcher writes of an attempt: events, samples, lengths of logs."""

from __future__ import annotations

import json
from pathlib import Path

from gridtf.bootstrap.launcher.journal import Journal, merged
from gridtf.bootstrap.wire.recorder import Recorder
from gridtf.run import jsonlines, recordtypes
from gridtf.run.rundir import Attempt, Record, RunDir
from tests.support.system import FakeSystem

NONCE = "0123456789abcdef"


class Written(Recorder):
    """Writes at once, and counts how often."""

    def __init__(self, system: FakeSystem) -> None:
        super().__init__(system)
        self.count = 0

    def append(self, path: Path, text: str) -> None:
        self.count += 1
        with path.open("a") as file:
            file.write(text)


def journal(tmp_path: Path) -> tuple[Journal, Attempt, FakeSystem, Written]:
    tmp_path.joinpath("run").mkdir()
    attempt, system = RunDir(tmp_path / "run").new_attempt(), FakeSystem()
    recorder = Written(system)
    return Journal(attempt, NONCE, recorder, system), attempt, system, recorder


def sample(time: float, host: str = "h0", cpu: float = 1.0, memory: int = 1, **task: object) -> Record:
    used = {"cpu": cpu, "memory": memory, "read": 0.0, "written": 0.0, "processes": 1, "threads": {"R": 1}, **task}
    whole = {"cpus": 8, "cpu": cpu, "memory": memory, "memory_total": 99, "received": 0.0, "sent": 0.0}
    return {"time": time, "host": host, **whole, "gpus": {}, "tasks": {"worker:0": used}}


def events(attempt: Attempt) -> list[Record]:
    return list(jsonlines.read(attempt.events, recordtypes.Event, NONCE))


def samples(attempt: Attempt) -> list[Record]:
    return list(jsonlines.read(attempt.samples, recordtypes.Sample, NONCE))


def times(attempt: Attempt) -> list[Record]:
    return list(jsonlines.read(attempt.log_times, recordtypes.LogTimes, NONCE))


def test_events_are_written_together_within_a_second(tmp_path: Path) -> None:
    writer, attempt, system, recorder = journal(tmp_path)
    assert writer.rest() == float("inf")
    writer.note("rendezvous")
    writer.add([{"time": system.wall - 3, "event": "ready", "host": "h1"}])
    writer.look()
    assert recorder.count == 0
    assert writer.rest() == 1.0
    system.sleep(1.0)
    writer.look()
    assert recorder.count == 1
    assert [event["event"] for event in events(attempt)] == ["ready", "rendezvous"]
    writer.note("verdict", state="COMPLETED", text="done")
    writer.end()
    assert [event["event"] for event in events(attempt)] == ["ready", "rendezvous", "verdict"]
    assert attempt.events.read_text().count('"version"') == 1


def test_samples_are_written_once_a_minute_and_at_the_end(tmp_path: Path) -> None:
    writer, attempt, system, recorder = journal(tmp_path)
    for _ in range(13):
        writer.sample([{"sample": sample(system.wall), "logs": {}}])
        writer.look()
        system.sleep(5.0)
    assert recorder.count == 1
    assert len(samples(attempt)) == 13
    writer.sample([{"sample": sample(system.wall), "logs": {}}])
    writer.end()
    assert len(samples(attempt)) == 14


def test_long_job_has_fewer_samples_with_means_and_the_largest_memory(tmp_path: Path) -> None:
    writer, attempt, system, _ = journal(tmp_path)
    system.sleep(3 * 3600.0)
    begin = system.wall
    for number in range(5):
        cpu, memory = (4.0, 7) if number == 2 else (1.0, 3)
        writer.sample([{"sample": sample(begin + 5 * number, cpu=cpu, memory=memory, step=number), "logs": {}}])
    writer.end()
    first, second, rest = samples(attempt)
    assert [first["time"], second["time"], rest["time"]] == [begin, begin + 15, begin + 20]
    assert second["cpu"] == 2.0
    assert (second["memory"], second["tasks"]["worker:0"]["memory"]) == (7, 7)
    assert second["tasks"]["worker:0"]["step"] == 3


def test_ten_hours_have_a_few_thousand_samples_of_a_host(tmp_path: Path) -> None:
    writer, attempt, system, _ = journal(tmp_path)
    for _ in range(7200):
        writer.sample([{"sample": sample(system.wall), "logs": {}}])
        writer.look()
        system.sleep(5.0)
    writer.end()
    assert 2000 < len(samples(attempt)) < 3000


def test_merging_keeps_tasks_that_only_the_last_sample_has() -> None:
    before = sample(1.0)
    del before["tasks"]["worker:0"]
    assert merged([before, sample(2.0, cpu=3.0)])["tasks"]["worker:0"]["cpu"] == 3.0


def test_merging_keeps_the_smallest_and_the_largest_value() -> None:
    given: list[Record] = [
        {"step": 1, "values": {"loss": 3.0, "name": "x"}},
        {"step": 2, "values": {"loss": 9.0, "rate": "nan"}, "ranges": {"loss": [0.5, 9.0]}},
        {"step": 3, "values": {"loss": 2.0}},
    ]
    task = merged([sample(float(one["step"]), **one) for one in given])["tasks"]["worker:0"]
    assert (task["step"], task["values"], task["ranges"]) == (3, {"loss": 2.0}, {"loss": [0.5, 9.0]})
    task = merged([sample(float(one["step"]), **one) for one in given[:2]])["tasks"]["worker:0"]
    assert (task["values"], task["ranges"]) == ({"loss": 9.0, "rate": "nan"}, {"loss": [0.5, 9.0]})


def test_lengths_of_logs_are_pairs_after_the_first(tmp_path: Path) -> None:
    writer, attempt, _, _ = journal(tmp_path)
    writer.sample([{"logs": {"worker:0": [[10.0, 5], [10.5, 25], [70.25, 30]]}}])
    writer.sample([{"logs": {"worker:0": [[70.25, 30], [71.0, 40]], "ps:0": [[10.0, 0]]}}])  # one was told twice
    writer.end()
    assert times(attempt) == [
        {"task": "worker:0", "time": 10.0, "offset": 5, "then": [500, 20, 59750, 5, 750, 10]},
        {"task": "ps:0", "time": 10.0, "offset": 0, "then": []},
    ]
    writer.sample([{"logs": {"worker:0": [[72.0, 50]]}}])
    writer.end()
    assert times(attempt)[2:] == [{"task": "worker:0", "time": 72.0, "offset": 50, "then": []}]


def test_long_job_keeps_fewer_lengths_but_the_last_before_a_pause(tmp_path: Path) -> None:
    writer, attempt, system, _ = journal(tmp_path)
    system.sleep(4 * 3600.0)  # four seconds from one to the next
    points = [[100.0 + number / 4, number] for number in range(41)]
    writer.sample([{"logs": {"worker:0": [*points, [1000.0, 99]]}}])
    writer.end()
    (line,) = times(attempt)
    kept, time, size = [(line["time"], line["offset"])], line["time"], line["offset"]
    for pause, more in zip(line["then"][::2], line["then"][1::2], strict=True):
        time, size = time + pause / 1000, size + more
        kept.append((time, size))
    assert kept == [(100.0, 0), (104.0, 16), (108.0, 32), (110.0, 40), (1000.0, 99)]


def test_lines_are_short(tmp_path: Path) -> None:
    writer, attempt, _, _ = journal(tmp_path)
    writer.note("rendezvous")
    writer.end()
    text = attempt.events.read_text().splitlines()[1]
    assert text == json.dumps(json.loads(text), separators=(",", ":"))
