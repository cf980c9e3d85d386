"""``WebAgentTextEnv``: WebShop's environment with the original's arguments and returned values."""

from __future__ import annotations

import operator
import os
from typing import Any

import gymnasium

from roleagent.compat.webshop.server import BASE_URL, SimBrowser, SimServer, check_files
from roleagent.envs.webshop.engine.pages import SEPARATOR
from roleagent.spaces import Unicode

ENV_ID = "WebAgentTextEnv-v0"
MODES = ("html", "text", "text_rich", "url")
_SERVER = ("filter_goals", "limit_goals", "num_products", "human_goals", "show_attrs", "seed", "nouns")
_OWN = ("session", "session_prefix", "num_prev_obs", "num_prev_actions", "get_image")


class WebAgentTextEnv(gymnasium.Env[str, str]):
    """A shopper in WebShop.

    ``reset`` returns an observation and None, ``step`` an observation, the reward, done and None. Nothing ends an
    episode but a purchase, and nothing resets by itself.

    Args:
        observation_mode: ``"html"``, ``"text"``, ``"text_rich"`` or ``"url"``.
        file_path: the file of products or its folder; None: as ``data_dir`` of ``RoleAgent/WebShop-v0``.
        server: the shop of another environment (its ``server``), to share; None: one by the other arguments.
        attr_path: the file of attributes, which must be the one that goes with ``file_path`` (verl-agent names it).
        kwargs: ``filter_goals``, ``limit_goals``, ``num_products``, ``human_goals`` and ``show_attrs``, as well as
            ``seed`` and ``nouns`` (see :class:`~roleagent.compat.webshop.server.SimServer`); ``session_prefix`` (the
            beginning of every session's id), ``num_prev_obs`` and ``num_prev_actions`` (how many of the last
            observations and actions precede an observation). ``session`` has no effect, as in the original.

    Attributes:
        server: the shop; ``server.goals`` are its goals.
        session: the id of the session.
        instruction_text: the instruction, as the search page shows it.

    Raises:
        ValueError: an argument has no meaning, or there are no such data.
        TypeError: there is no such argument.
    """

    def __init__(
        self,
        observation_mode: str = "html",
        file_path: str | os.PathLike[str] | None = None,
        server: SimServer | None = None,
        attr_path: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ):
        if observation_mode not in MODES:
            raise ValueError(f"unknown observation_mode {observation_mode!r}; there are {', '.join(MODES)}")
        unknown = sorted(set(kwargs) - {*_SERVER, *_OWN})
        if unknown:
            raise TypeError(f"unknown argument {unknown[0]!r} of {ENV_ID}; there are {', '.join((*_SERVER, *_OWN))}")
        if kwargs.get("get_image"):
            raise ValueError("get_image: image features are not available; leave it out")
        self.observation_mode, self.file_path, self.kwargs, self.base_url = (
            observation_mode,
            file_path,
            kwargs,
            BASE_URL,
        )
        if server is None:
            check_files(file_path, attr_path)
            server = SimServer(BASE_URL, file_path, **{name: kwargs[name] for name in _SERVER if name in kwargs})
        self.server = server
        self.browser = SimBrowser(server)
        self.session_prefix: str | None = kwargs.get("session_prefix")
        self.num_prev_obs, self.num_prev_actions = kwargs.get("num_prev_obs", 0), kwargs.get("num_prev_actions", 0)
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self.session = ""
        self._drawn = ""  # the id that the last reset drew
        self.reset()

    def reset(  # type: ignore[override]
        self, session: int | str | None = None, instruction_text: str | None = None
    ) -> tuple[str, None]:
        """Opens the search page.

        Args:
            session: the index of a goal, or the name of a session: a new one draws its goal, a known one keeps it. None
                draws a name, too.
            instruction_text: takes the place of ``instruction_text``; the pages show the goal's own.

        Raises:
            IndexError: there is no such goal.
        """
        self.server.user_sessions.pop(self._drawn, None)
        name, index = ("", None) if session is None else (str(session), _index(session))
        if session is None:
            name = self.server.session_name()
        self.session = f"{self.session_prefix or ''}{name}"
        self._drawn = self.session if session is None else ""
        self.browser.get(self.session, index)
        self.text_to_clickable: dict[str, Any] | None = None
        self.instruction_text = self.get_instruction_text() if instruction_text is None else instruction_text
        observation = self.observation
        self.prev_obs, self.prev_actions = [observation], []
        return observation, None

    def step(self, action: str) -> tuple[str, float, bool, None]:  # type: ignore[override]
        """Carries out ``search[words]`` or ``click[name]``; anything else changes nothing.

        Raises:
            TypeError: the action is not a string.
        """
        if not isinstance(action, str):
            raise TypeError(f"an action is a string such as 'search[red shoes]', not {action!r}")
        status = self.browser.act(action)
        observation = self.observation
        texts = [observation]
        self.prev_actions.append(action)
        for back in range(1, 1 + max(self.num_prev_obs, self.num_prev_actions)):
            if back <= min(len(self.prev_actions), self.num_prev_actions):
                texts.append(self.prev_actions[-back])
            if back <= min(len(self.prev_obs), self.num_prev_obs):
                texts.append(self.prev_obs[-back])
        self.prev_obs.append(observation)
        return SEPARATOR.join(reversed(texts)), status["reward"], status["done"], None

    @property
    def observation(self) -> str:
        """The page in the observation mode."""
        if self.observation_mode == "html":
            return self.browser.page_source
        if self.observation_mode == "url":
            return self.browser.current_url
        return self.browser.session.observe(self.observation_mode)

    @property
    def state(self) -> dict[str, str]:
        """The page's address and HTML, and the instruction."""
        return {
            "url": self.browser.current_url,
            "html": self.browser.page_source,
            "instruction_text": self.instruction_text,
        }

    def get_available_actions(self) -> dict[str, Any]:
        """Whether the page has a search bar (``has_search_bar``), and what can be clicked (``clickables``)."""
        session = self.browser.session
        self.text_to_clickable = dict(session.page.targets)
        return {"has_search_bar": session.has_search_bar, "clickables": list(session.clickables)}

    def get_instruction_text(self) -> str:
        """The instruction as the page shows it."""
        session = self.browser.session
        return f"Instruction:{' ' if session.page.name == 'index' else ''}{session.goal.instruction}"

    def get_image(self) -> None:
        """There are no image features.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("image features are not available: the observations are text")

    def render(self, mode: str = "human") -> None:  # type: ignore[override]
        """Shows nothing, as in the original."""

    def close(self) -> None:
        """Ends nothing: environments share their shop."""


def _index(session: Any) -> int | None:
    """The index that a session names; None for a name."""
    try:
        return None if isinstance(session, str) else operator.index(session)
    except TypeError:
        raise TypeError(f"a session is the index of a goal or a name, not {session!r}") from None


__all__ = ["ENV_ID", "MODES", "WebAgentTextEnv"]
