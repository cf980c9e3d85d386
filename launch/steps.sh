# Shared by the sbatch files; sourced from the folder that they were submitted in.

# The nodes of the job, one a line.
nodes() {
    if [[ -n ${DRY_RUN:-} && -z ${SLURM_JOB_NODELIST:-} ]]; then
        printf 'node%s\n' 1 2
    elif command -v scontrol >/dev/null; then
        scontrol show hostnames "${SLURM_JOB_NODELIST:?no job}"
    else
        tr ',' '\n' <<<"${SLURM_JOB_NODELIST:?no job}"
    fi
}

# announce [HOST]: where the ranks meet, by default on the first node. RANK, WORLD_SIZE and LOCAL_RANK come from srun.
announce() {
    MASTER_ADDR=${1:-$(nodes | head -n 1)}
    MASTER_PORT=${MASTER_PORT:-$((20000 + ${SLURM_JOB_ID:-0} % 20000))}
    export MASTER_ADDR MASTER_PORT OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-4}
    export SRUN_CPUS_PER_TASK=$OMP_NUM_THREADS # since 22.05 srun does not take over what sbatch was given
}

# run COMMAND…: runs it; with DRY_RUN prints it, and the variables that it gets.
run() {
    if [[ -n ${DRY_RUN:-} ]]; then
        printf 'MASTER_ADDR=%s MASTER_PORT=%s OMP_NUM_THREADS=%s' "$MASTER_ADDR" "$MASTER_PORT" "$OMP_NUM_THREADS"
        printf ' %q' "$@"
        printf '\n'
    elif [[ $BASHPID == "$$" ]]; then
        "$@"
    else
        exec "$@" # in the background, so that what stops the job stops the command
    fi
}
