"""Products: official files, the catalogue that is read from them, and a generator."""
