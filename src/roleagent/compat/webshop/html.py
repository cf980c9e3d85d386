"""A page as HTML that the original's readers understand.

The pages carry the original's ids and classes (``search_input``, ``instruction-text``, ``btn``, ``product-link``, radio
buttons with labels) and its strings in its order. The layout around them is our own.
"""

from __future__ import annotations

from html import escape

from roleagent.envs.webshop.engine.pages import SEARCH, Page, Part


def page_html(page: Page, instruction: str, base_url: str) -> str:
    """The page with the instruction.

    Args:
        base_url: where the forms of the page lead to.
    """
    lines = ["<h2>WebShop</h2>"] if page.name == "index" else []
    if page.name != "done":
        blank = " " if page.name == "index" else ""
        lines.append(f'<div id="instruction-text"><h4>Instruction:{blank}<br>{escape(instruction)}</h4></div>')
    if page.has_search_bar:
        lines.append('<input id="search_input" name="search_query" type="text">')
    lines += [_element(part, number) for number, part in enumerate(page.parts)]
    body = "\n".join(lines)
    return (
        '<!DOCTYPE html>\n<html>\n<head><meta charset="utf-8"><title>WebShop</title></head>\n'
        f'<body>\n<form method="post" action="{escape(base_url)}">\n{body}\n</form>\n</body>\n</html>'
    )


def _element(part: Part, number: int) -> str:
    text = escape(part.text)
    if part.kind == "button":
        style = "btn-success" if part.text.lower() == SEARCH else "btn-primary"
        return f'<button type="submit" class="btn {style}">{text}</button>'
    if part.kind == "link":
        return f'<h4><a class="product-link" href="#">{text}</a></h4>'
    if part.kind == "option":
        name = f"radio_{number}"
        return (
            f'<input type="radio" id="{name}" name="{escape(part.group)}" value="{text}">'
            f'<label for="{name}">{text}</label>'
        )
    return f"<p>{text}</p>"


__all__ = ["page_html"]
