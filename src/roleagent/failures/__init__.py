"""How episodes fail: the failure modes of an environment, verdicts on single steps, and an analyst's answers."""
