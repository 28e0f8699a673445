"""Tests on clusters that also run on other versions of Slurm than the test beds have: scripts/test --versions.

Such a test has one more parameter, the version: test_jobs.py::test_it[26.05-slurm].
"""

from __future__ import annotations

import pytest

EVERYDAY = "24.11"  # that of most new installations, which the beds of scripts/test --all have
# Files, or tests, that each landing runs on every version: of each step of a job, one.
MATRIX = (
    "tests/cluster/test_jobs.py::test_submit_wait_status_list_and_logs",
    "tests/cluster/test_jobs.py::test_cancel_ends_tasks_that_ignore_sigterm",
    "tests/cluster/test_jobs.py::test_each_array_element_has_its_own_status_and_log",
    "tests/cluster/test_mpi.py::test_srun_starts_the_ranks_and_the_one_that_raises_is_named",
    "tests/cluster/test_scripts.py::test_several_gridtf_run_in_one_script",
    "tests/cluster/test_slurm_gpus.py::test_two_jobs_on_the_same_hosts_have_different_gpus",
    "tests/cluster/test_slurm_refused.py::test_request_beyond_the_site_is_refused",
)
# The same, but for scripts/test --versions and --release alone: they take minutes.
LONG = (
    "tests/cluster/test_conformance.py",
    "tests/cluster/test_doctor.py",
    "tests/cluster/test_exec.py::test_command_runs_on_the_host_of_its_task_within_the_job",
    "tests/cluster/test_exec.py::test_connection_goes_through_srun_where_a_firewall_lets_no_other_through",
    "tests/cluster/test_fence.py",
    "tests/cluster/test_host_faults.py",
    "tests/cluster/test_jobs.py",
    "tests/cluster/test_mpi.py::test_end_of_a_world_has_its_first_cause",
    "tests/cluster/test_mpi.py::test_lost_srun_of_the_ranks_is_named",
    "tests/cluster/test_mpi.py::test_world_starts_again_without_a_lost_host",
    "tests/cluster/test_probe.py::test_probe_of_a_cluster_in_order_has_no_fault_and_leaves_nothing",
    "tests/cluster/test_models.py::test_leader_and_workers_have_different_models",
    "tests/cluster/test_models.py::test_models_are_types_on_some_hosts_and_features_of_others",
    "tests/cluster/test_restarts.py",
    "tests/cluster/test_scripts.py",
    "tests/cluster/test_slurm_accounting.py",
    "tests/cluster/test_slurm_allocations.py",
    "tests/cluster/test_slurm_faults.py",
    "tests/cluster/test_slurm_outages.py",
    "tests/cluster/test_slurm_refused.py",
    "tests/cluster/test_slurm_scripts.py",
    "tests/cluster/test_slurm_sites.py",
    "tests/cluster/test_slurm_training.py",
    "tests/cluster/test_training.py",
    "tests/cluster/test_walltime.py",
)
LANDING = "not release"  # the choice of scripts/test --all, by marker
_PARAMETER = "slurm_version"


def repeat(metafunc: pytest.Metafunc, beds: tuple[str, ...]) -> None:
    """Have a test of the matrix run on the versions of --slurm-versions, too."""
    versions = [version for version in metafunc.config.getoption("slurm_versions").split(",") if version]
    path = str(metafunc.definition.path.relative_to(metafunc.config.rootpath))
    chosen = MATRIX + (() if LANDING in metafunc.config.option.markexpr else LONG)
    wanted = {path, f"{path}::{metafunc.definition.originalname}"} & set(chosen)
    if versions and wanted and {"bed", "name", *beds} & set(metafunc.fixturenames):
        metafunc.fixturenames.append(_PARAMETER)
        as_ever = pytest.param("", id=pytest.HIDDEN_PARAM)
        metafunc.parametrize(_PARAMETER, [as_ever, *versions])


def version_of(item: pytest.Item) -> str:
    """The other version that a test runs on, such as 26.05; empty for that of the beds."""
    return str(item.callspec.params.get(_PARAMETER, "")) if hasattr(item, "callspec") else ""
