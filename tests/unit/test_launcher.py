"""What the launcher decides by itself."""

from __future__ import annotations

from gridtf.bootstrap.hosts import look_again


def test_the_file_server_is_spared() -> None:
    assert look_again(1, 0) < look_again(1, 3600) < 1
    assert look_again(16, 3600) < 1
    for hosts in (64, 1024, 4096):
        assert hosts / look_again(hosts, 3600) <= 200
        assert hosts / look_again(hosts, 0) <= 200
