"""Tasks: the splits that a run draws them from, and the grammars and simulators that write new ones."""
