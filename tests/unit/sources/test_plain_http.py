"""The own client of web servers: connections that are used again, answers that are refused or left to the other client, and its ends."""

from __future__ import annotations

import asyncio
import ssl

import pytest

pytest.importorskip("aiohttp", reason="the extra s3 is not installed")

from yarl import URL

from streampca.sources.fetching import plain_http
from streampca.sources.fetching.plain_http import IncompleteReadError, PlainHTTP, UnusualAnswerError

BODY = bytes(range(256)) * 256  # more than one piece of memory for headers
OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY)


class Server:
    """Sends one answer to every request; closes connections when it is told to."""

    def __init__(self, answer=OK + BODY):
        self.answer, self.n_connections, self.requests, self.open, self.tasks = answer, 0, [], [], []
        self.came, self.ended = asyncio.Event(), asyncio.Event()

    async def serve(self, reader, writer):
        self.n_connections += 1
        self.open.append(writer)
        self.tasks.append(asyncio.current_task())
        try:
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                self.came.set()
                writer.write(self.answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended.set()
            writer.close()

    async def start(self, context=None):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0, ssl=context)
        return URL(f"http{'s' if context else ''}://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/x")

    async def stop(self):
        self.server.close()
        for writer in self.open:
            writer.transport.abort()
        await asyncio.gather(*self.tasks)


async def received(client, url, span=None):
    buffer = bytearray(len(BODY))
    answer = await client.get(url, span, memoryview(buffer))
    return bytes(buffer[: answer.n_bytes])


@pytest.fixture(scope="module")
def contexts(tmp_path_factory):
    """Return TLS contexts of a server and a client."""
    pytest.importorskip("cryptography")
    from distributed.security import Security

    place, made = tmp_path_factory.mktemp("tls") / "x.pem", Security.temporary()
    place.write_text(made.tls_ca_file + made.tls_client_key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(place)
    client = ssl.create_default_context(cadata=made.tls_ca_file)
    client.check_hostname = False
    return server, client


@pytest.mark.parametrize("encrypted", [False, True])
def test_connection_is_used_again_after_a_large_body_and_its_end_is_silent(request, monkeypatch, caplog, encrypted):
    of_server, n_contexts = None, []
    if encrypted:
        of_server, of_client = request.getfixturevalue("contexts")
        monkeypatch.setattr(plain_http.ssl, "create_default_context", lambda **_: n_contexts.append(1) or of_client)

    async def main():
        server, client = Server(), PlainHTTP()
        url = await server.start(of_server)
        for _ in range(5):
            assert await received(client, url) == BODY
        assert server.n_connections == 1
        [connection], lost = client._idle, asyncio.Event()
        ended = connection.connection_lost
        connection.connection_lost = lambda error: (ended(error), lost.set())
        server.open[0].close()
        await asyncio.wait_for(lost.wait(), 20)
        assert await received(client, url) == BODY
        assert server.n_connections == 2
        client.close()
        await server.stop()

    asyncio.run(main())
    assert not caplog.records
    assert len(n_contexts) == encrypted


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 206 P\r\nContent-Length: 4\r\n\r\n",
        b"HTTP/1.1 206 P\r\nContent-Length: 4\r\nContent-Range: bytes 0-3/*\r\n\r\n",
        b"HTTP/1.1 206 P\r\nContent-Length: 4\r\nContent-Range: bytes 0-9/100\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: four\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\n",
        b"HTTP/1.1 204 N\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_answers_that_are_not_understood_are_left_to_the_other_client(head):
    async def main():
        server, client = Server(head + b"abcd"), PlainHTTP()
        url = await server.start()
        with pytest.raises(UnusualAnswerError):
            await received(client, url, (0, 4))
        assert not client._idle
        await server.stop()

    asyncio.run(main())


def test_bodies_that_end_early_or_stall_are_errors_and_a_cancelled_request_closes_its_connection():
    async def main():
        server, client = Server(OK + BODY[:-1]), PlainHTTP(read_seconds=0.05)
        url = await server.start()
        with pytest.raises(TimeoutError, match="no byte was received"):
            await received(client, url)
        server.came.clear()
        client.read_seconds = 20.0
        task = asyncio.ensure_future(received(client, url))
        await server.came.wait()
        server.open[-1].close()
        with pytest.raises(IncompleteReadError, match="65535 of 65536 bytes"):
            await task
        server.came.clear()
        task = asyncio.ensure_future(received(client, url))
        await server.came.wait()
        server.ended.clear()
        task.cancel()
        await asyncio.wait_for(server.ended.wait(), 20)
        assert task.cancelled()
        assert not client._idle
        await server.stop()

    asyncio.run(main())


def test_requests_name_the_client_unless_the_headers_given_do():
    async def main():
        server = Server()
        url = await server.start()
        for headers, expected in (({}, b"User-Agent: streampca\r\n"), ({"user-agent": "me"}, b"user-agent: me\r\n")):
            client = PlainHTTP(headers)
            await received(client, url)
            assert expected in server.requests[-1]
            assert server.requests[-1].lower().count(b"user-agent") == 1
            client.close()
        await server.stop()

    asyncio.run(main())
