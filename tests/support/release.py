"""What scripts/test --release runs and --all, for which each landing pays, does not.

That is the same behaviour on a second bed, where it does not depend on the scheduler, and more rows of a table of
faults, options or examples; each is tried at each landing on one bed, or by other rows.
"""

from __future__ import annotations

import re
from fnmatch import translate

import pytest

from tests.support.beds import beds_of
from tests.support.versions import version_of

# A file, or one of its tests, which then goes before its file -> the beds that --all runs it on. Once a job has its
# hosts, most of gridtf does not know which scheduler has given them.
BEDS_OF_LANDINGS: dict[str, tuple[str, ...]] = {
    "tests/cluster/test_advise.py": ("constrained_slurm",),
    "tests/cluster/test_bad_hosts.py": ("slurm",),
    "tests/cluster/test_chains.py::test_job_waits_for_one_that_is_started_again_by_its_scheduler": ("slurm",),
    "tests/cluster/test_chains.py::test_job_waits_for_the_one_that_goes_on_with_the_results": ("sge",),
    "tests/cluster/test_checkpoints.py": ("sge",),
    "tests/cluster/test_compare.py": ("slurm",),
    "tests/cluster/test_containers.py": ("slurm",),
    "tests/cluster/test_exec.py::test_shell_on_another_host_ends_with_the_job": ("slurm",),
    "tests/cluster/test_fence.py::test_a_stranger_from_another_host_gets_in_without_a_fence": ("slurm",),
    "tests/cluster/test_host_faults.py": ("remote_slurm",),
    "tests/cluster/test_hostcheck.py": ("sge",),
    "tests/cluster/test_jobs.py::test_cancel_ends_tasks_that_ignore_sigterm": ("sge",),  # and other versions of Slurm
    "tests/cluster/test_jobs.py::test_killed_task_on_another_host_fails_the_job": ("sge",),  # Slurm: host_faults
    "tests/cluster/test_links.py": ("remote_sge",),
    "tests/cluster/test_mpi.py::test_world_saves_before_the_walltime_and_goes_on": ("slurm",),
    "tests/cluster/test_mpi.py::test_world_starts_again_without_a_lost_host": ("slurm",),
    "tests/cluster/test_pilot.py::test_one_host_is_one_error": ("slurm",),
    "tests/cluster/test_polite.py": ("slurm",),
    "tests/cluster/test_polite.py::test_own_commands_are_seen_at_once": ("slurm", "sge"),
    "tests/cluster/test_prepared_hosts.py": ("slurm",),
    "tests/cluster/test_probe.py": ("sge", "two_network_slurm"),
    "tests/cluster/test_program_faults.py": ("remote_sge",),
    "tests/cluster/test_records.py": ("sge",),
    "tests/cluster/test_remote_folder.py": ("remote_slurm", "slurm"),
    "tests/cluster/test_rerun.py": ("sge",),
    "tests/cluster/test_restarts.py": ("slurm",),
    "tests/cluster/test_restarts.py::test_killed_agent_costs_an_attempt_and_no_host": ("sge",),
    "tests/cluster/test_scripts.py::test_example_script_trains": ("slurm",),  # one program; gridtf_run is as in any job
    "tests/cluster/test_second_network.py": ("two_network_slurm",),
    "tests/cluster/test_shared_folder.py": ("remote_sge",),
    "tests/cluster/test_sight.py": ("sge",),
    "tests/cluster/test_slow.py": ("slurm",),
    "tests/cluster/test_snapshot.py": ("slurm",),
    "tests/cluster/test_stalls.py::test_stacks_of_all_hosts_are_shown_on_the_login_host": ("slurm",),
    "tests/cluster/test_stalls.py::test_stalled_job_names_the_task_that_was_stopped": ("slurm",),
    "tests/cluster/test_sweeps.py::test_elements_share_an_allocation": ("sge",),
    "tests/cluster/test_sweeps.py::test_elements_that_share_a_host_have_gpus_of_their_own": ("sge",),
    "tests/cluster/test_sweeps.py::test_host_of_an_element_is_lost": ("slurm",),
    "tests/cluster/test_sweeps.py::test_packed_elements_are_cancelled": ("slurm",),
    "tests/cluster/test_training.py": ("sge", "slurm"),  # a lagging folder has tests of its own
    "tests/cluster/test_upgrade.py": ("slurm",),
    "tests/cluster/test_walk.py": ("slurm",),
    "tests/cluster/test_walltime.py::test_elements_of_an_array_go_on_one_by_one": ("sge",),
    "tests/cluster/test_walltime.py::test_job_that_must_not_be_started_again_is_resumed": ("slurm",),
}
# Tests that --all leaves out: whole ones, or rows, of which others stay.
ROWS_OF_RELEASES = (
    "tests/checkout/test_differential.py::test_attempts_end_as_in_the_last_release_but_for_what_is_listed[[]many]",
    "tests/checkout/test_differential.py::test_each_other_order_of_ends_is_seen",
    # each example runs on this machine at each landing; sge-ps_flags and slurm-keras_distribution over hosts as well
    *(f"tests/cluster/test_training_examples.py::test_on_two_hosts[[]{row}]" for row in ("*[!sn]", "sl*s", "sg*n")),
    "tests/cluster/test_training.py::test_parameter_servers_over_four_hosts",  # test_slurm_training.py, ps_flags
    # the same end by another sender or of another process
    "tests/cluster/test_mpi.py::test_end_of_a_world_has_its_first_cause[[]abort-*",
    "tests/cluster/test_mpi.py::test_end_of_a_world_has_its_first_cause[[]kill-sge-*",
    "tests/cluster/test_mpi.py::test_end_of_a_world_has_its_first_cause[[]cancel-sge-*",
    "tests/cluster/test_pilot.py::test_gpus_that_tensorflow_does_not_see_are_a_failure",
    "tests/cluster/test_sge_faults.py::test_closed_or_removed_run_directory_costs_the_job_nothing_but_records",
    "tests/cluster/test_sge_faults.py::test_default_timeouts_with_a_late_host_and_a_stopped_launcher",
    "tests/cluster/test_sge_faults.py::test_job_killed_on_another_host_before_the_rendezvous[[]all of the job there]",
    "tests/cluster/test_sge_faults.py::test_killed_ancestor_of_the_tasks_fails_the_job[[]s*",
    "tests/cluster/test_sge_faults.py::test_killed_shepherd_of_the_script_fails_the_job[[]by hand]",
    "tests/cluster/test_sge_faults.py::test_walltime_of_a_script_without_notify",
    "tests/cluster/test_slurm_faults.py::test_killed_agent_supervisor_or_slurmstepd_is_reported[[]*n1-s*",
    "tests/cluster/test_slurm_faults.py::test_killed_agent_supervisor_or_slurmstepd_is_reported[[]*n3-agent]",
    # the same path through gridtf with another value
    "tests/cluster/test_sge_gpus.py::test_cpus_are_requested_together_with_gpus[[]smp-*",
    "tests/cluster/test_sge_gpus.py::test_gpu_variables_set_by_the_script[[]blanks]",
    "tests/cluster/test_sge_gpus.py::test_starter_method_grants_gpus_on_each_host[[]SGE_HGR_gpu]",
    "tests/cluster/test_sge_scripts.py::test_each_slot_runs_a_task_on_its_host[[]*-shape[3578]]",
    *(
        f"tests/cluster/test_sge_submit.py::test_drmaa_and_qsub_submit_equal_jobs[[]{row}]"
        for row in ("array", "cwd", "element", "memory", "options", "parallel", "spaces")
    ),
    "tests/cluster/test_sge_submit.py::test_drmaa_and_qsub_report_equal_refusals[[]*[te]]",  # project, resource, pe
    "tests/cluster/test_sge_submit.py::test_qsub_submits_when_the_library_is_invalid[[][an]*",
    "tests/cluster/test_well.py::*",  # other tests have the same jobs, and --all has a slow host and one that is well
    "tests/cluster/test_upgrade.py::test_jobs_outlive_an_upgrade[[]in-place-*",  # each landing has it on this machine
)
_ROWS = re.compile("|".join(map(translate, ROWS_OF_RELEASES)))


def left_to_releases(item: pytest.Item) -> bool:
    """Whether a test is not among those that a landing pays for."""
    if _ROWS.match(item.nodeid):
        return True
    whole = item.nodeid.partition("[")[0]
    chosen = BEDS_OF_LANDINGS.get(whole) or BEDS_OF_LANDINGS.get(whole.partition("::")[0])
    beds = beds_of(item)
    return bool(chosen and beds and beds[0] not in chosen and not version_of(item))
