# gridtf-bootstrap.sh: to be sourced (bash) inside a job script, also under `set -euo pipefail`.
# shellcheck shell=bash
#
#   source "$(gridtf bootstrap-path)"
#   gridtf_run [options of gridtf submit] -- python train.py    run all tasks on all hosts; return the exit code
#   gridtf_join [options]                                       make this process of srun or mpirun one task
#
# gridtf_exec is the last line of rendered scripts. GRIDTF_PYTHON names the Python that gridtf is installed in; if it is
# not set, the Python of the `gridtf` command on the PATH is used.

# A queue may start scripts with the C shell, which understands the next line and exits there.
test "$?shell" = 1 && \
    sh -c 'echo "gridtf: gridtf-bootstrap.sh needs bash; Grid Engine scripts need: #$ -S /bin/bash" >&2' && exit 1
if [ -z "${BASH_VERSION:-}" ]; then
    echo "gridtf: gridtf-bootstrap.sh needs bash; Grid Engine scripts need: #\$ -S /bin/bash" >&2
    # shellcheck disable=SC2317
    return 1 2>/dev/null || exit 1
fi

# Python is started isolated, and without site: others may write in the working folder, which is also meant by an empty or
# relative entry of PYTHONPATH. The others come after the standard library, so that a logging.py there does no harm.
_gridtf_path='import os, site, sys
sys.path += [folder for folder in os.environ.get("PYTHONPATH", "").split(":") if folder.startswith("/")]
base = os.environ.get("PYTHONUSERBASE") or "/"
site.ENABLE_USER_SITE = base.startswith("/") and not os.environ.get("PYTHONNOUSERSITE")
site.main()'
# Runs gridtf.bootstrap with as little start-up as possible; once more after a pause, where its files are just being replaced.
_gridtf_code="import gc
gc.disable() # until all modules are loaded
$_gridtf_path
try:
    from gridtf.bootstrap.main import main
except ImportError:
    import time
    if 'GRIDTF_STARTED_AGAIN' in os.environ:
        raise
    os.environ['GRIDTF_STARTED_AGAIN'] = '1'
    time.sleep(10)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
sys.exit(main(sys.argv[1:]))"

# Set GRIDTF_PYTHON to a Python that has gridtf: that of the gridtf command, or python3.
_gridtf_find() {
    [ -n "${GRIDTF_PYTHON:-}" ] && return 0
    local script first='' python pythons=()
    if script=$(type -P gridtf); then
        IFS= read -r first <"$script" || true
        first=${first#'#!'}
        # where the first line cannot hold the path (spaces, a long path), the Python is in the folder of the command
        script=$(readlink -f "$script")
        pythons+=("${first%% *}" "${script%/*}/python")
    fi
    pythons+=("$(type -P python3 || true)")
    for python in "${pythons[@]}"; do
        if [[ $python == /*python* ]] && "$python" -I -S -c "$_gridtf_path
import gridtf.errors" 2>/dev/null; then
            export GRIDTF_PYTHON=$python
            return 0
        fi
    done
    echo "gridtf: no Python with gridtf on host $HOSTNAME" >&2
    echo "gridtf: put the gridtf command on the PATH, or set GRIDTF_PYTHON to the Python it is installed in" >&2
    return 1
}

# gridtf_exec: become the launcher of a rendered script, so that the scheduler's signals reach it.
gridtf_exec() {
    _gridtf_find || return 1
    exec "$GRIDTF_PYTHON" -I -S -c "$_gridtf_code" exec
}

# gridtf_may_start: false where the jobs that a rendered script starts after have ended so that it can never start.
gridtf_may_start() {
    local code=0
    "$GRIDTF_PYTHON" -I -S -c "$_gridtf_code" after || code=$?
    [ "$code" != 75 ]
}

# gridtf_run [options] -- command ...: launch on all hosts, wait for the end, return the exit code. Traps forward
# signals: bash itself would delay them until the launcher has ended.
gridtf_run() {
    _gridtf_find || return 1
    local launcher='' stopped='' code again=0 traps signals=(TERM INT HUP)
    [ -z "${SGE_TASK_ID:-}" ] || signals+=(USR1 USR2) # Grid Engine warns by these signals: they must not end the script
    traps=$(trap -p "${signals[@]}")
    trap 'stopped=1; [ -z "$launcher" ] || kill -TERM "$launcher" 2>/dev/null || true' TERM INT HUP
    [ -z "${SGE_TASK_ID:-}" ] || trap : USR1 USR2
    "$GRIDTF_PYTHON" -I -S -c "$_gridtf_code" run "$@" </dev/null &
    launcher=$!
    [ -z "$stopped" ] || kill -TERM "$launcher"
    while :; do
        code=0
        wait "$launcher" || code=$?
        kill -0 "$launcher" 2>/dev/null || break # otherwise a signal interrupted the wait, and the launcher still runs
    done
    if [ "$code" -gt 128 ]; then # 128 + the signal; if the launcher has ended since, bash remembers its code
        wait "$launcher" 2>/dev/null || again=$?
        [ "$again" = 127 ] || code=$again
    fi
    trap - "${signals[@]}"
    eval "$traps"
    return "$code"
}

# gridtf_join [options]: this process becomes one task. Rank and size come from srun, mpirun or RANK and WORLD_SIZE.
gridtf_join() {
    _gridtf_find || return 1
    local contract process=$BASHPID # $$ would be the script, also in a subshell that becomes one of several tasks
    contract=$("$GRIDTF_PYTHON" -I -S -c "$_gridtf_code" join --parent "$process" "$@") || return
    eval "$contract"
}
