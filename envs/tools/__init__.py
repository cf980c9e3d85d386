"""Tools: functions, classes and servers that an agent calls."""
