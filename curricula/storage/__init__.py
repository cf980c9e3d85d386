"""Storage of failures: the database, its tables, and full-text search."""
