"""Retrieval over HTTP: batching, the service, its server process and its client."""
