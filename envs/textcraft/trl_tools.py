"""The tools of TextCraft for TRL."""

from __future__ import annotations

from roleagent.envs.adapters.trl import Episodes


class CraftingEpisodes(Episodes):
    """Fetching, crafting, and a look at what is carried."""

    prompt = "Craft the goal. Fetch materials that no crafting command makes, and craft the rest in the right order."

    def get(self, number: int, item: str) -> str:
        """Fetch a material that no crafting command makes.

        Args:
            number: How many.
            item: The name, for instance "ash log".

        Returns:
            Whether you have it now.
        """
        return self._do(f"get {number} {item}")

    def craft(self, command: str) -> str:
        """Craft something with what you carry.

        Args:
            command: What to craft from what, for instance "4 ash board using 1 ash log".

        Returns:
            What was crafted, or why not.
        """
        return self._do(f"craft {command.removeprefix('craft ')}")

    def inventory(self) -> str:
        """Look at what you carry.

        Returns:
            Names and numbers.
        """
        return self._do("inventory")


__all__ = ["CraftingEpisodes"]
