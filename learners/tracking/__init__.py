"""The display of a run during training, and its trackers."""
