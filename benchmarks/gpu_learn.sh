#!/usr/bin/env bash
# What reinforcement gains on one GPU within half an hour: SmolLM2 on the official games, one warm start, GRPO, GiGPO
# and Role-Agent with two seeds side by side, and a table of differences, paired by seed and game.
#
#   usage: benchmarks/gpu_learn.sh [--cpu] FOLDER
#
#   ALFWORLD_DATA=games MODEL=models/smollm2 OUT=back benchmarks/gpu_learn.sh runs/learn
#   benchmarks/gpu_learn.sh --cpu runs/rehearsal      the same steps on a CPU with a tiny policy and two iterations
#
# It prints a line RESULT {json} after each step, and the table whenever an arm has a new evaluation. The table takes the
# iteration at which every method has the most seeds, and the largest of these. FOLDER has results.jsonl, table.md, the
# runs, their logs, driver.log, and an archive NN-STEP.tar.xz of each step: metrics, evaluations and the ends of logs. The
# archive of a step that is under way is written anew with every evaluation. Of an unpacked one
#
#   python benchmarks/parts/gpu_learn.py table FOLDER
#
# prints the table as far as it goes.
#
# The steps run apart from this command: it ends after WAIT seconds, and the same command continues to look. A step that is
# done is not repeated, and a killed one continues, so nothing is lost by `kill -9`. Without vLLM by minute ARRIVAL the local
# sampler plays GRPO and GiGPO; the next command looks for vLLM again as long as nothing was trained.
#
# Status: 0 all steps passed; 1 one failed, and is repeated by the next command with all after it; 75 still running.
#
# Variables:
#   ALFWORLD_DATA   the official games
#   MODEL           folder of SmolLM2-135M-Instruct; without it, its name on the hub
#   OUT             folder to which the archives are copied as they come
#   WAIT            seconds after which this command ends (540)
#   MINUTES         that the machine lives, from the first command (30); less than 18 left before the arms begin: one seed
#                   of each method, and 20 iterations
#   ARRIVAL         minutes from the first command within which vLLM must be there (5)
#   PYTHON          another Python than `python3`
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/parts/gpu_device.sh"
[[ $# == 1 && $1 != -* ]] || { echo "usage: benchmarks/gpu_learn.sh [--cpu] FOLDER (--help says more)" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
out=${OUT:-}
if [[ -n $out ]]; then mkdir -p "$out" && out=$(cd "$out" && pwd); fi
for name in MODEL ALFWORLD_DATA; do # seen from the folder in which this was called
    [[ -z ${!name:-} ]] && continue
    [[ -d ${!name} ]] || { echo "gpu_learn: $name=${!name} is no folder" >&2; exit 2; }
    export "$name=$(cd "${!name}" && pwd)"
done
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export VLLM_USE_FLASHINFER_SAMPLER=${VLLM_USE_FLASHINFER_SAMPLER:-0}
seen=0 shown=
show() {
    local total archive name
    total=$(wc -l 2>/dev/null <"$folder/results.jsonl") || total=0
    if ((total > seen)); then sed -n "$((seen + 1)),${total}s/^/RESULT /p" "$folder/results.jsonl"; fi
    seen=$total
    if [[ -f $folder/table.md && $(<"$folder/table.md") != "$shown" ]]; then
        shown=$(<"$folder/table.md")
        printf '\n%s\n\n' "$shown"
    fi
    for archive in "$folder"/*.tar.xz; do # this command may be cut off, too
        name=${archive##*/}
        if [[ -n $out && $archive -nt $out/$name ]]; then cp -p "$archive" "$out/.$name" && mv "$out/.$name" "$out/$name"; fi
    done
}
# A second one ends at once: the folder is locked.
setsid nohup "${PYTHON:-python3}" benchmarks/parts/gpu_learn.py "$device" "$folder" >>"$folder/driver.log" 2>&1 &
until=$((SECONDS + ${WAIT:-540})) ended=
while [[ -z $ended ]] && ((SECONDS < until)); do
    sleep 1
    if ! kill -0 "$!" 2>/dev/null && flock --nonblock "$folder/.lock" true; then ended=yes; fi
    show
done
if [[ -z $ended ]]; then
    echo "gpu_learn: still running: the same command continues" >&2
    exit 75 # EX_TEMPFAIL
fi
if ! tail -n 1 "$folder/results.jsonl" 2>/dev/null | grep -q '^{"step": "all", "passed": true'; then
    echo "gpu_learn: not all steps passed; $folder/driver.log ends with: $(tail -n 1 "$folder/driver.log")" >&2
    exit 1
fi
