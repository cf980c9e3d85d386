"""The shop as web pages."""
