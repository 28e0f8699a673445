"""The check of hosts before training: which of them are far from the others, and the program that measures."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gridtf.features.hostcheck.agent import PROGRAM
from gridtf.features.hostcheck.judge import MEASURES, explained, rounds, suspects, take_best
from gridtf.hook import hostcheck
from tests.support.topics import fast

WELL = {
    "share": 96.0,
    "gpu:0": 60.0,
    "gpu:1": 61.0,
    "cpu": 800.0,
    "memory": 11.0,
    "tmp_write": 1500.0,
    "tmp_read": 3000.0,
    "run_write": 300.0,
    "run_read": 900.0,
    "bandwidth": 1100.0,
    "round_trips": 25000.0,
    "clock": 0.01,
}


def found(hosts: int, of_n1: dict[str, float]) -> dict[str, str]:
    """What is found where n1 has other values than the others."""
    values = {f"n{number}": {**WELL} for number in range(1, hosts + 1)}
    values["n1"] |= {name.replace("gpu", "gpu:"): value for name, value in of_n1.items()}
    return {host: what for (host, _), what in explained(suspects(values, {})).items()}


def test_values_that_differ_a_little_are_no_reason() -> None:
    assert not found(4, {})
    assert not found(
        4,
        {
            "gpu1": 40.0,
            "cpu": 410.0,
            "memory": 5.0,
            "bandwidth": 500.0,
            "round_trips": 1100.0,
            "clock": 4.0,
            "tmp_write": 301.0,
        },
    )


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("gpu1", 24.0, "matrix product on GPU 1 40 % of the median (24 of 60 TFLOPS)"),
        ("cpu", 328.0, "matrix product 41 % of the median (328 of 800 GFLOPS)"),
        ("memory", 2.0, "copies in memory 18 % of the median (2 of 11 GB/s)"),
        ("tmp_write", 9.0, "writing to TMPDIR 1 % of the median (9 of 1500 MB/s)"),
        ("run_read", 5.0, "reading from the run directory 1 % of the median (5 of 900 MB/s)"),
        ("bandwidth", 0.0, "bandwidth 0 % of the median (0 of 1100 MB/s)"),
        ("round_trips", 300.0, "round trips 1 % of the median (300 of 25000 a second)"),
        ("clock", -8.0, "its clock differs by 8.0 s"),
        ("share", 24.0, "short of CPUs: it runs for 25 % of the median (24 of 96 % of the time in which it could)"),
    ],
)
def test_host_far_from_the_others_is_named_with_the_measure(name: str, value: float, told: str) -> None:
    assert found(4, {name: value}) == {"n1": told}
    assert bool(found(2, {name: value})) == (name in ("clock", "gpu1")), "two hosts cannot tell; their GPUs are four"


def test_host_short_of_cpus_is_named_as_that_and_not_by_what_follows() -> None:
    """Values of four hosts of a test bed, of which n3 had a third of the others' quota."""
    others = {"share": 51.0, "cpu": 61.4, "memory": 2.34, "bandwidth": 2752.0, "clock": 0.0}
    short = {"share": 15.0, "cpu": 18.2, "memory": 0.56, "bandwidth": 996.0, "clock": 0.08}
    suspected = suspects({"n1": others, "n2": others, "n3": short, "n4": others}, {})
    assert [name for _, name in suspected] == ["share", "cpu", "memory", "bandwidth"]
    assert explained(suspected).keys() == {("n3", "share")}
    late = suspects({"n1": others, "n2": others, "n3": {**short, "clock": 9.0}, "n4": {**others, "bandwidth": 9.0}}, {})
    assert {*explained(late)} == {("n3", "share"), ("n3", "clock"), ("n4", "bandwidth")}


def test_every_kind_of_values_is_judged() -> None:
    assert {name.partition(":")[0] for name in WELL} == {*MEASURES, "clock"}


def test_slow_disk_that_is_fast_enough_is_no_reason() -> None:
    """TMPDIR of the others is in memory."""
    assert not found(4, {"tmp_write": 250.0, "tmp_read": 250.0, "run_write": 60.0})


def test_only_like_is_compared_with_like() -> None:
    speeds = {"n1": 60.0, "n2": 61.0, "n3": 62.0, "n4": 9.0, "n5": 9.5}
    values = {host: {"gpu:0": speed} for host, speed in speeds.items()}
    models = {host: {"gpu:0": "A100" if speed > 10 else "T4"} for host, speed in speeds.items()}
    assert not suspects(values, models)
    assert {host for host, _ in suspects(values, {})} == {"n4", "n5"}


def test_gpus_of_one_host_alone_are_not_judged() -> None:
    assert not suspects({"n1": {"gpu:0": 60.0, "gpu:1": 60.0, "gpu:2": 9.0}}, {})


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 8, 33])
def test_each_host_measures_the_way_to_its_neighbours_and_to_one_far_away_and_is_in_one_pair_at_a_time(
    count: int,
) -> None:
    hosts = [f"n{number}" for number in range(count)]
    made = rounds(hosts)
    assert all(len({host for pair in pairs for host in pair}) == 2 * len(pairs) for pairs in made)
    met = {frozenset(pair) for pairs in made for pair in pairs}
    ring = {frozenset((hosts[index], hosts[(index + 1) % count])) for index in range(count)}
    assert {pair for pair in ring if len(pair) == 2} <= met
    far = {host for pair in met - ring for host in pair}
    assert count < 4 or len(far) >= count - 1
    assert len(made) <= 4, "how long it takes does not grow with the number of hosts"
    assert sum(map(len, made)) == len(met)


def test_host_at_the_other_end_of_a_slow_way_is_innocent() -> None:
    slow, fast = {"bandwidth": 10.0, "round_trips": 90.0}, {"bandwidth": 1000.0, "round_trips": 9000.0}
    ways: dict[str, dict[str, float]] = {}
    take_best(ways, {("n1", "n2"): slow, ("n3", "n4"): fast})
    take_best(ways, {("n2", "n3"): fast, ("n1", "n3"): slow})
    assert ways["n2"] == ways["n3"] == fast
    assert ways["n1"] == slow
    assert {host for host, _ in suspects(ways, {})} == {"n1"}


# --- the program


def orders(*records: dict[str, object], python: tuple[str, ...] = (sys.executable,)) -> list[dict[str, dict[str, str]]]:
    """The answers of the program to orders."""
    lines = "".join(json.dumps({"number": number, **record}) + "\n" for number, record in enumerate(records, 1))
    done = subprocess.run([*python, str(PROGRAM)], input=lines, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.thorough
def test_program_measures_without_any_package_and_says_what_it_could_not(tmp_path: Path) -> None:
    order = {"measures": ["gpu", "cpu", "memory", "share", "run"], "run": [str(tmp_path), 1000]}
    first, second = orders(
        order, {"measures": ["run"], "run": ["/proc/nowhere", 1000]}, python=(sys.executable, "-S", "-E")
    )
    assert first["values"].keys() == {"memory", "share", "run_write", "run_read"}
    assert 0 < float(first["values"]["share"]) <= 100
    assert "No module named 'numpy'" in first["missing"]["cpu"]
    assert "No module named 'tensorflow'" in first["missing"]["gpu"]
    assert "/proc/nowhere" in second["missing"]["run"]
    limited = (
        "prlimit",
        "--fsize=500",
        sys.executable,
        "-S",
        "-E",
    )  # takes a part, as a full disk
    (third,) = orders({"measures": ["run"], "run": [str(tmp_path), 1000]}, python=limited)
    assert third["missing"] == {"run": "OSError: no room for it on the disk"}
    assert not list(tmp_path.iterdir())


def reset(stranger: socket.socket) -> None:
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stranger.close()


STRANGERS: dict[str, Callable[[socket.socket], None]] = {
    "says nothing": lambda stranger: None,
    "has left": socket.socket.close,
    "has reset": reset,
    "speaks HTTP": lambda stranger: stranger.sendall(b"GET / HTTP/1.0\r\n\r\n" + bytes(100)),
    "says a byte": lambda stranger: stranger.sendall(b"a"),
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "strangers", fast(2, *product(STRANGERS, [(1, "after"), (1, "before"), (150, "before")])), ids=str
)
def test_strangers_do_not_keep_two_hosts_from_each_other(strangers: tuple[str, tuple[int, str]]) -> None:
    """Any user of the hosts may connect to their ports, and so may a port scanner of the site."""
    what, (number, when) = strangers
    with contextlib.ExitStack() as closing:
        listener = closing.enter_context(socket.create_server(("127.0.0.1", 0)))
        place = listener.getsockname()

        def disturb() -> None:
            for _ in range(number):
                stranger = closing.enter_context(socket.create_connection(place))
                STRANGERS[what](stranger)

        found: dict[str, float] = {}
        serving = threading.Thread(target=lambda: found.update(measured(None, listener)))
        if when == "before" and number < 100:  # as many as wait in the kernel
            disturb()
        serving.start()
        disturb()
        asked = measured([*place], listener)
        serving.join()
    assert asked.keys() == {"round_trips", "bandwidth"}
    assert found["bandwidth"] > 0


def measured(peer: list[object] | None, listener: socket.socket) -> dict[str, float]:
    return {name: value for name, value, _ in hostcheck._pair({"token": "a" * 64, "peer": peer}, listener)}


@pytest.mark.thorough
def test_other_host_that_ends_at_once_gives_no_measurement() -> None:
    """Not one of 0 MB/s, by which a good host would be far from the others."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def leave() -> None:
            other = listener.accept()[0]
            other.recv(1000)
            for _ in range(100):
                other.sendall(b"x")
                other.recv(1)
            other.shutdown(socket.SHUT_WR)
            while other.recv(1 << 20):
                pass
            other.close()

        leaving = threading.Thread(target=leave)
        leaving.start()
        with pytest.raises(ConnectionError, match="the other host has ended the connection"):
            measured([*listener.getsockname()], listener)
        leaving.join()


@pytest.mark.thorough
def test_program_measures_the_way_between_two_hosts_of_the_same_token() -> None:
    command = [sys.executable, "-S", str(PROGRAM)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen(command, **pipes) as one, subprocess.Popen(command, **pipes) as other:  # type: ignore[call-overload]

        def tell(process: subprocess.Popen[str], **order: object) -> None:
            assert process.stdin
            process.stdin.write(json.dumps({"number": 1, "measures": ["pair"], **order}) + "\n")

        def answer(process: subprocess.Popen[str]) -> dict[str, dict[str, float]]:
            assert process.stdout
            return dict(json.loads(process.stdout.readline()))

        tell(one, measures=[])
        peer = ["127.0.0.1", answer(one)["port"]]
        tell(one, peer=None, token="a" * 64)
        tell(other, peer=peer, token="b" * 64)
        assert "pair" in answer(other)["missing"]
        tell(other, peer=peer, token="a" * 64)
        assert answer(one)["values"].keys() == {"bandwidth"}
        assert answer(other)["values"].keys() == {"bandwidth", "round_trips"}
        for process in (one, other):
            assert process.stdin
            process.stdin.close()


def test_a_round_trip_begins_before_the_byte_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after that, when the answer may be there already: here all of the time passes while it is sent."""
    clock = [0.0]

    class Other(contextlib.nullcontext[Any]):
        def __enter__(self) -> Other:
            return self

        def recv(self, size: int) -> bytes:
            return b"x"

        def sendall(self, data: bytes) -> None:
            clock[0] += 0.25

    monkeypatch.setattr("socket.create_connection", lambda *peer: Other())
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr(hostcheck, "_send_all", lambda other: None)
    monkeypatch.setattr(hostcheck, "_receive_all", lambda other: 1.0)
    order = {"token": "t", "peer": ["n2", 1]}
    found = {name: value for name, value, _ in hostcheck._pair(order, None)}  # type: ignore[arg-type]
    assert found["round_trips"] == 4.0
