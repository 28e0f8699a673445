"""Expanding hostlists, compared with Slurm's own scontrol."""

from __future__ import annotations

import random
import shlex

import pytest

from gridtf.schedulers.slurm.hostlist import expand
from tests.support.cluster import Bed
from tests.support.hostlists import random_hostlist

HAND_PICKED = [
    "n[3,1-2]",
    "n[008-011]",
    "n[08-11]",
    "n[8-11]",
    "n[098-101]",
    "n[8-011]",
    "n[001,2,03]",
    "a[1-2]b[3-4]",
    "n[1-2][3-4]",
    "[1-3]",
    "10.0.0.[9-11],10.0.0.7",
    "gpu-3.cluster.example",
    "n2,n1,n2",
    " n1 n2,\n n3",
    "n1,,n2,",
]


def test_expand_returns_the_same_hosts_as_scontrol(slurm: Bed) -> None:
    chance = random.Random(20)
    lists = HAND_PICKED + [random_hostlist(chance, suffixes=False) for _ in range(300)]
    script = "".join(f"scontrol show hostnames {shlex.quote(text)} | tr '\\n' ' '; echo\n" for text in lists)
    lines = slurm.run("login", "bash", "-c", script, timeout=240).stdout.splitlines()
    assert len(lines) == len(lists)
    wrong = {text: line for text, line in zip(lists, lines, strict=True) if line.split() != expand(text)}
    assert wrong == {}


@pytest.mark.parametrize("text", ["n[]", "n[3-1]", "n[a]", "n[1-2-3]", "n[0-99999]"])
def test_expand_refuses_what_scontrol_refuses(slurm: Bed, text: str) -> None:
    done = slurm.run("login", "scontrol", "show", "hostnames", text, check=False)
    assert "Invalid hostlist" in done.stderr + done.stdout
    with pytest.raises(Exception, match="is not a hostlist"):
        expand(text)
