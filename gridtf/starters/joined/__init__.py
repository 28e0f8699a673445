"""Processes that srun or mpirun has started become the tasks: gridtf_join; docs/jobs.md."""
