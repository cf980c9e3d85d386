"""Agent-R and ETO: search, find the mistake, revise, imitate."""
