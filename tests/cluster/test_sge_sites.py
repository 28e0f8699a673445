"""Settings of sites on a real Grid Engine: a JSV, hosts in exclusive use, core binding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gridtf.run.rundir import read_record
from tests.support.cluster import SHARED, Bed
from tests.support.clusterfaults import UNTIL_RELEASED, admin, ended, release
from tests.support.clusterjobs import ClusterJob, refused

JSV = """#!/bin/bash
jsv_on_start() { :; }
jsv_on_verify() {
    case $(jsv_get_param N) in
        refused) jsv_reject "Write -P PROJECT, see https://site.org/projects"; return;;
        changed) jsv_sub_add_param l_hard h_rt 120; jsv_set_param pe_name rr; jsv_set_param pe_min 4
                 jsv_set_param pe_max 4; jsv_correct "by the site"; return;;
    esac
    jsv_accept
}
. $SGE_ROOT/util/resources/jsv/jsv_include.sh
jsv_main
"""
REQUEST = "/mnt/sge/default/common/sge_request"


def edited(bed: Bed, option: str, command: str) -> None:
    """Change what a qconf command edits, by a command of sed. qconf sees changes by the time of the file."""
    editor = f'sed -i "{command}" "$1"; touch -d "now + 9 seconds" "$1"'
    admin(bed, "bash", "-c", f"printf '#!/bin/sh\n%s\n' '{editor}' >/tmp/editor; chmod +x /tmp/editor")
    bed.run("ctl", "qconf", option, user="root", env={"EDITOR": "/tmp/editor"})


@contextmanager
def with_jsv(bed: Bed) -> Iterator[None]:
    path = bed.shared / "jsv.sh"
    path.write_text(JSV)
    path.chmod(0o755)
    edited(bed, "-mconf", f"s#^jsv_url .*#jsv_url script:{SHARED}/jsv.sh#")
    try:
        yield
    finally:
        edited(bed, "-mconf", "s#^jsv_url .*#jsv_url none#")


@contextmanager
def with_exclusive_hosts(bed: Bed) -> Iterator[None]:
    edited(bed, "-mc", "\\$a exclusive excl BOOL EXCL YES YES 0 1000")
    each = "for host in n1 n2 n3 n4; do qconf -{} exechost complex_values exclusive{} $host; done"
    try:
        admin(bed, "bash", "-c", each.format("aattr", "=true"))
        yield
    finally:
        admin(bed, "bash", "-c", "qdel -u '*'; while qstat -u '*' | grep -q .; do sleep 0.2; done")
        admin(bed, "bash", "-c", each.format("dattr", ""))
        edited(bed, "-mc", "/^exclusive /d")


def test_job_is_as_the_jsv_of_the_cell_has_made_it(sge: Bed) -> None:
    words = ("--scheduler", "sge", "--pe", "fill", "--workers", "2", "--time", "1h", "--env", "PYTHONPATH")
    with with_jsv(sge):
        for way in ("qsub", "drmaa"):
            message = refused(sge, *words, "--name", "refused", env={"GRIDTF_SGE_SUBMIT": way})
            assert (
                message == "gridtf: Grid Engine has refused the job: Write -P PROJECT, see https://site.org/projects\n"
            )
        job = ClusterJob(sge, *words, "--name", "changed", "--", "bash", "-c", UNTIL_RELEASED)
    job.running(2)

    def walltime() -> float:
        launcher = read_record(job.attempt.launcher) or {}
        return float(launcher["ends"] - launcher["began"])

    job.until(lambda: 60 < walltime() <= 121, "the walltime that the JSV has given it")
    assert len({task["host"] for task in job.tasks().values()}) == 2  # rr: a slot on each of four hosts
    release(job)
    ended(job, "COMPLETED")


def test_job_may_wait_for_hosts_in_exclusive_use(sge: Bed) -> None:
    with with_exclusive_hosts(sge):
        script = 'for n in 1 2 3 4; do echo "sleep 900" | qsub -N hold -l exclusive -q all.q@n$n; done >/dev/null'
        sge.run("login", "bash", "-c", f"{script}; until [ $(qstat -s r | grep -c hold) = 4 ]; do sleep 0.2; done")
        try:
            job = ClusterJob(sge, *sge.options, "--workers", "4", "--native=-l excl", "--", "true")
        finally:
            sge.run("login", "qdel", "hold")
        assert "the job may have to wait: other jobs have hosts for themselves" in job.submitted.stderr
        ended(job, "COMPLETED")


def test_tasks_have_a_thread_for_each_core_that_the_site_binds_them_to(sge: Bed) -> None:
    admin(sge, "bash", "-c", f"echo -binding linear:1 >{REQUEST}")
    try:
        words = ("--pe", "fill", "--slots", "4", "--workers", "2")
        job = ClusterJob(sge, *sge.options, *words, "--", "bash", "-c", "echo threads=$OMP_NUM_THREADS")
        ended(job, "COMPLETED")
    finally:
        admin(sge, "rm", REQUEST)
    assert all(log == "threads=1\n" for log in job.logs().values()), job.logs()
    assert "4 slots of the job on host n1 have 1 core" in job.output


def test_soft_requests_of_native_options_are_soft(sge: Bed) -> None:
    native = ["-h", "-soft", "-q short.q", "-hard", "-l arch=lx-amd64", "-ac a=1,b=2"]
    job = ClusterJob(sge, *sge.options, *(f"--native={option}" for option in native), "--", "true")
    lines = sge.run("login", "qstat", "-j", job.id).stdout
    found = {name: text.strip() for name, _, text in (line.partition(":") for line in lines.splitlines())}
    names = ("soft_queue_list", "hard_queue_list", "hard resource_list", "context")
    assert [found.get(name) for name in names] == ["short.q", None, "arch=lx-amd64", "a=1,b=2"]


@contextmanager
def with_counted_memory(bed: Bed) -> Iterator[None]:
    """h_vmem is a consumable, of which each host has 8G, and n4 16G."""
    edited(bed, "-mc", "s/^h_vmem .*/h_vmem h_vmem MEMORY <= YES YES 0 0/")
    each = "for host in n1=8G n2=8G n3=8G n4=16G; do qconf -{}attr exechost complex_values h_vmem{} ${{host%=*}}; done"
    try:
        admin(bed, "bash", "-c", each.format("a", "=${host#*=}"))
        yield
    finally:
        admin(bed, "bash", "-c", each.format("d", ""))
        edited(bed, "-mc", "s/^h_vmem .*/h_vmem h_vmem MEMORY <= YES NO 0 0/")


def test_memory_that_no_host_has_is_refused(sge: Bed) -> None:
    """Counted, or as load sensors report it, with and without a parallel environment, also while it is in use."""
    parallel = ("--pe", "rr", "--workers", "2")
    with with_counted_memory(sge):
        for words in ((), parallel):
            message = refused(sge, *words, "--native=-l h_vmem=17G")
            assert "17G of resource h_vmem" in message
            assert "requested, no host has more than 16G\n" in message
            assert "of resource mem_free" in refused(sge, *words, "--mem-per-task", "9000G")
        few = refused(sge, *parallel, "--pe", "one", "--native=-l h_vmem=9G")
        assert "2 slots requested, PE `one` offers 1" in few
        hold = "echo sleep 900 | qsub -N hold -l h_vmem=16G; until qstat -s r | grep -q hold; do sleep 0.2; done"
        sge.run("login", "bash", "-c", hold)
        small = (*sge.options, "--workers", "1", "--mem-per-task", "1M", "--native=-l h_vmem=9G")
        waits = ClusterJob(sge, *small, "--", "true")
        assert "no host currently has what the job requests" in waits.submitted.stderr
        assert "no host has more than 16G" in refused(sge, *parallel, "--native=-l h_vmem=17G")
        waits.gridtf("cancel")
        sge.run("login", "qdel", "hold")
