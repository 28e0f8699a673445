"""What Grid Engine's commands print as XML, and what must not be taken for it."""

from __future__ import annotations

import pytest

from gridtf.errors import SchedulerError
from gridtf.schedulers.sge import reply

XML = "<?xml version='1.0'?>\n<job_info><state>r</state></job_info>\n"


@pytest.mark.parametrize(
    "text",
    [XML, f"*** Maintenance on Friday! ***\n\n{XML}", f"{XML}\nHave a nice day\n", XML.partition("\n")[2]],
    ids=["as-it-is", "a-banner-before", "a-line-after", "no-declaration"],
)
def test_what_a_site_says_around_it_does_not_matter(text: str) -> None:
    assert reply.tree(text, "qstat").findtext("state") == "r"


@pytest.mark.parametrize(
    "text",
    [
        '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
        f'<?xml version="1.0"?><!--{"x" * 1000}>--><!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
        '<?xml version="1.0"?>\n<?p a>b?><!DOCTYPE a><a/>',
        "error: denied",
        "",
        "<job_info>",
    ],
    ids=["entity", "behind-a-comment", "behind-an-instruction", "words", "nothing", "half"],
)
def test_no_document_type_and_nothing_else(text: str) -> None:
    with pytest.raises(SchedulerError, match="qstat says something that is no XML"):
        reply.tree(text, "qstat")
