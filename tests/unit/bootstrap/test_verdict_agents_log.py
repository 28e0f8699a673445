"""Why an agent could not start: out of a log that all agents, srun and Slurm's daemons write."""

from __future__ import annotations

import pytest

from gridtf.bootstrap.judge.agentslog import agent_cause, agent_hint, relevant

# As srun 22.05 and its daemons print it.
EXECVE = """\
srun: cluster configuration lacks support for cpu binding
slurmstepd-n3: error: execve(): /opt/python: Permission denied
srun: error: n3: task 2: Exited with exit code 13
srun: launch/slurm: _step_signal: Terminating StepId=2.0
srun: error: n2: task 1: Terminated
slurmstepd-n1: error: *** STEP 2.0 ON n1 CANCELLED AT 2026-11-21T23:35:16 ***
srun: error: n1: task 0: Terminated
srun: Force Terminated StepId=2.0
""".splitlines()
# As those of 26.05 do; srun 24.11 prints the same.
EXECVE_26_05 = """\
srun: cluster configuration lacks support for cpu binding
[2026-11-25T19:56:03.248] error: execve(): /opt/python: Permission denied
srun: error: n3: task 2: Exited with exit code 13
srun: Terminating StepId=2.0
[2026-11-25T19:56:03.431] error: *** STEP 2.0 ON n1 CANCELLED AT 2026-11-25T19:56:03 DUE TO TASK FAILURE ***
srun: error: n1: task 0: Terminated
srun: Force Terminated StepId=2.0
""".splitlines()
NO_GRIDTF = [
    "srun: cluster configuration lacks support for cpu binding",
    "Traceback (most recent call last):",
    '  File "<string>", line 4, in <module>',
    "ModuleNotFoundError: No module named 'gridtf.bootstrap.agent.node'",
    "srun: error: n3: task 2: Exited with exit code 1",
]
TWO_SPEAK = [
    "gridtf: agent on n2: no heartbeat from the launcher for 30 s",
    "gridtf: agent on n3: cannot write /runs/x: No space left on device",
    "gridtf: free some space there",
]


@pytest.mark.parametrize(
    ("lines", "host", "said", "hint"),
    [
        (EXECVE, "n3", "execve(): /opt/python: Permission denied", "the Python"),
        (EXECVE, None, "execve(): /opt/python: Permission denied", "the Python"),
        (EXECVE, "n2", "", ""),
        (EXECVE_26_05, "n3", "execve(): /opt/python: Permission denied", "the Python"),
        (EXECVE_26_05[3:], "n1", "", ""),
        (
            NO_GRIDTF,
            "n3",
            "ModuleNotFoundError: No module named 'gridtf.bootstrap.agent.node'",
            "gridtf must be installed",
        ),
        (TWO_SPEAK, "n2", "no heartbeat from the launcher for 30 s", ""),
        (TWO_SPEAK, "n3", "cannot write /runs/x: No space left on device", ""),
        (["/bin/sh: 1: /opt/python: not found"], "n3", "/bin/sh: 1: /opt/python: not found", "the Python"),
        (["error: less file descriptors"], "n3", "error: less file descriptors", "ulimit -n"),
        ([], "n3", "", ""),
    ],
)
def test_agent_cause_and_hint_from_agents_log(lines: list[str], host: str | None, said: str, hint: str) -> None:
    found = agent_cause(relevant(lines, host))
    assert found == said
    assert hint in agent_hint(found)
    assert bool(hint) == bool(agent_hint(found))


def test_lines_that_srun_always_prints_are_no_cause() -> None:
    assert relevant(EXECVE, "n3") == ["slurmstepd-n3: error: execve(): /opt/python: Permission denied"]
    assert relevant(NO_GRIDTF, "n3") == NO_GRIDTF[1:4]
