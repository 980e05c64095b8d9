"""`tenure serve` and `tenure dev` as processes: addresses, output and shutdown."""

import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.apps import app

KEY = re.compile(r"tn_[a-z0-9]{12}_[A-Za-z0-9_-]{43}")
NO_SERVER = "import sys; sys.modules['litestar'] = None; from tenure.cli.main import main; main()"


def words(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tenure.cli", *arguments]


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Start a server. Yield its process and address, and stop it cleanly at the end."""
    with subprocess.Popen(
        words("serve", "--port", "0", "--grace", "20s", *arguments),
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        started = json.loads(running.stdout.readline())
        assert started["event"] == "server_started"
        try:
            yield running, started["address"]
        finally:
            if running.poll() is None:
                running.send_signal(signal.SIGTERM)
    assert running.returncode is not None


def read_log_to_end(running: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    """Read the log to its end and wait for the process."""
    assert running.stdout is not None
    lines = [json.loads(line) for line in running.stdout]
    running.wait(30)
    return lines


def start_request(address: str) -> socket.socket:
    """Start a request whose body is incomplete, so that the server waits for the rest."""
    host, port = address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    head = f"POST /enrolments HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: 2\r\n"
    connection.sendall(f"{head}expect: 100-continue\r\n\r\n".encode())
    assert b"100 Continue" in connection.recv(100)  # the server has read the head
    return connection


def test_serve_prints_its_address_as_json_and_stops_cleanly(tmp_path: Path) -> None:
    with served(tmp_path) as (running, address):
        assert httpx.get(f"{address}/healthz").json() == {"status": "ok"}
        assert httpx.get(f"{address}/readyz").json() == {"status": "ready"}
        running.send_signal(signal.SIGINT)
        assert [line["event"] for line in read_log_to_end(running)] == ["server_stopping", "server_stopped"]
    assert running.returncode == 0
    assert (tmp_path / "tenure.db").exists()


def test_a_running_request_is_finished_before_the_server_stops(tmp_path: Path) -> None:
    with served(tmp_path) as (running, address), start_request(address) as connection:
        running.send_signal(signal.SIGTERM)
        assert running.stdout is not None
        assert json.loads(running.stdout.readline())["event"] == "server_stopping"
        connection.sendall(b"{}")
        answer = connection.recv(4096)
        assert answer.startswith(b"HTTP/1.1 4")
        assert [line["event"] for line in read_log_to_end(running)] == ["server_stopped"]
    assert running.returncode == 0


def test_the_second_signal_stops_the_server_immediately(tmp_path: Path) -> None:
    with served(tmp_path) as (running, address), start_request(address):
        running.send_signal(signal.SIGTERM)
        assert running.stdout is not None
        assert json.loads(running.stdout.readline())["event"] == "server_stopping"
        running.send_signal(signal.SIGTERM)
        assert read_log_to_end(running) == []
    assert running.returncode == 128 + signal.SIGTERM


def test_several_servers_share_one_file(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-c", FIRST], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    bearer = {"Authorization": f"Bearer {made.stdout.strip()}", "Idempotency-Key": "one"}
    with served(tmp_path) as (_, here), served(tmp_path) as (_, there):
        answers = []
        for address in (here, there) * 3:
            listed = httpx.get(f"{address}/readyz", headers=bearer)
            answers.append(listed.status_code)
            assert httpx.get(f"{address}/session", headers=bearer).status_code == 200, (
                "a server does not know the key"
            )
        assert answers == [200] * 6


FIRST = """
import asyncio
from tenure.engine import Engine
from tenure.services.identity.bootstrap import create_first_tenant
async def main():
    async with Engine("sqlite:tenure.db") as engine:
        print((await create_first_tenant(engine.runtime)).person)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    "arguments", [("--host", "0.0.0.0"), ("--host", "::"), ("--tls-cert", "cert.pem")], ids=str
)
def test_listening_beyond_loopback_needs_tls_or_a_proxy(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    refused = subprocess.run(
        words("serve", *arguments), cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "LISTEN_REFUSED" in refused.stderr
    assert "--behind-proxy" in refused.stderr
    assert list(tmp_path.iterdir()) == [], "a refused command made files"


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused = subprocess.run(
            words("serve", "--port", port),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert refused.returncode == 1
    assert "LISTEN_REFUSED" in refused.stderr
    assert port in refused.stderr


TLS = Path(__file__).with_name("tls")
"""A certificate for localhost and its key, valid for a hundred years. Only these tests trust it."""


def test_the_server_serves_tls(tmp_path: Path) -> None:
    for name in ("cert.pem", "key.pem"):
        shutil.copy(TLS / name, tmp_path / name)
    with served(tmp_path, "--tls-cert", "cert.pem", "--tls-key", "key.pem") as (_, address):
        assert address.startswith("https://")
        trust = ssl.create_default_context(cafile=tmp_path / "cert.pem")
        assert httpx.get(f"{address}/readyz", verify=trust).status_code == 200
    refused = subprocess.run(
        words("serve", "--tls-cert", "key.pem", "--tls-key", "cert.pem"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert refused.returncode == 1
    assert "LISTEN_REFUSED" in refused.stderr


def test_without_the_server_extra_it_says_what_to_install(tmp_path: Path) -> None:
    refused = subprocess.run(
        [sys.executable, "-c", NO_SERVER, "serve"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert refused.returncode == 1
    assert "EXTRA_MISSING" in refused.stderr
    assert "pip install 'tenure[server]'" in refused.stderr


def test_dev_shows_the_first_keys_once_and_they_work(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(app("shop"))
    outputs: list[list[str]] = []
    keys: list[str] = []
    for _ in range(2):
        with subprocess.Popen(
            words("dev", "shop", "--port", "0", "--grace", "1s", "--no-reload"),
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        ) as running:
            assert running.stderr is not None
            lines = []
            for line in running.stderr:
                lines.append(line)
                if "never again" in line or "another key" in line:
                    break
            if "never again" in lines[-1]:
                lines += [running.stderr.readline() for _ in range(2)]
                keys = [found[0] for line in lines if (found := KEY.search(line))]
            address = next(found[1] for line in lines if (found := re.search(r"API is at (\S+);", line)))
            for key in keys:
                answer = httpx.get(f"{address}/session", headers={"Authorization": f"Bearer {key}"})
                assert answer.status_code == 200, answer.text
            running.send_signal(signal.SIGTERM)  # the watching process forwards the signal
            lines += running.stderr
            outputs.append(lines)
    assert len(keys) == 2
    assert any("tenant default was created" in line for line in outputs[0])
    assert not any(KEY.search(line) for line in outputs[1])
    assert any("tenure keys create" in line for line in outputs[1])
    for file in tmp_path.glob("tenure.db*"):
        body = file.read_bytes()
        assert not any(key.split("_", 2)[2].encode() in body for key in keys), "the database contains a key"


def test_processes_of_dev_end_with_it_even_when_it_is_killed(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(app("shop"))
    with subprocess.Popen(
        words("dev", "shop", "--port", "0", "--grace", "1s"), cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        address = next(found[1] for line in running.stderr if (found := re.search(r"API is at (\S+);", line)))
        assert httpx.get(f"{address}/healthz").status_code == 200
        running.kill()
        running.stderr.read()  # returns only when no child process has stderr open
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{address}/healthz")
