"""TextCraft: crafting by recipes. Fetch materials, craft in the right order."""
