#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=6
#SBATCH --gpus-per-node=4
#SBATCH --mem=65536M
#SBATCH --time=1-02:00:00
#SBATCH --partition=gpu,long
#SBATCH --account=ml
#SBATCH --open-mode=append
#SBATCH --qos=high
#SBATCH --comment="two words"
#
# Job digits, rendered by gridtf 1.2.3 for slurm from job.sh.j2
# Run directory: /shared/runs/digits-1

# shellcheck disable=SC1003,SC2016,SC1090,SC1091  # values are literal; files that set-up lines source are not checked

_gridtf_stop() {
    trap - EXIT
    printf 'gridtf: %s: %s\n' "${HOSTNAME}" "$1" >&2
    exit 1
}

cd -- /home/me/digits || _gridtf_stop 'cannot change to the working folder on this host: see --chdir'

# Set-up: the first line that fails ends the job; failures inside functions and sourced files do not count
_gridtf_setup_failed() {
    [ "${#BASH_SOURCE[@]}" -gt 2 ] && return
    # without its text, which may contain a key: other users may read the log
    local place="set-up line $(($2 - _gridtf_above))${_gridtf_source:+ (${_gridtf_source})}"
    _gridtf_stop "${place} failed with exit code $1: line $2 of the job script"
}
_gridtf_setup_ended() {
    trap '' TERM
    kill -- "-$$" 2>/dev/null || : # programs that a line still runs when a signal ends the script
    _gridtf_stop "the job script ended during its set-up, by itself or by a signal (exit code $1)"
}
trap '_gridtf_setup_failed "$?" "${LINENO}"' ERR
trap '_gridtf_setup_ended "$?"' EXIT
_gridtf_source='' _gridtf_above=${LINENO}
module load cuda/12.4
trap - ERR EXIT

export GRIDTF_RUN_DIR=/shared/runs/digits-1
export GRIDTF_PYTHON=/opt/gridtf/bin/python
export GRIDTF_SPEC='{
  "command": [
    "python",
    "train.py"
  ],
  "name": "digits",
  "scheduler": "slurm",
  "nodes": 2,
  "gpus_per_node": 4,
  "cpus_per_task": 6,
  "mem": "64G",
  "time": "1-02:00:00",
  "setup": [
    "module load cuda/12.4"
  ],
  "chdir": "/home/me/digits"
}'
export GRIDTF_REQUEST='{
  "scheduler": "slurm",
  "name": "digits",
  "nodes": [2, 2],
  "tasks_per_node": 4,
  "gpus_per_node": 4,
  "gpus_per_task": 1,
  "training": null,
  "roles": [{"type": "worker", "count": null, "gpus": 1, "cpus": 6, "mem": null, "component": 0, "served": false, "in_cluster": true, "kind": ""}],
  "components": [{"partition": "gpu,long", "types": ["worker"], "count": 0, "cpus": null, "mem": null, "gpus": 0, "gpu_model": ""}],
  "task_cpus": 6,
  "non_training_cpus": 0,
  "host_non_training_cpus": 0,
  "host_mem": 65536,
  "spare_nodes": 0,
  "mpi": "",
  "walltime": 93600,
  "options": {"partition": "gpu,long", "account": "ml"},
  "native": {"qos": "high", "comment": "two words"},
  "left_open": ["gpus_per_task", "tasks_per_node"]
}'

[ -e /opt/gridtf/lib/gridtf-bootstrap.sh ] || sleep 10 # its files may be just replaced by those of another version
# shellcheck source=/dev/null
source /opt/gridtf/lib/gridtf-bootstrap.sh || _gridtf_stop 'gridtf is not installed on this host: install it in a shared folder'
gridtf_exec
