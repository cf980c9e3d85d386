"""GenEnv (arXiv 2512.19682) in a run: written tasks, and the update of the model that writes them."""
