"""Hostlists and counts. tests/cluster/test_slurm_hostlist.py compares them with `scontrol show hostnames`."""

from __future__ import annotations

import random

import pytest
from ClusterShell.NodeSet import NodeSet

from gridtf.errors import SchedulerError
from gridtf.schedulers.slurm.hostlist import MOST_HOSTS, counts, expand
from tests.support.hostlists import random_hostlist


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ""),
        (" \n", ""),
        ("n1", "n1"),
        ("gpu-3.cluster.example", "gpu-3.cluster.example"),
        ("10.0.0.7", "10.0.0.7"),
        ("10.0.0.[9-11]", "10.0.0.9 10.0.0.10 10.0.0.11"),
        ("n[1-3]", "n1 n2 n3"),
        ("n[3,1-2]", "n3 n1 n2"),
        ("n[008-011]", "n008 n009 n010 n011"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("n[99-101]", "n99 n100 n101"),
        ("n[8-011]", "n8 n9 n10 n11"),
        ("n[001,2,03]", "n001 n2 n03"),
        ("n[0]", "n0"),
        ("n[1-1]", "n1"),
        ("n[1-2]-ib", "n1-ib n2-ib"),
        ("r[1-2]n[3-4]", "r1n3 r1n4 r2n3 r2n4"),
        ("r[1-2]n[3,4]x", "r1n3x r1n4x r2n3x r2n4x"),
        ("n[1-2][3-4]", "n13 n14 n23 n24"),
        ("[1-2]", "1 2"),
        ("n2,n1,n2", "n2 n1 n2"),
        ("n[1-2],login,m-7-[01,03]", "n1 n2 login m-7-01 m-7-03"),
        (" n1  n2,\n n3\tn4\n", "n1 n2 n3 n4"),
        ("n1,,n2,", "n1 n2"),
    ],
)
def test_expand_hostlist(text: str, hosts: str) -> None:
    assert expand(text) == hosts.split()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("n[1", "at character 2: [ is not closed"),
        ("n[1,2 n3", "at character 2: [ is not closed"),
        ("a,n[1-2]x[", "at character 10: [ is not closed"),
        ("n[[1]]", "at character 2: [ within brackets"),
        ("n1]", "at character 3: ] without a [ before it"),
        ("n[1-2]]", "at character 7: ] without a [ before it"),
        ("]", "at character 1: ] without"),
        ("n[]", "at character 3: '' is neither a number nor a range"),
        ("n[1,]", "at character 5: '' is neither"),
        ("n[1-]", "at character 3: '1-' is neither"),
        ("n[-1]", "'-1' is neither"),
        ("n[4,1-2-3]", "at character 5: '1-2-3' is neither"),
        ("n[a]", "'a' is neither"),
        ("n[1 - 2]", "'1 - 2' is neither"),
        ("n[٣]", "'٣' is neither"),
        ("n[7,3-1]", "at character 5: 3-1 runs backwards"),
        ("n[010-9]", "010-9 runs backwards"),
        ("n[" + "9" * 5000 + "]", "too many digits"),
        ("n[0-999999999]", f"with 0-999999999 it has more than {MOST_HOSTS} hosts"),
        ("n[0-300]x[0-300]", "at character 11: with 0-300 it has more than"),
        ("a[0-65535],b", "at character 12: there are more than"),
        ("a[0-65534],b[0-1]", "with 0-1 it has more than"),
    ],
)
def test_invalid_hostlist_is_refused_with_the_position(text: str, why: str) -> None:
    with pytest.raises(SchedulerError) as caught:
        expand(text)
    assert why in caught.value.what
    assert "is not a hostlist" in caught.value.what
    assert len(str(caught.value)) < 400


def test_expand_to_the_limit_of_hosts() -> None:
    assert len(expand("n[0-65535]")) == MOST_HOSTS
    assert len(expand("n[0-255]x[0-255]")) == MOST_HOSTS


def test_expand_ten_thousand_names() -> None:
    names = [f"node{number:05}" for number in random.Random(4).sample(range(100_000), 10_000)]
    assert expand(",".join(names)) == names
    assert expand("node[" + ",".join(name[4:] for name in names) + "]") == names


def test_expand_returns_the_same_hosts_as_clustershell() -> None:
    for seed in range(200):
        text = random_hostlist(random.Random(seed))
        assert set(expand(text)) == set(NodeSet(text)), text


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", []),
        ("4", [4]),
        ("8(x2),4", [8, 8, 4]),
        ("1(x3)", [1, 1, 1]),
        ("16,2(x2),16\n", [16, 2, 2, 16]),
    ],
)
def test_counts(text: str, numbers: list[int]) -> None:
    assert counts(text) == numbers


@pytest.mark.parametrize("text", ["x", "8(2)", "8(x2", "8,,4", "8(x2)4", "-1", "8(x)", "8(x999999999)", "9" * 5000])
def test_invalid_counts_are_refused(text: str) -> None:
    with pytest.raises(SchedulerError, match="list of"):
        counts(text)
