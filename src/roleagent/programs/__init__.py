"""The programs ``train.py`` and ``evaluate.py``: links to the files at the top of the project."""
