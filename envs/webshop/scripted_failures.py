"""Scripted failures in WebShop, one per failure mode."""

from __future__ import annotations

from collections.abc import Callable

from roleagent.envs.failures.scripted_episode import Impossible, ScriptedEpisode, unreadable_reply
from roleagent.envs.webshop.engine.pages import BACK, BUY, NEXT, PREV
from roleagent.envs.webshop.scripted_shopper import Shopper
from roleagent.envs.webshop.text import read_request, words_of

_IDEAS = ("weather tomorrow", "cheap flights", "football results", "how to cook rice", "used cars", "concert tickets")
_WISHES = ("add to cart", "sort by price", "filter", "checkout", "compare", "next page", "show more", "cart")


def irrelevant_query(episode: ScriptedEpisode) -> None:
    """Searches for something that has nothing to do with the request, and takes what comes of it."""
    agent = Shopper(episode)
    if episode.chance(0.3):  # a good beginning, not followed up
        agent.search(agent.query)
        if episode.chance(0.5):
            agent.click(BACK)
    episode.mark_failure()
    agent.search(_other_wish(agent))
    patience = int(episode.rng.integers(1, 4))
    while True:
        shown = [name for name in agent.clickables if name not in (BACK, NEXT, PREV)]
        if shown and (patience == 0 or episode.left <= 3):
            agent.click(episode.pick(shown))
            agent.read(0.3)
            agent.click(BUY)
        patience = max(0, patience - 1)
        agent.search(_other_wish(agent))


def _other_wish(agent: Shopper) -> str:
    """What another customer would search for: another kind of thing in another part of the shop."""
    episode, shop, goal = agent.episode, agent.shop, agent.goal
    if episode.chance(0.2):
        return episode.pick([idea for idea in _IDEAS if all(idea not in turn.action for turn in episode.turns)])
    for _ in range(20):
        other = shop.goals[int(episode.rng.integers(len(shop.goals)))]
        if other.category != goal.category and other.query != goal.query:
            return episode.pick((read_request(other.instruction).kind, other.title)).lower()
    raise Impossible


def wrong_product_selection(episode: ScriptedEpisode) -> None:
    """Picks a product that is not the one asked for, although its pages show that it is not, and buys it."""
    agent = Shopper(episode)
    wrong = {position: agent.flaws(position) for position in agent.found()}
    position = episode.pick([p for p, flaws in wrong.items() if flaws and "price" not in flaws])
    agent.reach(position)
    episode.mark_failure()
    agent.open(position)
    agent.read(1.0 if wrong[position] == {"attributes"} else 0.4)
    agent.buy([*agent.some_options(position).values()])


def premature_purchase(episode: ScriptedEpisode) -> None:
    """Buys the product that looks best without reading its details, which contradict the request."""
    agent = Shopper(episode)
    wanted = read_request(agent.goal.instruction).words
    titles = {p: words_of(agent.shop.catalogue[p].title) for p in agent.found()}
    best = max((len(wanted & title) for title in titles.values()), default=0)
    position = episode.pick(
        [
            position
            for position, title in titles.items()
            if len(wanted & title) == best and agent.flaws(position) == {"attributes"} and agent.fits(position)
            if not all(words_of(attribute) <= title for attribute in agent.goal.attributes)  # something is to be read
        ]
    )
    agent.reach(position)
    agent.open(position)
    for value in episode.shuffled([*agent.some_options(position).values()]):
        agent.click(value)
    episode.mark_failure()
    agent.click(BUY)


def price_constraint_violation(episode: ScriptedEpisode) -> None:
    """Buys the right kind of thing with the right options for more than it may cost."""
    agent = Shopper(episode)
    position = episode.pick([p for p in agent.found() if agent.flaws(p) == {"price"} and agent.fits(p)])
    agent.reach(position)
    agent.open(position)
    agent.read(0.6)
    for value in episode.shuffled([*agent.some_options(position).values()]):
        agent.click(value)
    episode.mark_failure()
    agent.click(BUY)


def _at_the_right_product(agent: Shopper) -> dict[str, str]:
    """Opens what is wanted; what is to be chosen there, group → value, is at least one option."""
    position = agent.goal.position
    options = agent.options(position)
    if not options:
        raise Impossible
    agent.reach(position)
    agent.open(position)
    agent.read(0.6)
    return options


def wrong_attribute_selection(episode: ScriptedEpisode) -> None:
    """Buys the right product with another value of an option than the request names."""
    agent = Shopper(episode)
    options = _at_the_right_product(agent)
    group = episode.pick([*options])
    offered = agent.shop.catalogue[agent.goal.position].options[group]
    others = [v for v in offered if v != options[group] and v in agent.clickables and v.lower() == v]
    order = [(name, value) for name, value in options.items() if name != group or episode.chance(0.3)]
    for _, value in episode.shuffled(order):
        agent.click(value)
    episode.mark_failure()
    agent.click(episode.pick(others))
    for name, value in options.items():
        if name != group and (name, value) not in order:
            agent.click(value)
    agent.click(BUY)


def missing_attribute_selection(episode: ScriptedEpisode) -> None:
    """Buys the right product without choosing an option that the request names."""
    agent = Shopper(episode)
    options = _at_the_right_product(agent)
    kept = episode.shuffled([*options.values()])[: int(episode.rng.integers(len(options)))]
    for value in kept:
        agent.click(value)
    episode.mark_failure()
    agent.click(BUY)


def excessive_browsing(episode: ScriptedEpisode) -> None:
    """Looks at one product after the other, and at more results, until there is no time left to buy any."""
    agent = Shopper(episode)
    agent.search(agent.query)
    episode.mark_failure(single=False)
    depth = episode.rng.uniform(0.2, 0.7)
    kind = episode.pick(("", read_request(agent.goal.instruction).kind.lower()))
    seen: set[str] = set()
    products = [*map(agent.number, agent.found())]
    if len(products) < 5:
        raise Impossible
    while True:
        if seen.issuperset(products):
            seen.clear()
        fresh = [name for name in products if name in agent.clickables and name not in seen]
        if not fresh or episode.chance(0.15):
            agent.click(PREV if PREV in agent.clickables else NEXT)
            continue
        if kind and episode.chance(0.1):  # once, in other words
            agent.search(kind)
            kind = ""
            continue
        name = episode.pick(fresh)
        seen.add(name)
        agent.click(name)
        for page in episode.shuffled(("features", "description", "reviews")):
            if episode.chance(depth):
                agent.click(page)
                agent.click(PREV)
        agent.click(PREV)


def repeated_query(episode: ScriptedEpisode) -> None:
    """Repeats the same search instead of using its results."""
    agent = Shopper(episode)
    words = agent.query.split()
    agent.search(agent.query)
    while True:
        if episode.chance(0.3):
            agent.click(NEXT)
        if episode.chance(0.5):
            agent.click(BACK)
        episode.mark_failure()
        again = [agent.query, agent.query, agent.query.upper(), " ".join(episode.shuffled(words))]
        agent.search(episode.pick(again))


def navigation_error(episode: ScriptedEpisode) -> None:
    """Clicks elements that are not on the page."""
    agent = Shopper(episode)
    haste, share = episode.rng.uniform(0.1, 0.6), episode.rng.uniform(0.4, 1.0)
    episode.follow(lambda command: BUY in command.lower() or episode.left <= 8 or episode.chance(haste))
    product = agent.shop.catalogue[agent.goal.position]
    names = [BUY, NEXT, PREV, BACK, "features", "description", "reviews", agent.number(agent.goal.position), *_WISHES]
    names += [value for values in product.options.values() for value in values]
    episode.mark_failure()
    agent.click(episode.pick([name for name in names if name not in agent.clickables]))
    while True:
        command = episode.expert.act()
        if BUY in command.lower() or episode.chance(share):
            agent.click(episode.pick([name for name in names if name not in agent.clickables]))
        else:
            episode.do(command)


def premature_termination(episode: ScriptedEpisode) -> None:
    """Finds the right product and does not buy it: it only clicks chosen options again."""
    agent = Shopper(episode)
    options = _at_the_right_product(agent)
    chosen = episode.shuffled([*options.values()])
    for value in chosen:
        agent.click(value)
    episode.mark_failure()
    while True:
        agent.click(episode.pick(chosen))


SCRIPTED_FAILURES: dict[str, Callable[[ScriptedEpisode], None]] = {
    script.__name__: script
    for script in (
        irrelevant_query,
        wrong_product_selection,
        wrong_attribute_selection,
        missing_attribute_selection,
        premature_purchase,
        excessive_browsing,
        repeated_query,
        navigation_error,
        price_constraint_violation,
        unreadable_reply(lambda command: BUY in command.lower()),
        premature_termination,
    )
}

__all__ = ["SCRIPTED_FAILURES"]
