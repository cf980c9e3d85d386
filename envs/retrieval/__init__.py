"""Retrieval: text search that environments serve from, exact and without a server."""
