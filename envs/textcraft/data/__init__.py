"""The recipes of TextCraft: files, the graph that they make, and a generator."""
