"""The shop: goals, pages, sessions and rewards."""
