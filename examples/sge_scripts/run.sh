#!/bin/bash
#$ -N digits-run
#$ -S /bin/bash
#$ -cwd
#$ -j y
#$ -notify
#$ -pe rr 8
#$ -l gpu=1
#$ -l h_rt=0:10:0
set -euo pipefail

# Here come modules and environments, such as: source ~/venv/bin/activate

export TF_CPP_MIN_LOG_LEVEL=2 TF_ENABLE_ONEDNN_OPTS=0 # quiet; without ONEDNN_OPTS, larger models are faster on CPUs

# shellcheck source=/dev/null
source "$(gridtf bootstrap-path)"
gridtf_run -- python train.py
