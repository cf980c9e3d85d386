"""Calls of tools: commands, the broker that runs calls together, its workers, and results as text."""
