"""Tools as a model sees them: functions, JSON Schemas, tool files and commands as tools."""
