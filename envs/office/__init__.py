"""The office: a generated world of tools, with people, rooms, a calendar and prices."""
