"""Experiments: arms over seeds from shared warm starts, resumable, with a report from the run folders."""
