"""Storage of failures: the database, its tables and migrations, and full-text search."""
