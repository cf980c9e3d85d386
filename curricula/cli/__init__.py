"""``roleagent failures``: its verbs and tables."""
