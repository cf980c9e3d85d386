"""Search trees over the replies of a policy (Agent-R, arXiv 2501.11425, phase I)."""
