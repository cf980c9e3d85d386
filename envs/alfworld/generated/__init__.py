"""Generated ALFWorld games: rooms, layouts and tasks."""
