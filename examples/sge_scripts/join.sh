#!/bin/bash
#$ -N digits-join
#$ -S /bin/bash
#$ -cwd
#$ -j y
#$ -pe rr 8
#$ -l gpu=1
#$ -l h_rt=0:10:0
set -euo pipefail

# Here come modules and environments, such as: source ~/venv/bin/activate

export TF_CPP_MIN_LOG_LEVEL=2 TF_ENABLE_ONEDNN_OPTS=0 # quiet; without ONEDNN_OPTS, larger models are faster on CPUs

# shellcheck disable=SC2016  # the shells that qrsh starts expand it
task='set -e; source "$(gridtf bootstrap-path)"; gridtf_join; exec python train.py' # one line: some qrsh pass no others on

hosts=() # a word a slot
while read -r host slots _; do
    for ((slot = 0; slot < slots; slot++)); do hosts+=("$host"); done
done <"$PE_HOSTFILE"

# All at once: a qrsh takes a second. -V: it takes no environment along by itself. -noshell: or a shell would read the
# command once more. On this host without qrsh: a parallel environment may have one fewer for it (job_is_first_task).
export WORLD_SIZE=${#hosts[@]}
for rank in "${!hosts[@]}"; do
    start=("$SGE_BINARY_PATH/qrsh" -inherit -nostdin -noshell -V "${hosts[rank]}")
    [ "${hosts[rank]}" != "$HOSTNAME" ] || start=(env)
    RANK=$rank "${start[@]}" /bin/bash -c "$task" &
done

# When one has failed the script ends, and Grid Engine ends the others: they would wait until the time is over.
for _ in "${hosts[@]}"; do wait -n; done
