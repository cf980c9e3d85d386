"""Official ALFWorld games, and new goals in their rooms."""
