"""Findings and settings as values."""

from __future__ import annotations

from gridtf.findings import Finding, Level, Setting, collect, missing


def test_missing_setting_is_a_warning_with_the_line_to_write() -> None:
    setting = Setting("setup", ["module load x"], "why")
    found = collect([Finding(Level.OK, "a", "b"), *missing("shell", "there is none", setting)])
    assert found.settings == (setting,)
    assert found.findings[1] == Finding(Level.WARNING, "shell", "there is none", 'write setup = ["module load x"]')
