#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#
# Job train, rendered by gridtf 1.2.3 for slurm from job.sh.j2
# Run directory: /shared/runs/digits-1

# shellcheck disable=SC1003,SC2016  # values are literal

_gridtf_stop() {
    trap - EXIT
    printf 'gridtf: %s: %s\n' "${HOSTNAME}" "$1" >&2
    exit 1
}

cd -- /s/.snapshots/d/sub || _gridtf_stop 'cannot change to the working folder on this host: see --chdir'

# Modules of the folder are those of its snapshot
export GRIDTF_SNAPSHOT_FROM=/home/me GRIDTF_SNAPSHOT_TO=/s/.snapshots/d
_gridtf_path=
while [ -n "${PYTHONPATH-}" ] && IFS= read -r -d : _gridtf_one; do
    case "${_gridtf_one}" in
    "${GRIDTF_SNAPSHOT_TO}" | "${GRIDTF_SNAPSHOT_TO}"/*) ;;
    "${GRIDTF_SNAPSHOT_FROM}" | "${GRIDTF_SNAPSHOT_FROM}"/*)
        _gridtf_one=${GRIDTF_SNAPSHOT_TO}${_gridtf_one#"${GRIDTF_SNAPSHOT_FROM}"}
        ;;
    esac
    _gridtf_path+=${_gridtf_path:+:}${_gridtf_one}
done < <(printf '%s:' "${PYTHONPATH-}")
[ -z "${_gridtf_path}" ] || export PYTHONPATH=${_gridtf_path}

export GRIDTF_RUN_DIR=/shared/runs/digits-1
export GRIDTF_PYTHON=/opt/gridtf/bin/python
export GRIDTF_SPEC='{
  "command": [
    "python",
    "train.py"
  ],
  "scheduler": "slurm",
  "chdir": "/s/.snapshots/d/sub"
}'
export GRIDTF_REQUEST='{
  "scheduler": "slurm",
  "name": "train",
  "nodes": [1, 1],
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
  "left_open": ["gpus_per_node", "gpus_per_task", "nodes", "tasks_per_node"]
}'

[ -e /opt/gridtf/lib/gridtf-bootstrap.sh ] || sleep 10 # its files may be just replaced by those of another version
# shellcheck source=/dev/null
source /opt/gridtf/lib/gridtf-bootstrap.sh || _gridtf_stop 'gridtf is not installed on this host: install it in a shared folder'
gridtf_exec
