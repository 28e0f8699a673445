#!/bin/bash
#SBATCH --job-name=digits-join
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --time=10:00

# Here come modules and environments, such as: source ~/venv/bin/activate

export TF_CPP_MIN_LOG_LEVEL=2 TF_ENABLE_ONEDNN_OPTS=0 # quiet; without ONEDNN_OPTS, larger models are faster on CPUs

# --cpus-per-task: some versions of srun do not take it over from sbatch. --kill-on-bad-exit: else, when one task has
# failed, the others wait for it until the walltime is over. --wait=0: a site may end those that need longer than others.
# shellcheck disable=SC2016  # the shells that srun starts expand it
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 --wait=0 --label bash -c '
    set -e
    source "$(gridtf bootstrap-path)"
    gridtf_join
    exec python train.py
'
