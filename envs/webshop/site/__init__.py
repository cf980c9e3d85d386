"""The shop as web pages for people."""
