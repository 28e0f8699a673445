"""Walltimes, memory sizes and node counts."""

from __future__ import annotations

import pytest

from gridtf.jobspec.units import format_walltime, parse_memory, parse_nodes, parse_walltime

MINUTE, HOUR, DAY = 60, 3600, 86400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (60, 60 * MINUTE),  # sbatch(1): a bare number is minutes
        ("90", 90 * MINUTE),
        ("1:30", 90),
        ("90:00", 90 * MINUTE),
        ("2:00:00", 2 * HOUR),
        ("100:00:00", 100 * HOUR),
        ("1-12", 36 * HOUR),
        ("1-0", DAY),
        ("0-36:00:00", 36 * HOUR),
        ("1-2:3", DAY + 2 * HOUR + 3 * MINUTE),
        ("1-02:03:04", DAY + 2 * HOUR + 3 * MINUTE + 4),
        ("90m", 90 * MINUTE),
        ("2h30m", 150 * MINUTE),
        ("1d12h", 36 * HOUR),
        ("45s", 45),
        (" 10 ", 10 * MINUTE),
    ],
)
def test_parse_walltime_accepts_slurms_formats_and_units(text: str | int, seconds: int) -> None:
    assert parse_walltime(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0:00",
        "0-0",
        "-5",
        "two hours",
        "1:60",
        "1:60:00",
        "1:00:60",
        "٣",
        "1_0",
        "+3",
        "UNLIMITED",
        "1-1:60",
        "1.5",
        "5x",
        "m5",
        "1::2",
    ],
)
def test_parse_walltime_refuses_other_text_and_quotes_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a walltime") as caught:
        parse_walltime(text)
    assert repr(text.strip()) in str(caught.value)


def test_parse_walltime_refuses_more_than_2_to_the_31_seconds() -> None:
    assert parse_walltime(f"{2**31 - 1}s") == 2**31 - 1
    for text in (f"{2**31}s", "25000-0", "40000d"):
        with pytest.raises(ValueError, match=f"'{text}' is longer than 24855 days"):
            parse_walltime(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "00:00:05"), (90, "00:01:30"), (2 * HOUR, "02:00:00"), (DAY + HOUR, "1-01:00:00")]
)
def test_format_walltime_is_parsed_to_the_same_seconds(seconds: int, text: str) -> None:
    assert format_walltime(seconds) == text
    assert parse_walltime(text) == seconds


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        (4096, 4096),
        ("500M", 500),
        ("16G", 16384),
        ("1.5g", 1536),
        ("2T", 2 * 1024**2),
        ("1K", 1),
        ("8 GiB", 8192),
        ("8Gi", 8192),
    ],
)
def test_parse_memory_returns_mib_rounded_up(text: str | int, mib: int) -> None:
    assert parse_memory(text) == mib


@pytest.mark.parametrize("text", ["", "0", "G", "16B", "-1G", "1X", "lots", "1e3", "٣", "9" * 400])
def test_parse_memory_refuses_other_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not a memory size"):
        parse_memory(text)


@pytest.mark.parametrize(("text", "nodes"), [(4, (4, 4)), ("4", (4, 4)), ("2-4", (2, 4)), ("3-3", (3, 3))])
def test_parse_nodes_returns_fewest_and_most(text: str | int, nodes: tuple[int, int]) -> None:
    assert parse_nodes(text) == nodes


@pytest.mark.parametrize("text", ["", "0", "4-2", "0-2", "-3", "2-", "n1", "1,2", "+3", "٣"])
def test_parse_nodes_refuses_other_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not a node count"):
        parse_nodes(text)
