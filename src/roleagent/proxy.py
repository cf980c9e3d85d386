"""The proxy and the certificates that the environment has for a server."""

from __future__ import annotations

import os
from collections.abc import Callable
from ssl import create_default_context
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


class ProxyError(ValueError):
    """The environment's proxy cannot be used; the message is one line without the proxy's URL, which may be secret."""


def open_http_client(make: Callable[..., Any], url: str, **options: Any) -> Any:
    """An HTTP client for one server.

    Left to itself the client opens every proxy of the environment: one that cannot be used would stop it, even where
    ``NO_PROXY`` names the server.

    Args:
        make: a client of ``httpx`` or ``httpx2``.
        url: of the server.
        options: of the client.

    Raises:
        ProxyError: the environment's proxy for the server cannot be used.
    """
    parts, proxies = urlsplit(url), getproxies()
    proxy = None if proxy_bypass(parts.netloc) else proxies.get(parts.scheme) or proxies.get("all")
    proxy = f"http://{proxy}" if proxy and "://" not in proxy else proxy
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    verify = create_default_context(cafile=file, capath=folder) if file or folder else True
    try:
        return make(trust_env=False, proxy=proxy, verify=verify, **options)
    except Exception as error:
        solution = "pip install socksio" if isinstance(error, ImportError) else "correct its variable"
        raise ProxyError(
            f"the environment's proxy for {parts.hostname} cannot be used: {solution}, or set NO_PROXY={parts.hostname}"
        ) from None


__all__ = ["ProxyError", "open_http_client"]
