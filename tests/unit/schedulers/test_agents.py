"""Programs that start agents on other hosts: started again where an agent was never started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gridtf.schedulers import agents
from gridtf.schedulers.api import AgentEnd
from gridtf.schedulers.slurm.injob import parse_failure
from tests.support.jobs import until

COUNT = """echo begun >>"$0"; [ "$(wc -l <"$0")" -gt "$1" ] && exit 3; echo "not sent"; exit 1"""


def of_host(code: int, printed: Sequence[str]) -> AgentEnd:
    return AgentEnd(code, "n2", tuple(printed), again="not sent" in printed)


@pytest.mark.thorough
@pytest.mark.parametrize(("refusals", "code", "starts"), [(0, 3, 1), (2, 3, 3), (9, 1, 4)])
def test_agent_that_was_never_started_is_started_again(
    refusals: int,
    code: int,
    starts: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(agents, "_RESTART_PAUSES", (0, 0, 0))
    count = tmp_path / "count"
    argv = ["sh", "-c", COUNT, str(count), str(refusals)]
    started = agents.StartedAgents(argv, {"PATH": "/usr/bin:/bin"}, tmp_path / "log", of_host)
    end = until(started.poll, "the end of the program")
    started.terminate()
    assert end.code == code
    assert count.read_text().count("begun") == starts
    told = capfd.readouterr().err
    assert told.count("not sent: gridtf starts the agent on host n2 again in 0 s") == starts - 1


def test_agent_that_waits_for_its_next_start_ends_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """By default the pause is seconds long."""
    count = tmp_path / "count"
    started = agents.StartedAgents(
        ["sh", "-c", COUNT, str(count), "9"], {"PATH": "/usr/bin:/bin"}, tmp_path / "log", of_host
    )
    told = ""

    def announced() -> bool:
        nonlocal told
        assert started.poll() is None
        told += capfd.readouterr().err
        return "again in 5 s" in told

    until(announced, "the end of the first attempt")
    started.terminate()
    end = started.poll()
    assert end is not None
    assert end.code == 1
    assert count.read_text() == "begun\n"


def test_agent_that_is_being_ended_is_not_started_again(tmp_path: Path) -> None:
    count = tmp_path / "count"
    argv = ["sh", "-c", f"cat; {COUNT}", str(count), "9"]
    started = agents.StartedAgents(argv, {"PATH": "/usr/bin:/bin"}, tmp_path / "log", of_host)
    started.terminate()
    assert until(started.poll, "the end of the program").code == 1
    assert count.read_text() == "begun\n"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("srun: error: n3: task 2: Exited with exit code 13", (13, "n3")),
        ("srun: error: n3: task 2: Killed", (-9, "n3")),
        ("srun: cluster configuration lacks support for cpu binding", None),
    ],
)
def test_agent_that_has_failed_is_found_while_srun_goes_on(
    line: str, found: tuple[int, str] | None, tmp_path: Path
) -> None:
    """srun waits for an agent that begins when the others have been ended."""
    begun = tmp_path / "begun"
    argv = ["sh", "-c", 'echo "$1"; touch "$0"; cat', str(begun), line]
    started = agents.StartedAgents(argv, {"PATH": "/usr/bin:/bin"}, tmp_path / "log", parse_failure)
    until(begun.exists, "its output")
    end = started.failed()
    assert started.poll() is None
    assert (end and (end.code, end.host)) == found
    started.terminate()
    until(started.poll, "the end of the program")
    assert started.failed() is None
