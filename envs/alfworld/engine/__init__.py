"""The engine of ALFWorld: games, the simulator, the planner, and the comparison with TextWorld."""
