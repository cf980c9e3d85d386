"""TextWorldExpress: eight kinds of text games, as TALES sets them."""
