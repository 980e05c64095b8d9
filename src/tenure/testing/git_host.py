"""Git repositories over HTTP: `git http-backend` behind a small server, for tests and demonstrations.

Laws:
1. Fetches and pushes are real git. Nothing here knows git's protocol.
2. A push is reported with its ref, its old and its new commit, after git has accepted it.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import msgspec

from tenure.errors import TenureError
from tenure.private_files import make_folder

BODY_BYTES_MAX = 256 * 1024 * 1024
NO_COMMIT = "0" * 40
_ENVIRONMENT = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}


class Push(msgspec.Struct, frozen=True):
    repository: str
    ref: str
    before: str
    """`NO_COMMIT` for a new ref."""
    after: str
    """`NO_COMMIT` for a deleted ref."""


def git(folder: Path, *arguments: str, **environment: str) -> str:
    """Run git in a folder, without the user's settings. Returns what it prints."""
    done = subprocess.run(
        ("git", "-C", str(folder), *arguments),
        env={"PATH": os.environ.get("PATH", os.defpath), **_ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise TenureError("COMMAND_FAILED", f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


class GitHost:
    """Bare repositories in a folder, at `url/NAME.git`. A context manager."""

    def __init__(
        self, folder: Path, *, on_push: Callable[[Push], None] | None = None, credentials: str | None = None
    ) -> None:
        """`credentials` is the value of the header `Authorization` that every request needs."""
        self.folder = folder
        self.url = ""
        self.on_push = on_push
        self.credentials = credentials
        self._pushing = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def create(self, name: str) -> str:
        """Create an empty repository. Returns its URL."""
        path = self.folder / f"{name}.git"
        make_folder(path)
        git(path, "init", "--quiet", "--bare", "--initial-branch=main")
        git(path, "config", "http.receivepack", "true")
        git(path, "config", "uploadpack.allowAnySHA1InWant", "true")
        return f"{self.url}/{name}.git"

    def refs(self, name: str) -> dict[str, str]:
        listed = git(self.folder / f"{name}.git", "for-each-ref", "--format=%(refname) %(objectname)")
        return dict(line.split(" ", 1) for line in listed.splitlines())

    def __enter__(self) -> Self:
        make_folder(self.folder)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_GitHandler, self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def serve(self, request: dict[str, str], body: bytes) -> tuple[bytes, list[Push]]:
        """What the CGI program answers, and what was pushed."""
        name = request["PATH_INFO"].strip("/").partition(".git")[0]
        is_push = request["PATH_INFO"].endswith("/git-receive-pack")
        if not is_push:
            return self._run(request, body), []
        with self._pushing:
            before = self.refs(name)
            answer = self._run(request, body)
            after = self.refs(name)
        changed = [ref for ref in before | after if before.get(ref) != after.get(ref)]
        return answer, [
            Push(name, ref, before.get(ref, NO_COMMIT), after.get(ref, NO_COMMIT)) for ref in changed
        ]

    def _run(self, request: dict[str, str], body: bytes) -> bytes:
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            **_ENVIRONMENT,
            "GIT_PROJECT_ROOT": str(self.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            **request,
        }
        return subprocess.run(
            ("git", "http-backend"), input=body, env=environment, capture_output=True, check=True
        ).stdout


class _GitHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, host: GitHost, *connection: Any) -> None:
        self._host = host
        super().__init__(*connection)

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self._read_body()
        if self._host.credentials is not None and self.headers.get("Authorization") != self._host.credentials:
            self._send(401, {"WWW-Authenticate": 'Basic realm="git"'}, b"")
            return
        split = urlsplit(self.path)
        request = {
            "REQUEST_METHOD": self.command,
            "PATH_INFO": unquote(split.path),
            "QUERY_STRING": split.query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_USER": "git",
            "REMOTE_ADDR": "127.0.0.1",
        }
        answer, pushes = self._host.serve(request, body)
        head, _, content = answer.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
        status = int(headers.pop("Status", "200 OK").split()[0])
        self._send(status, headers, content)
        if self._host.on_push is not None:
            for push in pushes:
                self._host.on_push(push)

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(min(int(self.headers.get("Content-Length") or 0), BODY_BYTES_MAX))
        chunks: list[bytes] = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _send(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 # the name in the standard library
        """Log nothing."""
