"""Logs, artifacts in parts, caches and test reports of runners, as `docs/runner-protocol.md` describes them."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from litestar import Response, get, post, put
from litestar.params import FromPath, JSONBody, QueryParameter

from tenure.limits import (
    ARTIFACT_PART_BYTES_MAX,
    CACHE_FALLBACKS_MAX,
    CACHE_KEY_CHARS_MAX,
    LOG_BYTES_PER_ATTEMPT_MAX,
    LOG_CHUNK_BYTES_MAX,
    TEST_REPORT_BYTES_MAX,
)
from tenure.server.file_responses import send_file
from tenure.server.http.path_segments import decode_rest_of_path, decode_segment
from tenure.server.request import ApiRequest
from tenure.server.routes.runner import check_lease
from tenure.services.runners.job_storage import UploadSummary
from tenure.shapes.test_reports import TestReport
from tenure.worker import storage_protocol as p

Key = Annotated[str, QueryParameter(description="The key of a cache.", max_length=CACHE_KEY_CHARS_MAX)]


@put(
    "/runner/leases/{lease_id:str}/log-chunks/{seq:int}",
    status_code=200,
    summary="Add bytes to the log of a job",
    request_max_body_size=LOG_CHUNK_BYTES_MAX,
)
async def append_log(
    request: ApiRequest,
    lease_id: FromPath[str],
    seq: FromPath[int],
    offset: Annotated[
        int,
        QueryParameter(
            description="The number of the first byte in the log.", ge=0, le=LOG_BYTES_PER_ATTEMPT_MAX
        ),
    ] = 0,
) -> p.LogChunkReply:
    """The body is the bytes, up to 1 MiB; `Tenure-Digest` their digest. Chunks are numbered 1, 2, 3 … and follow each other. The same
    chunk again changes nothing. For ten minutes after the lease's end it is accepted and marked late."""
    credential, body = await check_lease(request, lease_id), await request.body()
    digest = request.headers.get(p.DIGEST_HEADER, "")
    row = await request.server.storage.append_log(credential, seq, offset, body, digest)
    return p.LogChunkReply(seq=row.seq, size=row.first_byte + row.size, late=row.late)


@post("/runner/leases/{lease_id:str}/uploads", status_code=200, summary="Begin an upload in parts")
async def begin_upload(
    request: ApiRequest, lease_id: FromPath[str], data: JSONBody[p.UploadBegin]
) -> p.UploadBegun:
    """An artifact, or a cache, of up to 5 GiB. Nobody sees it before it is complete."""
    begun = await request.server.storage.begin_upload(
        await check_lease(request, lease_id), data.kind, data.name, data.nonce, data.retention_seconds
    )
    return p.UploadBegun(upload=begun.id, exists=begun.exists)


@put(
    "/runner/leases/{lease_id:str}/uploads/{upload:str}/parts/{part:int}",
    status_code=200,
    summary="Upload a part",
    request_max_body_size=ARTIFACT_PART_BYTES_MAX,
)
async def put_part(
    request: ApiRequest, lease_id: FromPath[str], upload: FromPath[str], part: FromPath[int]
) -> p.UploadPartReply:
    """The body is the part, up to 16 MiB; `Tenure-Digest` its digest. Parts are numbered 1, 2, 3 …, in any order. The same part again
    changes nothing."""
    credential, body = await check_lease(request, lease_id), await request.body()
    digest = request.headers.get(p.DIGEST_HEADER, "")
    await request.server.storage.put_part(credential, upload, part, body, digest)
    return p.UploadPartReply(part=part)


@post(
    "/runner/leases/{lease_id:str}/uploads/{upload:str}/complete",
    status_code=200,
    summary="Complete an upload",
)
async def complete_upload(
    request: ApiRequest, lease_id: FromPath[str], upload: FromPath[str], data: JSONBody[p.UploadComplete]
) -> p.UploadCompleted:
    """Makes the artifact or the cache visible, in one commit. To complete it again returns the same."""
    summary = UploadSummary(data.parts, data.size, data.digest)
    done = await request.server.storage.complete_upload(
        await check_lease(request, lease_id), upload, data.kind, data.name, summary
    )
    return p.UploadCompleted(
        name=data.name, size=data.size, digest=data.digest, late=done.late, kept=done.kept
    )


@get(
    "/runner/leases/{lease_id:str}/needs/{job:str}/artifacts/{name:path}",
    media_type="application/octet-stream",
    summary="Download an artifact of a needed job",
)
async def download_needed(request: ApiRequest, lease_id: FromPath[str], job: FromPath[str]) -> Response[Any]:
    """The accepted file of a step that the lease's step needs. A `Range` of bytes may be asked for."""
    credential = await check_lease(request, lease_id)
    wanted, job = decode_rest_of_path(request.scope, 6), decode_segment(request.scope, 4)
    return send_file(request, await request.server.storage.find_needed(credential, job, wanted))


@get(
    "/runner/leases/{lease_id:str}/caches",
    media_type="application/octet-stream",
    summary="Download a cache",
)
async def download_cache(
    request: ApiRequest,
    lease_id: FromPath[str],
    key: Key = "",
    fallback: Annotated[
        list[str] | None,
        QueryParameter(
            description="Prefixes: the newest cache whose key begins with the first of them that has one.",
            max_items=CACHE_FALLBACKS_MAX,
        ),
    ] = None,
) -> Response[Any]:
    """The cache of the key, or of a prefix; `Tenure-Cache-Key` is its key, percent-encoded. 404 CACHE_NOT_FOUND if there is none. A
    `Range` of bytes may be asked for."""
    found = await request.server.storage.find_cache(await check_lease(request, lease_id), key, fallback or ())
    return send_file(request, found.file, {p.CACHE_KEY_HEADER: quote(found.key, safe="")})


@post(
    "/runner/leases/{lease_id:str}/report",
    status_code=200,
    summary="Send a test report",
    request_max_body_size=TEST_REPORT_BYTES_MAX,
)
async def send_report(
    request: ApiRequest, lease_id: FromPath[str], data: JSONBody[TestReport]
) -> p.ReportReply:
    """What the tests of the job reported. An attempt sends one report; the same again changes nothing."""
    return p.ReportReply(
        late=await request.server.storage.save_report(await check_lease(request, lease_id), data)
    )


@post("/runner/leases/{lease_id:str}/test-history", status_code=200, summary="The history of tests")
async def get_test_history(
    request: ApiRequest, lease_id: FromPath[str], data: JSONBody[p.HistoryRequest]
) -> p.HistoryReply:
    """Of these tests, those that have failed before in this repository, with how often they failed and passed."""
    credential = await check_lease(request, lease_id)
    return p.HistoryReply(tests=await request.server.storage.read_histories(credential, data.tests))


HANDLERS = [
    append_log,
    begin_upload,
    put_part,
    complete_upload,
    download_needed,
    download_cache,
    send_report,
    get_test_history,
]
