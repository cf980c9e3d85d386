"""The engine of TextCraft: what commands do, plans, and tasks."""
