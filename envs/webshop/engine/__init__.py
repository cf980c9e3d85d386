"""The shop: goals, pages, sessions, rewards, and parity with the original."""
