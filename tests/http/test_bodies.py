"""Responses by the transport: bounded in bytes and in time, and decompressed once."""

import gzip
import tracemalloc
from types import ModuleType

import anyio
import httpx2
import pytest

from ._world import BOTH_LIBRARIES, LOOPBACK, WAIT, Site, client_of

pytestmark = pytest.mark.real_clock

MB = 1_000_000
PACKED = gzip.compress(b"tea", mtime=0)


@BOTH_LIBRARIES
@pytest.mark.backends("asyncio", "trio")
@pytest.mark.every_variant
async def test_a_body_is_decompressed_by_the_transport(site: Site, library: ModuleType) -> None:
    """The client sees no compression, so it decompresses nothing without a bound."""
    packed = gzip.compress(b"tea " * 100_000)
    case = site.case()
    async with client_of(library, hosts=LOOPBACK) as client:
        plain = await client.get(site.url("/body", hex="746561"))
        page = await client.get(
            site.url("/body", hex=packed.hex(), encoding="gzip", case=case), headers={"Accept-Encoding": "br"}
        )

    assert plain.text == "tea"
    assert plain.headers["content-length"] == "3"
    assert page.text == "tea " * 100_000
    assert not {"content-encoding", "content-length"} & set(page.headers)
    assert [request["headers"]["accept-encoding"] for request in site.requests(case)] == ["gzip"]


@BOTH_LIBRARIES
@pytest.mark.backends("asyncio", "trio")
async def test_a_download_is_passed_on_as_an_upload(site: Site, library: ModuleType) -> None:
    """The bytes of the download are no head of the response to the upload."""
    async with client_of(library, hosts=LOOPBACK) as client:
        async with client.stream("GET", site.url("/body", hex="78", times=MB)) as download:
            with anyio.fail_after(WAIT):
                answer = await client.post(site.url("/upload"), content=download.aiter_bytes())

    assert answer.text == f"{MB} bytes"


@BOTH_LIBRARIES
async def test_a_body_that_grows_without_end_is_cut_as_it_grows(site: Site, library: ModuleType) -> None:
    """The bound applies to decompressed bytes: 64 MiB may be sent as 64 KiB."""
    async with client_of(library, hosts=LOOPBACK, max_bytes=MB) as client:
        with anyio.fail_after(WAIT):
            await client.get(site.url())
            tracemalloc.start()
            try:
                with pytest.raises(library.ReadError, match=r"more than 1,000,000 bytes; the option max_bytes="):
                    await client.get(site.url("/bomb", layers=1))
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()

    assert peak < 10 * MB


async def test_a_body_that_decompresses_to_nothing_is_bounded_too(site: Site) -> None:
    """Empty blocks of deflate would keep the client busy until its timeout, and give nothing to count."""
    head = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    url = site.url("/body", head=head.hex(), hex=(b"\0\0\0\xff\xff").hex(), times=400_000, encoding="gzip")
    async with client_of(httpx2, hosts=LOOPBACK, max_bytes=MB) as client:
        with anyio.fail_after(WAIT), pytest.raises(httpx2.ReadError, match="more than 1,000,000 bytes"):
            await client.get(url)


@BOTH_LIBRARIES
@pytest.mark.parametrize("encoding", ["gzip, gzip, gzip", "gzip, identity, gzip", "br", "zstd", "deflate", "lzma"])
async def test_a_body_with_another_encoding_than_one_gzip_is_refused_in_words(
    site: Site, library: ModuleType, encoding: str
) -> None:
    """A few kilobytes in three layers kept the decoders busy for eight seconds without a result."""
    async with client_of(library, hosts=LOOPBACK) as client:
        with pytest.raises(library.DecodingError, match=f"encoded as '{encoding}', and only gzip, once"):
            await client.get(site.url("/body", hex="00", encoding=encoding))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"no gzip", "incorrect header check"),
        (PACKED[:-4], "ends too early"),
        (PACKED + b"more", "goes on after its end"),
        (PACKED * 2, "goes on after its end"),
    ],
    ids=["no gzip", "cut", "more", "twice"],
)
async def test_a_body_that_is_not_one_whole_stream_is_an_error(site: Site, body: bytes, message: str) -> None:
    """A part of a body could be taken for the whole."""
    async with client_of(httpx2, hosts=LOOPBACK) as client:
        with pytest.raises(httpx2.DecodingError, match=message):
            await client.get(site.url("/body", hex=body.hex(), encoding="gzip"))


@BOTH_LIBRARIES
@pytest.mark.backends("asyncio", "trio")
@pytest.mark.every_variant
async def test_a_body_that_comes_byte_by_byte_ends_with_the_time_of_its_request(
    site: Site, library: ModuleType
) -> None:
    """Each byte arrives within the read timeout of the client, so only the total timeout ends the request."""
    case = site.case()
    async with client_of(library, hosts=LOOPBACK, timeout=0.5) as client:
        with anyio.fail_after(WAIT), pytest.raises(library.ReadTimeout, match="did not end in time"):
            await client.get(site.url("/slow", case=case))
        await await_disconnect(site, case)


@BOTH_LIBRARIES
async def test_a_server_that_says_nothing_is_given_up(site: Site, library: ModuleType) -> None:
    """The timeouts of the transport and of the client both hold."""
    async with client_of(library, hosts=LOOPBACK, timeout=0.2) as client:
        with anyio.fail_after(WAIT), pytest.raises(library.ReadTimeout):
            await client.get(site.url("/silent"))
    async with client_of(library, hosts=LOOPBACK) as client:
        with anyio.fail_after(WAIT), pytest.raises(library.ReadTimeout):
            await client.get(site.url("/silent"), timeout=0.2)


async def test_a_request_that_is_cancelled_ends_its_connection(site: Site) -> None:
    """The server sees that the connection was closed and can stop working."""
    case = site.case()
    async with client_of(httpx2, hosts=LOOPBACK) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.get, site.url("/slow", case=case))
            while not await anyio.to_thread.run_sync(site.requests, case):
                await anyio.sleep(0.01)
            group.cancel_scope.cancel()
        await await_disconnect(site, case)


async def test_a_response_that_is_not_read_is_closed(site: Site) -> None:
    """A stream that its reader leaves closes its connection; one that was read keeps it for the next request."""
    case, other_case = site.case(), site.case()
    async with client_of(httpx2, hosts=LOOPBACK) as client:
        async with client.stream("GET", site.url("/slow", case=case)) as response:
            assert response.is_success
        await await_disconnect(site, case)
        for _ in range(2):
            await client.get(site.url(case=other_case))

    assert len({request["client"] for request in site.requests(other_case)}) == 1


async def await_disconnect(site: Site, case: str) -> None:
    with anyio.fail_after(WAIT):
        while not (await anyio.to_thread.run_sync(site.notes_of, case))["gone"]:
            await anyio.sleep(0.01)
