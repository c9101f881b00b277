"""Who may ask: holds digests of the API keys, and answers every request that carries none of them.

A plain ASGI layer, so that nothing of a stranger's body is read. It knows paths and one header; a
key itself is neither kept nor shown.
"""

import hmac
import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.config import ServerConfig
from deployments.errors import ConfigError, NotAuthorized, answer_to

# Probes, scrapers and pages that hold nothing of the fleet; whatever is not listed needs a key.
OPEN = frozenset({"/", "/health", "/ready", "/metrics", "/docs", "/openapi.json"})
CHALLENGE = {"WWW-Authenticate": "Bearer"}


class ApiKeys:
    """The keys of one server; without any, everyone may ask for everything."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    @classmethod
    def of(cls, server: ServerConfig) -> "ApiKeys":
        """From the file and the variable that the configuration names; ConfigError without a key.

        A key a line; empty lines and those that begin with ``#`` say nothing.
        """
        keys: list[str] = []
        if server.api_keys_file is not None:
            where = f"server.api_keys_file {server.api_keys_file}"
            keys += _keys(_text(server.api_keys_file), where)
        if server.api_keys_env is not None:
            where = f"server.api_keys_env {server.api_keys_env}"
            if server.api_keys_env not in os.environ:
                raise ConfigError(f"{where} is not set where the server runs")
            keys += _keys(os.environ[server.api_keys_env], where)
        return cls(keys)

    def admit(self, path: str, authorization: str) -> bool:
        """Whether a request to ``path`` with this header may pass."""
        if not self._digests or path in OPEN:
            return True
        scheme, _, key = authorization.partition(" ")
        given = _digest(key.strip() if scheme.lower() == "bearer" else "")
        # Every digest is compared, in constant time: how long it takes tells nothing of any key.
        same = [hmac.compare_digest(given, own) for own in self._digests]
        return any(same)


class GuardedByKeys:
    """A request without a key is a 401, whatever else is wrong with it."""

    def __init__(self, app: ASGIApp, *, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http":
            given = Headers(scope=scope).get("Authorization", "")
            if not self._keys.admit(scope["path"], given):
                error = NotAuthorized("the request carries no valid key; send a Bearer key")
                answer = answer_to(error)
                app = JSONResponse(answer.body, answer.status, headers=CHALLENGE)
        await app(scope, receive, send)


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()


def _text(file: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="ascii")
    except UnicodeDecodeError:  # its words would show a piece of a key
        raise ConfigError(f"server.api_keys_file cannot be read: {file} is no ASCII text") from None
    except OSError as error:
        raise ConfigError(
            f"server.api_keys_file cannot be read: {file}: {error.strerror}"
        ) from None


def _keys(text: str, where: str) -> list[str]:
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    keys = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"{where} holds no key; write one a line")
    for number, key in keys:
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ConfigError(f"{where}: line {number} is no key; a key has no spaces, ASCII only")
    return [key for _, key in keys]
