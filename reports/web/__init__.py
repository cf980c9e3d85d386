"""The report as a web page, as a file or live."""
