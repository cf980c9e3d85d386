"""Agent-R (arXiv 2501.11425): pairs of a search tree, spliced trajectories, and their imitation."""
