"""The parts of the shop's web pages.

Every text goes through :func:`html.escape`; what a button does is the command that an agent would give.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from roleagent.envs.webshop.engine.pages import BACK, BUY, NEXT, PREV, SUB_PAGES, Page, Part
from roleagent.envs.webshop.engine.session import Session

STYLE = """
:root { color-scheme: light dark; --back: #f5f5f2; --card: #fff; --text: #1d2126; --soft: #5a626c; --line: #d9d9d3;
  --accent: #0b5c8a; --on: #fff; --good: #1c6e3a; --warn: #8a4b00; }
@media (prefers-color-scheme: dark) { :root { --back: #15181b; --card: #1f2428; --text: #e9ebed; --soft: #a3abb3;
  --line: #3a4147; --accent: #7cc4ef; --on: #10202b; --good: #7fd39b; --warn: #f0b36a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 1rem/1.5 system-ui, sans-serif;
  overflow-wrap: anywhere; }
header, main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
header { display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; align-items: center; justify-content: space-between; }
header strong { font-size: 1.25rem; }
header form { display: flex; gap: .75rem; align-items: center; color: var(--soft); }
h1 { font-size: 1.4rem; line-height: 1.3; margin: 0 0 .5rem; }
h2 { font-size: 1rem; margin: 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: 1rem; margin: 0 0 1rem; }
.request { border-left: .3rem solid var(--accent); }
.request p { margin: .15rem 0 0; }
.soft { color: var(--soft); }
.note { color: var(--warn); }
.price { font-weight: 600; }
nav, .row { display: flex; flex-wrap: wrap; gap: .5rem; align-items: center; }
nav { margin: 0 0 1rem; }
nav p, .row p { margin: 0; }
button { font: inherit; color: var(--text); background: var(--card); border: 1px solid var(--line);
  border-radius: .45rem; padding: .45rem .8rem; min-height: 2.6rem; cursor: pointer; text-align: left; }
button:hover { border-color: var(--accent); }
button:focus-visible, input:focus-visible { outline: .18rem solid var(--accent); outline-offset: .12rem; }
button.main, button[aria-pressed=true] { background: var(--accent); border-color: var(--accent); color: var(--on); }
button.title { border: 0; padding: 0; min-height: 0; background: none; color: var(--accent);
  text-decoration: underline; }
input { font: inherit; flex: 1 1 14rem; min-width: 0; color: var(--text); background: var(--back);
  border: 1px solid var(--line); border-radius: .45rem; padding: .45rem .7rem; min-height: 2.6rem; }
ol, ul { margin: 0; padding: 0; list-style: none; }
li.card { margin: 0 0 .6rem; padding: .75rem 1rem; }
fieldset { border: 0; margin: 0 0 1rem; padding: 0; }
legend { padding: 0; margin: 0 0 .35rem; color: var(--soft); }
dl { display: grid; grid-template-columns: auto 1fr; gap: .3rem 1rem; margin: 0; }
dd { margin: 0; }
.score { font-size: 2.2rem; font-weight: 700; margin: 0; }
.score.full { color: var(--good); }
.plain li { margin: 0 0 .4rem; }
"""


def document(session: Session, steps: int, limit: int, note: str) -> str:
    """The whole page.

    Args:
        steps: commands given so far.
        limit: steps that an agent has; more than that is reported, not forbidden.
        note: one line about the last command, ``""`` if there is nothing to say.
    """
    layouts = {"index": _index, "results": _results, "item": _item, "done": _done}
    body = layouts.get(session.page.name, _detail)(session)
    late = f" (an agent has {limit})" if steps > limit else ""
    told = f'<p class="note" role="status">{escape(note)}</p>' if note else ""
    title = {"index": "Search", "results": "Results", "item": "Product", "done": "Thank you"}
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title.get(session.page.name, session.page.name.title()))} · WebShop</title>\n"
        '<link rel="stylesheet" href="/style.css">\n</head>\n<body>\n'
        f'<header><strong>WebShop</strong><form method="post" action="/new"><span id="steps">Step {steps}{late}</span>'
        "<button>Another task</button></form></header>\n"
        f"<main>\n{_request(session)}"
        f"{told}\n{body}\n</main>\n</body>\n</html>\n"
    )


def message(title: str, text: str) -> str:
    """A page for what cannot be served."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<link rel="stylesheet" href="/style.css"></head>\n'
        f'<body><main><h1>{escape(title)}</h1><p>{escape(text)}</p><p><a href="/">To the shop</a></p></main></body>\n'
        "</html>\n"
    )


def _request(session: Session) -> str:
    return (
        f'<section class="card request"><h2>Your task</h2><p id="request">{escape(session.goal.instruction)}</p>'
        "</section>\n"
    )


def _form(inside: str) -> str:
    return f'<form method="post" action="/">\n{inside}\n</form>'


def _button(name: str, label: str = "", style: str = "", extra: str = "") -> str:
    """A button that clicks ``name``."""
    classes = f' class="{style}"' if style else ""
    return f'<button name="command" value="{escape(f"click[{name}]")}"{classes}{extra}>{escape(label or name)}</button>'


def _ways(page: Page, labels: Iterable[tuple[str, str]]) -> str:
    """Buttons for those of these that the page has."""
    return "".join(_button(name, label) for name, label in labels if name in page.targets)


def _index(session: Session) -> str:
    return _form(
        '<div class="card row"><label for="query">Search for</label>'
        '<input id="query" name="query" type="search" maxlength="500" autocomplete="off" autofocus required>'
        '<button class="main">Search</button></div>'
    )


def _results(session: Session) -> str:
    page = session.page
    cards: list[list[Part]] = []
    for part in page.parts:
        if part.kind == "link":
            cards.append([part])
        elif cards:
            cards[-1].append(part)
    rows = "\n".join(
        f'<li class="card">{_button(link.text, title.text.strip() or "(no title)", "title")}'
        f'<div class="row"><span class="price">{escape(price.text)}</span> '
        f'<span class="soft">{escape(link.text)}</span></div></li>'
        for link, title, price in cards
    )
    total = next(part.text for part in page.parts if part.kind == "text")
    ways = _ways(page, ((BACK, "Back to search"), (PREV, "Previous page"), (NEXT, "Next page")))
    searched = f'<p class="soft">{escape(total)} for “{escape(session.query or "")}”</p>'
    return _form(f"<nav>{ways}</nav>\n{searched}\n<ol>\n{rows or '<li>Nothing here.</li>'}\n</ol>")


def _item(session: Session) -> str:
    page = session.page
    groups: dict[str, list[Part]] = {}
    for part in page.parts:
        if part.kind == "option":
            groups.setdefault(part.group, []).append(part)
    # Title, price and rating are the texts right before the first of the buttons that lead to details.
    first = next(i for i, part in enumerate(page.parts) if part.text.lower() == SUB_PAGES[0] and part.kind == "button")
    title, price, rating = (part.text for part in page.parts[first - 3 : first])
    sets = "\n".join(
        f'<fieldset><legend>{escape(name)}</legend><div class="row">'
        + "".join(
            _button(value.text, extra=f' aria-pressed="{str(session.options.get(name) == value.text).lower()}"')
            for value in values
        )
        + "</div></fieldset>"
        for name, values in groups.items()
    )
    ways = _ways(page, ((BACK, "Back to search"), (PREV, "Back to results")))
    details = _ways(page, ((name, name.title()) for name in SUB_PAGES))
    return _form(
        f'<nav>{ways}</nav>\n<section class="card"><h1>{escape(title.strip() or "(no title)")}</h1>\n'
        f'<p><span class="price">{escape(price)}</span> <span class="soft">{escape(rating)}</span></p>\n{sets}\n'
        f'<div class="row">{details}</div></section>\n{_button(BUY, "Buy now", "main")}'
    )


def _detail(session: Session) -> str:
    page = session.page
    texts = [part.text.strip() for part in page.parts if part.kind == "text" and part.text.strip()]
    lines = "".join(f"<li>{escape(text)}</li>" for text in texts) or '<li class="soft">There is nothing here.</li>'
    ways = _ways(page, ((BACK, "Back to search"), (PREV, "Back to the product")))
    return _form(
        f'<nav>{ways}</nav>\n<section class="card"><h1>{escape(page.name.title())}</h1>\n'
        f'<ul class="plain">{lines}</ul></section>'
    )


def _done(session: Session) -> str:
    score, goal = session.score, session.goal
    assert score is not None and session.position is not None
    product = session.shop.catalogue[session.position]
    chosen = ", ".join(f"{name}: {value}" for name, value in session.options.items()) or "no options chosen"
    rows = (
        ("Kind of product", "right" if score.type == 1 else f"counts {score.type:g}"),
        ("Attributes", f"{score.attributes} of {len(goal.attributes)}"),
        ("Options", f"{score.options} of {len(goal.options)}"),
        ("Price", "within the limit" if score.price else "above the limit"),
    )
    told = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    return (
        '<section class="card"><h1>Thank you for shopping with us!</h1>\n'
        f'<p>{escape(product.title)} <span class="soft">({escape(chosen)})</span></p>\n'
        f'<p class="soft">Your score, of at most 1</p><p id="score" class="score{" full" * (score.total == 1)}">'
        f"{score.total:.4g}</p>\n<dl>{told}</dl></section>\n"
        '<form method="post" action="/new"><button class="main" autofocus>Another task</button></form>'
    )


__all__ = ["STYLE", "document", "message"]
