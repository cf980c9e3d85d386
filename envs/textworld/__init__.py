"""TextWorld: game files, of TALES or made by ``tw-make``."""
