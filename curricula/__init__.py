"""What to play next: the failure library, its analysts and the task samplers."""
