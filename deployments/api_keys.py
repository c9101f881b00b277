"""Who may draw: holds the API keys and checks a request's ``Authorization`` header."""

import secrets
from pathlib import Path

from fastapi import Request

from deployments.config import ServerConfig
from deployments.errors import ConfigError, NotAuthorized


class ApiKeys:
    """A FastAPI dependency; without keys everyone may draw."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = keys

    @classmethod
    def of(cls, server: ServerConfig) -> "ApiKeys":
        """Read the file that the configuration names; one key a line, ``#`` for comments."""
        if server.api_keys_file is None:
            return cls(())
        try:
            text = Path(server.api_keys_file).expanduser().read_text()
        except OSError as error:
            raise ConfigError(f"server.api_keys_file cannot be read: {error}") from None
        lines = [line.strip() for line in text.splitlines()]
        keys = tuple(line for line in lines if line and not line.startswith("#"))
        if not keys:
            raise ConfigError(f"server.api_keys_file {server.api_keys_file} holds no key")
        return cls(keys)

    async def __call__(self, request: Request) -> None:
        """NotAuthorized where the request carries none of the keys."""
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        given = key.strip().encode() if scheme.lower() == "bearer" else b""
        # Every key is compared, in constant time: how long it takes tells nothing of them.
        known = [secrets.compare_digest(given, own.encode()) for own in self._keys]
        if self._keys and not any(known):
            raise NotAuthorized("the request carries no valid key; send Authorization: Bearer KEY")
