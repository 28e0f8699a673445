#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --licenses=data:1
#
# Job train, rendered by gridtf 1.2.3 for slurm from tests/golden/site.sh.j2
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
_gridtf_source=tests/golden/site.sh.j2 _gridtf_above=${LINENO}
limits=(core:0 nofile:4096)
echo train "has ${#limits[@]} limits"
source ~/venv/bin/activate
trap - ERR EXIT

# Environment of all tasks
export DATA=/data

export GRIDTF_RUN_DIR=/shared/runs/digits-1
export GRIDTF_PYTHON=/opt/gridtf/bin/python
export GRIDTF_SPEC='{
  "command": [
    "python",
    "train.py"
  ],
  "scheduler": "slurm",
  "nodes": 2,
  "env": {
    "DATA": "/data"
  },
  "setup": [
    "source ~/venv/bin/activate"
  ],
  "chdir": "/home/me/digits"
}'
export GRIDTF_REQUEST='{
  "scheduler": "slurm",
  "name": "train",
  "nodes": [2, 2],
  "tasks_per_node": 1,
  "gpus_per_node": 0,
  "gpus_per_task": 0,
  "training": null,
  "roles": [{"type": "worker", "count": null, "gpus": null, "cpus": null, "mem": null, "component": 0, "served": false, "in_cluster": true, "kind": ""}],
  "components": [{"partition": null, "types": ["worker"], "count": 0, "cpus": null, "mem": null, "gpus": 0, "gpu_model": ""}],
  "task_cpus": null,
  "non_training_cpus": 0,
  "host_non_training_cpus": 0,
  "host_mem": null,
  "spare_nodes": 0,
  "mpi": "",
  "walltime": null,
  "options": {},
  "native": {},
  "left_open": ["gpus_per_node", "gpus_per_task", "tasks_per_node"]
}'

[ -e /opt/gridtf/lib/gridtf-bootstrap.sh ] || sleep 10 # its files may be just replaced by those of another version
# shellcheck source=/dev/null
source /opt/gridtf/lib/gridtf-bootstrap.sh || _gridtf_stop 'gridtf is not installed on this host: install it in a shared folder'
gridtf_exec
