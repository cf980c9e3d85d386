"""Lucene's English analyser. (Names first; the body follows.)"""

from __future__ import annotations


def analyse(text: str) -> list[str]:
    """The terms of a text, as Lucene's English analyser makes them."""
    raise NotImplementedError
