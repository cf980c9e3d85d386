"""The Berkeley Function Calling Leaderboard (BFCL v4): categories of a single turn."""
