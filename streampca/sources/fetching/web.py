"""Requests for the keys of a store behind a web server, as the client of fsspec would send them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from streampca.sources.fetching.plain_http import PlainHTTP, UnusualAnswerError

if TYPE_CHECKING:
    from yarl import URL


class WebRequests:
    """Requests for the keys of a store behind a web server.

    Parameters
    ----------
    client : PlainHTTP
        Sends them.
    file_system : HTTPFileSystem
        Encodes addresses.
    path : str
        Address of the store.
    """

    unusual: ClassVar[frozenset[int]] = frozenset()

    def __init__(self, client: PlainHTTP, file_system: Any, path: str):
        self.client, self._file_system, self._path = client, file_system, path.rstrip("/")
        self._query = file_system.kwargs.get("params")

    @classmethod
    def of(cls, file_system: Any, path: str) -> WebRequests | None:
        """Return requests as those of `file_system`, None if only aiohttp can send them."""
        client = PlainHTTP.of(file_system)
        is_plain = client is not None and _is_plain(file_system.encode_url(path))
        return cls(client, file_system, path) if client is not None and is_plain else None

    async def request(self, key: str, span: tuple[int, int] | None) -> tuple[URL, dict[str, str]]:
        """Return address and further headers of the request for a key."""
        url = self._file_system.encode_url("/".join(filter(None, (self._path, key))))
        if not _is_plain(url):
            raise UnusualAnswerError("the address has a password")
        return url.extend_query(self._query) if self._query else url, {}


def _is_plain(url: URL) -> bool:
    """Return whether requests for `url` need no authentication."""
    return url.user is None and url.scheme in ("http", "https")
