"""ALFWorld: household tasks in text, with a native engine."""
