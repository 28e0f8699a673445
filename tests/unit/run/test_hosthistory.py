"""What jobs have found out about hosts is kept for a week, whatever happens to the file."""

from __future__ import annotations

import os
import stat
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import pytest

from gridtf.jobspec.limits import Limit
from gridtf.run import hosthistory
from gridtf.run.hosthistory import CHECK, KEPT, LOST, Finding
from gridtf.run.jsonlines import line
from gridtf.values import as_dict

NOW, CLUSTER, DAY = 2e9, "slurm:alpha", 86400.0


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    return {"HOME": str(tmp_path)}


def lost(host: str, job: str, days: float = 0.0, cluster: str = CLUSTER) -> Finding:
    return Finding(host, job, NOW - days * DAY, LOST, "no heartbeat for 30 s", cluster)


def bad(environ: Mapping[str, str], cluster: str = CLUSTER, site: Limit | None = None) -> list[str]:
    return [each.host for each in hosthistory.read(environ, NOW, site).bad(cluster)]


def test_host_is_bad_by_findings_of_two_jobs(environ: Mapping[str, str]) -> None:
    hosthistory.note(environ, [lost("n2", "1"), lost("n3", "1")])
    assert bad(environ) == []
    assert [each.jobs for each in hosthistory.read(environ, NOW).suspects] == [1, 1]
    hosthistory.note(environ, [lost("n2", "1"), lost("n2", "1_7"), lost("n2", "1.3"), lost("n2", "1+1")])
    assert bad(environ) == []  # restarts, elements of an array and components are one job
    hosthistory.note(environ, [Finding("n2", "2", NOW, CHECK, "GPU 1 is slow", CLUSTER)])
    assert bad(environ) == ["n2"]
    (worst, other) = hosthistory.read(environ, NOW).suspects
    assert (worst.reason, worst.jobs, worst.expires) == ("check: GPU 1 is slow", 2, NOW + KEPT)
    assert (other.reason, other.bad) == ("lost: no heartbeat for 30 s", False)


def test_findings_expire_after_a_week_and_those_of_a_wrong_clock_do_not_count(environ: Mapping[str, str]) -> None:
    hosthistory.note(environ, [lost("n2", "1", 8), lost("n2", "2"), lost("n3", "1", -0.5), lost("n3", "2", 6)])
    hosthistory.note(environ, [lost("n4", "1", -400), lost("n4", "2", -400)])
    assert bad(environ) == ["n3"]
    hosthistory.rewrite(environ, NOW)
    text = hosthistory.where(environ).read_text()
    assert text.count("\n") == 3
    assert '"n4"' not in text


def test_hosts_of_other_clusters_are_other_hosts(environ: Mapping[str, str]) -> None:
    hosthistory.note(environ, [lost("n2", "1"), lost("n2", "2", cluster="slurm:beta"), lost("n2", "3", cluster="")])
    assert bad(environ) == []
    hosthistory.note(environ, [lost("n2", "4"), lost("n3", "1", cluster="slurm:"), lost("n3", "2", cluster="slurm:")])
    assert bad(environ) == ["n2", "n3"]
    assert bad(environ, "slurm:beta") == ["n3"]
    assert bad(environ, "slurm:") == ["n2", "n3"]
    assert bad(environ, "sge:default") == bad(environ, "") == []


@pytest.mark.parametrize(
    "damage",
    [b"\xff\x00garbage\n", b'{"host":"n2"', b"[]\n1\nnull\n{}\n", b'{"checked":3,"time":1}\n', b"[" * 100000, b"\n\n"],
    ids=["binary", "cut", "other-json", "wrong-types", "deep", "empty"],
)
def test_damaged_lines_are_left_out(environ: Mapping[str, str], damage: bytes) -> None:
    hosthistory.note(environ, [lost("n2", "1")])
    with hosthistory.where(environ).open("ab") as file:
        file.write(damage)
    hosthistory.note(environ, [lost("n2", "2")])
    assert bad(environ) == ["n2"]
    assert hosthistory.read(environ, NOW).notes == ()


def test_file_that_cannot_be_trusted_or_written_costs_a_note(environ: Mapping[str, str], tmp_path: Path) -> None:
    hosthistory.note(environ, [lost("n2", "1"), lost("n2", "2")])
    path = hosthistory.where(environ)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o666)
    (note,) = hosthistory.read(environ, NOW).notes
    assert "writable by other users" in note
    hosthistory.note(environ, [lost("n3", "1")])  # nothing is added to it
    assert "n3" not in path.read_text()
    hosthistory.rewrite(environ, NOW)  # nothing is lost
    assert path.read_text().count("n2") == 2
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    hosthistory.note(environ, [lost("n2", "1")])
    assert not (tmp_path / "elsewhere").exists()
    path.unlink()
    path.mkdir()
    hosthistory.note(environ, [lost("n2", "1")])
    hosthistory.note_checked(environ, ["n2"], NOW, CLUSTER)
    assert len(hosthistory.read(environ, NOW).notes) == 1
    assert hosthistory.checked_since(environ, CLUSTER, 0) == frozenset()
    for home in ("/proc/nowhere", "/dev/null", "~nobody-at-all"):
        hosthistory.note({"HOME": home}, [lost("n2", "1")])
        assert hosthistory.read({"HOME": home}, NOW).suspects == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a file of another user")
def test_file_of_another_user_is_neither_read_nor_written(environ: Mapping[str, str]) -> None:
    hosthistory.note(environ, [lost("n2", "1"), lost("n2", "2")])
    path = hosthistory.where(environ)
    before = path.read_text()
    os.chown(path, 12345, -1)
    hosthistory.note(environ, [lost("n3", "1")])
    hosthistory.rewrite(environ, NOW, ["n2"])
    assert path.read_text() == before
    assert bad(environ) == []
    assert "belongs to user 12345" in hosthistory.read(environ, NOW).notes[0]


def test_full_disk_costs_the_finding_alone(environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    hosthistory.note(environ, [lost("n2", "1")])
    with monkeypatch.context() as patch:
        patch.setattr(hosthistory, "open_log", lambda path: open("/dev/full", "ab", buffering=0))  # noqa: PTH123, SIM115
        hosthistory.note(environ, [lost("n2", "2")])
    assert bad(environ) == []


def test_end_of_a_file_that_something_has_blown_up_is_read(environ: Mapping[str, str]) -> None:
    hosthistory.note(environ, [lost("n1", "1"), lost("n1", "2")])
    with hosthistory.where(environ).open("r+b") as file:
        file.truncate(1 << 33)  # GiB, which take no room
    with hosthistory.where(environ).open("ab") as file:
        file.write(b"\n" + b"".join(line(as_dict(lost("n2", job))).encode() for job in "12"))
    tracemalloc.start()
    assert bad(environ) == ["n2"]
    hosthistory.rewrite(environ, NOW)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 32 << 20
    assert hosthistory.where(environ).stat().st_size < 1000
    assert bad(environ) == ["n2"]


@pytest.mark.thorough
def test_file_is_bounded(environ: Mapping[str, str]) -> None:
    for number in range(10):
        hosthistory.note(environ, [lost(f"n{number}", str(job)) for job in range(1000)])
    size = hosthistory.where(environ).stat().st_size
    hosthistory.note(environ, [lost("n99", "1")])
    assert size > 1 << 20
    assert hosthistory.where(environ).stat().st_size == size
    hosthistory.rewrite(environ, NOW)
    assert len(hosthistory.where(environ).read_text().splitlines()) == 2000
    hosthistory.note(environ, [lost("n99", "1"), lost("n99", "2")])
    assert "n99" in bad(environ)


@pytest.mark.thorough
def test_passed_checks_do_not_push_findings_out(environ: Mapping[str, str]) -> None:
    hosthistory.note(environ, [lost("n2", "1"), lost("n2", "2")])
    hosthistory.note_checked(environ, [f"m{number}" for number in range(3000)], NOW, CLUSTER)
    hosthistory.rewrite(environ, NOW)
    assert bad(environ) == ["n2"]
    assert len(hosthistory.checked_since(environ, CLUSTER, NOW - DAY)) == 1998


def test_forgotten_hosts_are_not_bad_any_more(environ: Mapping[str, str]) -> None:
    hosthistory.rewrite(environ, NOW, ["n2"])  # without a file
    hosthistory.note(environ, [lost(host, job) for host in ("n2", "n3") for job in "12"])
    hosthistory.rewrite(environ, NOW, ["n2"])
    assert bad(environ) == ["n3"]


def test_checked_hosts_are_known_until_something_is_found(environ: Mapping[str, str]) -> None:
    hosthistory.note_checked(environ, ["n1", "n2"], NOW - DAY / 2, CLUSTER)
    hosthistory.note_checked(environ, ["n3"], NOW - 2 * DAY, CLUSTER)
    hosthistory.note_checked(environ, ["n4"], NOW, "slurm:beta")
    hosthistory.note(environ, [lost("n2", "1")])
    assert hosthistory.checked_since(environ, CLUSTER, NOW - DAY) == {"n1"}
    assert hosthistory.checked_since(environ, CLUSTER, NOW - 3 * DAY) == {"n1", "n3"}
    hosthistory.note_checked(environ, ["n2"], NOW + 1, CLUSTER)
    assert hosthistory.checked_since(environ, CLUSTER, NOW - DAY) == {"n1", "n2"}
    hosthistory.rewrite(environ, NOW)
    assert hosthistory.checked_since(environ, CLUSTER, NOW - DAY) == {"n1", "n2"}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a file of another user")
def test_one_line_of_the_site_is_enough_and_only_the_site_can_write_it(
    environ: Mapping[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "bad-hosts"
    file.write_text("# marked by staff\n \n n7\tGPU 3 has fallen off the bus \n  # and\nn8\n")
    site = Limit(str(file), "site.toml:3", os.getuid())
    hosthistory.note(environ, [lost("n7", "1")])
    assert bad(environ, site=site) == ["n7", "n8"]
    assert [each.reason for each in hosthistory.read(environ, NOW, site).suspects] == [
        "GPU 3 has fallen off the bus",
        "no reason is given",
        "lost: no heartbeat for 30 s",
    ]
    assert bad(environ, "slurm:beta", site) == ["n7", "n8"]
    file.chmod(0o666)
    assert bad(environ, site=site) == []
    assert "any user may write" in hosthistory.read(environ, NOW, site).notes[0]
    file.chmod(0o644)
    os.chown(file, 12345, -1)
    assert bad(environ, site=site) == []
    assert "belongs to user 12345" in hosthistory.read(environ, NOW, site).notes[0]
    assert bad(environ, site=site.replace(owner=12345)) == ["n7", "n8"]
    file.unlink()
    assert "No such file" in hosthistory.read(environ, NOW, site).notes[0]


def test_odd_names_and_reasons_stay_one_line(environ: Mapping[str, str]) -> None:
    odd = "n2\n\x1b[31m;$(reboot)\udcff"
    hosthistory.note(environ, [Finding(odd, job, NOW, LOST, f"a\nb{'x' * 999}", CLUSTER) for job in "12"])
    (found,) = hosthistory.read(environ, NOW).suspects
    assert found.host == odd
    assert "\n" not in found.reason
    assert len(found.reason) < 220
