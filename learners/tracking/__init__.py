"""What a run shows while it trains, and what it sends to trackers."""
