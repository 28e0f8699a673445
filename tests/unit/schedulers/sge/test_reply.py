"""What Grid Engine's commands print as XML, and what must not be taken for it."""

from __future__ import annotations

import pytest

from gridtf.errors import SchedulerError, SpecError
from gridtf.jobspec.spec import JobSpec
from gridtf.schedulers.client import Answer
from gridtf.schedulers.sge import advice, query
from gridtf.schedulers.sge.advice import Cell

XML = "<?xml version='1.0'?>\n<job_info><state>r</state></job_info>\n"


@pytest.mark.parametrize(
    "text",
    [XML, f"*** Maintenance on Friday! ***\n\n{XML}", f"{XML}\nHave a nice day\n", XML.partition("\n")[2]],
    ids=["as-it-is", "a-banner-before", "a-line-after", "no-declaration"],
)
def test_what_a_site_says_around_it_does_not_matter(text: str) -> None:
    assert query.xml_tree(text, "qstat").findtext("state") == "r"


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
        query.xml_tree(text, "qstat")


# --- numbers that are none

QSTAT = (
    "<job_info><job_list><JB_job_number>{0}</JB_job_number><state>r</state><tasks>{0}-{0}:{0}</tasks></job_list>"
    "</job_info>"
)
QSTAT_J = (
    "<detailed_job_info><djob_info><element><JB_job_number>{0}</JB_job_number>"
    "<JB_execution_time>{0}</JB_execution_time><JB_hard_resource_list><qstat_l_requests><CE_name>gpu</CE_name>"
    "<CE_doubleval>{0}</CE_doubleval></qstat_l_requests></JB_hard_resource_list></element></djob_info></detailed_job_info>"
)
QACCT = (
    "====\njobnumber {0}\nfailed {0} : x\nexit_status {0}\nru_wallclock {0}s\nmaxvmem {0}G\n"
    "category -l h_rt={0},h_vmem={0}\n"
)
QSUB = 'cannot run in PE "rr" because it only offers {0} slots\ncannot run because it offers only hc:gpu={0}'


@pytest.mark.parametrize("number", ["²", "٣", "", ".", "-1", "inf", "nan", "1e999", "9" * 18, "9" * 30, "9" * 5000])
def test_whatever_stands_where_a_number_should(number: str) -> None:
    """It may mean nothing, but it raises nothing, and what was read can be reckoned with."""
    details = query.details(QSTAT_J.format(number))
    for row in query.rows(QSTAT.format(number)):
        query.status(f"{row.number}.3", query.by_number([row]), details, 0.0)
    for detail in details.values():
        query.why_pending(query.Row("1", "qw"), detail, 0.0)
    for resource in query.parse_requests(QSTAT_J.format(number)).values():
        int(resource.amount)
    query.accounted_status(query.blocks(QACCT.format(number)), {"job_id": number})
    advice.parse_pe(f"pe_name rr\nslots {number}\nallocation_rule {number}\n")
    advice.parse_queues(f"qname a\nh_rt {number},[n1={number}:{number}]\n")
    spec = JobSpec(command=("x",))
    wanted = advice.asked_for([f"-pe rr {number}-{number}", f"-l gpu={number},h_rt={number}"], spec)
    with pytest.raises((SpecError, SchedulerError)):
        advice.refuse(Answer(1, "", QSUB.format(number)), wanted, "gpu", Cell())
