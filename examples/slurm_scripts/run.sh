#!/bin/bash
#SBATCH --job-name=digits-run
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --time=10:00
#SBATCH --open-mode=append
set -euo pipefail

# Here come modules and environments, such as: source ~/venv/bin/activate

export TF_CPP_MIN_LOG_LEVEL=2 TF_ENABLE_ONEDNN_OPTS=0 # quiet; without ONEDNN_OPTS, larger models are faster on CPUs

# shellcheck source=/dev/null
source "$(gridtf bootstrap-path)"
gridtf_run -- python train.py
