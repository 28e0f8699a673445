"""The shipped template as Python is what Jinja2 makes of the template. After a change of the template,
``python scripts/template.py`` writes it anew."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gridtf.login import render
from tests.support.rendering import NASTY, plan
from tests.unit.login.test_golden import CASES, FULL

sys.path.append(str(Path(__file__).resolve().parents[3] / "scripts"))
import template

OF_SHIPPED = [values for values in CASES.values() if "template" not in values]


def test_shipped_template_is_up_to_date() -> None:
    assert template.TARGET.read_text(encoding="utf-8") == template.module()


@pytest.mark.parametrize("values", [*OF_SHIPPED, {**FULL, "env": NASTY, "setup": [*NASTY.values()]}])
def test_script_is_the_same_with_jinja2(values: dict[str, Any], tmp_path: Path) -> None:
    own = tmp_path / "job.sh.j2"
    own.write_text('{% extends "job.sh.j2" %}')
    by_jinja2 = render.script(plan(**values, template=str(own)))
    assert by_jinja2.replace(str(own), "job.sh.j2") == render.script(plan(**values)).replace(
        "_gridtf_source='' ", "_gridtf_source=job.sh.j2 "
    )
