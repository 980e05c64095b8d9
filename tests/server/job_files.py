"""A CI job by hand: a run of `ci.job` steps, its leases, and requests of a runner about its files."""

from hashlib import sha256
from typing import Any

import httpx

from tests.server.stage import Site
from tests.server.test_runner_leases import claim

NONCE = "0123456789abcdef"
COMMIT = "c" * 40


def digest(body: bytes) -> str:
    return f"sha256:{sha256(body).hexdigest()}"


def job(scope: str = "trusted:web", commit: str = COMMIT) -> dict[str, Any]:
    """The input of a job, as a planner makes it."""
    return {
        "checkout": {"repository": "web", "url": "https://example.com/web.git", "commit": commit},
        "commands": [{"run": ["true"]}],
        "scope": scope,
    }


def step(name: str = "build", *needs: str, **how: Any) -> dict[str, Any]:
    return {"name": name, "tool": "ci.job", "needs": list(needs), "input": job(), "retries": 2, **how}


async def start(s: Site, *steps: dict[str, Any]) -> str:
    return await s.engine.scoped(tenant="acme").create("ci", list(steps) or [step()], profile="delta-ci")


class JobLease:
    """A lease of a job, with requests about its files."""

    def __init__(self, lease: dict[str, Any], http: httpx.AsyncClient) -> None:
        self.lease = lease
        self.http = http
        self.path = f"/runner/leases/{lease['id']}"
        self._seq = 0

    async def say(self, verb: str, **what: Any) -> httpx.Response:
        self._seq += 1
        return await self.http.post(f"{self.path}/{verb}", json={"seq": self._seq, **what})

    async def log(self, seq: int, offset: int, body: bytes, stated: str | None = None) -> httpx.Response:
        headers = {"Tenure-Digest": digest(body) if stated is None else stated}
        return await self.http.put(
            f"{self.path}/log-chunks/{seq}", params={"offset": offset}, content=body, headers=headers
        )

    async def begin(
        self, name: str, kind: str = "artifact", nonce: str = NONCE, **how: Any
    ) -> httpx.Response:
        body = {"kind": kind, "name": name, "nonce": nonce, **how}
        return await self.http.post(f"{self.path}/uploads", json=body)

    async def part(self, upload: str, no: int, body: bytes) -> httpx.Response:
        headers = {"Tenure-Digest": digest(body)}
        return await self.http.put(f"{self.path}/uploads/{upload}/parts/{no}", content=body, headers=headers)

    async def complete(self, upload: str, name: str, *parts: bytes, kind: str = "artifact") -> httpx.Response:
        digests = [digest(part) for part in parts]
        whole = (
            digests[0]
            if len(parts) == 1
            else f"sha256-parts:{sha256(chr(10).join(digests).encode()).hexdigest()}"
        )
        size = sum(map(len, parts))
        body = {"kind": kind, "name": name, "parts": len(parts), "size": size, "digest": whole}
        return await self.http.post(f"{self.path}/uploads/{upload}/complete", json=body)

    async def upload(
        self, name: str, *parts: bytes, kind: str = "artifact", nonce: str = NONCE, **how: Any
    ) -> httpx.Response:
        """A whole upload."""
        begun = (await self.begin(name, kind, nonce, **how)).json()
        if begun.get("exists"):
            return httpx.Response(200, json={"kept": False})
        for no, body in enumerate(parts, start=1):
            assert (await self.part(begun["upload"], no, body)).status_code == 200
        return await self.complete(begun["upload"], name, *parts, kind=kind)

    async def cache(self, key: str, *fallback: str) -> httpx.Response:
        return await self.http.get(f"{self.path}/caches", params={"key": key, "fallback": list(fallback)})

    async def report(self, **report: Any) -> httpx.Response:
        return await self.http.post(f"{self.path}/report", json=report)

    async def history(self, *tests: str) -> dict[str, Any]:
        answer = await self.http.post(f"{self.path}/test-history", json={"tests": tests})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["tests"]
        return found


_claims = iter(range(1_000_000))


async def lease(s: Site, tenant: str = "acme") -> JobLease:
    """Claim the next job, as soon as there is one."""
    runner = await s.as_("runner", tenant=tenant)
    (found,) = await claim(
        runner, f"job-{next(_claims)}", capabilities=["default|tool:ci.job"], max=1, ack=True, wait_s=20
    )
    return JobLease(found, await s.caller(found["token"]))
