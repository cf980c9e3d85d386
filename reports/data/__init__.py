"""The data of a report, from run folders."""
