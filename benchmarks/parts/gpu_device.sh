# Sourced by gpu_smoke.sh and gpu_learn.sh: takes --cpu from their arguments, and sets `device`. For --help it prints the
# comment at their beginning.
for argument; do
    if [[ $argument == -h || $argument == --help ]]; then
        sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[1]}"
        exit 0
    fi
done
device=cuda
if [[ ${1:-} == --cpu ]]; then
    device=cpu
    shift
    export CUDA_VISIBLE_DEVICES= DS_ACCELERATOR=cpu
elif ! nvidia-smi -L; then
    echo "$(basename "$0" .sh): no GPU that nvidia-smi knows; --cpu runs the same parts, smaller, without one" >&2
    exit 2
fi
