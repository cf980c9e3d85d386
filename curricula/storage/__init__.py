"""Where failures are kept: the database, its tables and their history, and the search for words."""
