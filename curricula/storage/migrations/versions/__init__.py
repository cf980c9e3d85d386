"""One script per version."""
