"""PE_HOSTFILE as it comes. The forms are those of Son of Grid Engine 8.1.9 and of sge_pe(5)."""

from __future__ import annotations

import pytest

from gridtf.errors import SchedulerError
from gridtf.schedulers.sge.injob import HostLine, parse_hostfile, same_host


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "n2 2 all.q@n2 UNDEFINED\nn4 1 all.q@n4 UNDEFINED\n", [HostLine("n2", 2), HostLine("n4", 1)], id="as-it-is"
        ),
        pytest.param("n2 2 all.q@n2 <NULL>\n", [HostLine("n2", 2)], id="null"),
        pytest.param("n2 2 all.q@n2 NONE\n", [HostLine("n2", 2)], id="none"),
        pytest.param("n2 2 all.q@n2 0,0:0,1\n", [HostLine("n2", 2, cores=2)], id="binding"),
        pytest.param("n2 4 all.q@n2 0:0,0:1,0:2,0:3\n", [HostLine("n2", 4, cores=4)], id="binding-of-the-pe"),
        pytest.param("n2 2 all.q@n2 0,0\nn2 2 long.q@n2 0,4:0,5\n", [HostLine("n2", 4, cores=3)], id="bindings-summed"),
        pytest.param("n2 2 a.q@n2 0,0\nn2 2 b.q@n2 UNDEFINED\n", [HostLine("n2", 4)], id="half-a-binding"),
        pytest.param(
            "n1 2 a.q@n1 UNDEFINED\nn2 1 a.q@n2 UNDEFINED\nn1 1 b.q@n1 UNDEFINED\n",
            [HostLine("n1", 3), HostLine("n2", 1)],
            id="repeated-hosts",
        ),
        pytest.param(
            "n1.site.org 2 a.q@n1.site.org UNDEFINED\nn1 1 b.q@n1 UNDEFINED\n", [HostLine("n1.site.org", 3)], id="fqdn"
        ),
        pytest.param("n1.a.org 2\nn1.b.org 1\n", [HostLine("n1.a.org", 2), HostLine("n1.b.org", 1)], id="two-domains"),
        pytest.param("N1 2 q@N1\nn1 1 b@n1\n", [HostLine("N1", 3)], id="letter-case"),
        pytest.param("\n\nn2 2\n\nn3\n   \n", [HostLine("n2", 2), HostLine("n3", 1)], id="short-and-blank"),
        pytest.param(
            "n2 2 q@n2 UNDEFINED\r\nn3 1 q@n3 UNDEFINED\r\n", [HostLine("n2", 2), HostLine("n3", 1)], id="crlf"
        ),
        pytest.param("n2 0 q@n2 UNDEFINED\nn3 4 q@n3 UNDEFINED", [HostLine("n2", 0), HostLine("n3", 4)], id="no-slots"),
        pytest.param("n2\t2\tall.q@n2\t<NULL>\n", [HostLine("n2", 2)], id="tabs"),
    ],
)
def test_lines(text: str, expected: list[HostLine]) -> None:
    assert list(parse_hostfile(text)) == expected


def test_what_is_no_number_of_slots_is_told_with_its_line() -> None:
    with pytest.raises(SchedulerError, match="/spool/pe_hostfile:2: 'many' is not a number of slots") as caught:
        parse_hostfile("n1 2 q@n1 UNDEFINED\nn2 many q@n2 UNDEFINED\n", "/spool/pe_hostfile")
    assert "n2 many q@n2" in caught.value.why
    assert "start_proc_args" in caught.value.hint


@pytest.mark.parametrize("slots", ["²", "٣", "-1", "1.5", "inf", "9" * 5000])
def test_digits_that_are_none_and_too_many_of_them(slots: str) -> None:
    with pytest.raises(SchedulerError, match="is not a number of slots") as caught:
        parse_hostfile(f"n1 {slots} q@n1 UNDEFINED\n")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("text", ["", "\n \r\n"])
def test_a_file_without_hosts(text: str) -> None:
    with pytest.raises(SchedulerError, match="names no host"):
        parse_hostfile(text)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("n1", "n1", True),
        ("n1", "N1.site.org", True),
        ("n1.site.org", "n1.site.org", True),
        ("n1.a", "n1.b", False),
        ("n1", "n10", False),
        ("n1", "n2.site.org", False),
    ],
)
def test_names_of_one_host(one: str, other: str, expected: bool) -> None:
    assert same_host(one, other) is expected
    assert same_host(other, one) is expected
