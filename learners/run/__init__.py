"""One training run: folder, checkpoints, processes, metrics, evaluation and exports."""
