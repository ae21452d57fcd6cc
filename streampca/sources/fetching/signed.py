"""Requests for objects of S3 as botocore would send them, prepared by it once for a bucket and signed one by one.

botocore and aiobotocore take 1.4 ms of processor time for one request, of which the signature is 0.1 ms.
"""

from __future__ import annotations

import inspect
import re
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from streampca.sources.fetching.plain_http import PlainHTTP, UnusualAnswerError, range_of

if TYPE_CHECKING:
    from yarl import URL

_SIGNED = re.compile(r"AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/([^/]+)/s3/aws4_request, .*")
_SENT = frozenset({"user-agent", "x-amz-checksum-mode"})
"""Headers of a prepared request that stay the same."""
_RENEWED = frozenset(
    {"x-amz-date", "x-amz-content-sha256", "x-amz-security-token", "authorization"}
    | {"amz-sdk-invocation-id", "amz-sdk-request"}
)
_EVENT = "before-send.s3.GetObject"
_is_preparing: ContextVar[bool] = ContextVar("_is_preparing", default=False)


class _PreparedError(Exception):
    """Ends a request of botocore before it is sent."""

    def __init__(self, request: Any):
        super().__init__("the request is prepared")
        self.request = request


@dataclass(frozen=True)
class Bucket:
    """Where requests for the objects of a bucket go, and what signs them."""

    url: str
    """Address of the bucket; the key of an object follows."""
    headers: dict[str, str]
    """Headers of every request."""
    credentials: Any
    """Those of botocore, which renews them; None for requests without a signature."""
    region: str
    """Region of the signature."""

    async def request(self, key: str, span: tuple[int, int] | None) -> tuple[URL, dict[str, str]]:
        """Return address and headers of the request for an object, or the bytes in `span` of it."""
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from yarl import URL

        url = self.url + _quoted(key)
        headers = self.headers if span is None else {**self.headers, "Range": range_of(span)}
        if self.credentials is not None:
            current = self.credentials.get_frozen_credentials()
            request = AWSRequest("GET", url, headers=headers)
            auth = S3SigV4Auth(await current if inspect.isawaitable(current) else current, "s3", self.region)
            auth.add_auth(request)
            headers = dict(request.headers)
        return URL(url, encoded=True), headers


class SignedRequests:
    """Requests of one store in a bucket.

    Parameters
    ----------
    file_system : S3FileSystem
        Gives credentials, address and options.
    path : str
        Bucket and prefix of the store.
    """

    unusual: ClassVar[frozenset[int]] = frozenset({400})  # a bucket in another region, or credentials that expired

    def __init__(self, file_system: Any, path: str):
        self._file_system = file_system
        self._name, _, prefix = path.strip("/").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._bucket: Bucket | None = None
        self.client = PlainHTTP()

    @classmethod
    def of(cls, file_system: Any, path: str) -> SignedRequests | None:
        """Return requests as those of `file_system`, None if it has options that only botocore knows."""
        from s3fs import S3FileSystem

        options = ("s3_additional_kwargs", "req_kw", "version_aware", "cache_regions")
        given = file_system.storage_options.get("session") is not None
        if type(file_system) is not S3FileSystem or given or any(getattr(file_system, each, 1) for each in options):
            return None
        return cls(file_system, path)

    async def request(self, key: str, span: tuple[int, int] | None) -> tuple[URL, dict[str, str]]:
        """Return address and headers of the request for a key, or the bytes in `span` of it.

        Raises
        ------
        UnusualAnswerError
            If botocore would send another request than those that are known here.
        """
        if self._bucket is None:
            self._bucket = await self._prepared(self._prefix + key)
        return await self._bucket.request(self._prefix + key, span)

    async def _prepared(self, key: str) -> Bucket:
        """Let botocore prepare the request for an object, and return what holds for those of all objects."""
        try:
            await self._file_system.set_session()
            client = await self._file_system.get_s3(self._name)
            request = await _request_of(client, self._name, key)
            headers = {name.lower(): _text(value) for name, value in request.headers.items()}
            signed = _SIGNED.fullmatch(headers.get("authorization", ""))
            self._take_limits(client, request.url)
            is_known = headers.keys() <= _SENT | _RENEWED and request.url.endswith(_quoted(key))
            if not is_known or (signed is None and "authorization" in headers):
                raise UnusualAnswerError("the request has options")
            sent = {name: value for name, value in headers.items() if name in _SENT}
            credentials = None if signed is None else client._request_signer._credentials
            return Bucket(
                request.url.removesuffix(_quoted(key)), sent, credentials, "" if signed is None else signed[1]
            )
        except Exception as error:
            raise UnusualAnswerError("the request cannot be prepared") from error

    def _take_limits(self, client: Any, url: str) -> None:
        """Take time limits and certificates from a client of botocore."""
        from botocore.httpsession import get_cert_path

        session, config = client._endpoint.http_session, client.meta.config
        if session._proxy_config.proxy_url_for(url) or session._cert_file or not session._verify:
            raise UnusualAnswerError("a proxy, a certificate of the client, or none of the server")
        self.client.connect_seconds, self.client.read_seconds = config.connect_timeout, config.read_timeout
        self.client.certificates = get_cert_path(session._verify)


async def _request_of(client: Any, bucket: str, key: str) -> Any:
    """Return the request for an object that a client of botocore would send."""
    client.meta.events.register_first(_EVENT, _end, unique_id="streampca")
    token = _is_preparing.set(True)
    try:
        await client.get_object(Bucket=bucket, Key=key)
    except _PreparedError as prepared:
        return prepared.request
    finally:
        _is_preparing.reset(token)
    raise UnusualAnswerError("the request was sent")


def _end(request: Any, **_: object) -> None:
    """Raise `_PreparedError` for a request of `_request_of`, not for those of others."""
    if _is_preparing.get():
        raise _PreparedError(request)


def _quoted(key: str) -> str:
    """Return a key as botocore writes it in a URL."""
    return quote(key, safe="/~")


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
