"""A tenant may reference its own secrets and nothing else that the server can read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.errors import TenureError
from tenure.secrets import REFERENCE_FORM, Secrets
from tests.server.stage import problem, site
from tests.server.webhook_senders import (
    REFERENCE,
    SECRET,
    SECRET_NAME,
    GitHub,
    Sender,
    make_hook,
    pull_request,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with secrets of two tenants, a file outside of it, and symbolic links."""
    made = tmp_path / "secrets"
    for tenant in ("acme", "globex"):
        (made / tenant / "deep").mkdir(parents=True)
        (made / tenant / "hook").write_text(f"{tenant}'s\n")
        (made / tenant / "deep" / "hook").write_text(f"{tenant}'s, deep")
    (tmp_path / "shadow").write_text("nobody's")
    (made / "acme" / "out").symlink_to(tmp_path / "shadow")
    (made / "acme" / "over").symlink_to(made / "globex" / "hook")
    (made / "acme" / "within").symlink_to(made / "acme" / "deep" / "hook")
    (made / "acme" / "round").symlink_to(made / "acme" / "round")
    (made / "acme" / "elsewhere").symlink_to(tmp_path)
    return made


def refused(secrets: Secrets, reference: str, tenant: str = "acme") -> bool:
    """Whether a reference is refused."""
    try:
        secrets.resolve(reference, tenant)
    except TenureError as fault:
        return fault.code == "SECRET_UNAVAILABLE"
    return False


def test_a_tenant_reads_only_files_in_its_own_folder(folder: Path) -> None:
    ours = Secrets(folder=str(folder))
    assert ours.resolve(f"file:{folder}/acme/hook", "acme") == b"acme's"
    assert ours.resolve(f"file:{folder}/acme/deep/hook", "acme") == b"acme's, deep"
    assert ours.resolve(f"file:{folder}/acme/within", "acme") == b"acme's, deep"
    for where in ("out", "over", "round", "elsewhere/shadow", "deep", "none"):
        assert refused(ours, f"file:{folder}/acme/{where}"), where
    for where in (
        f"{folder}/globex/hook",
        f"{folder}/acme/../globex/hook",
        f"{folder}/acme/./hook",
        f"{folder}//acme/hook",
        f"/{folder}/acme/hook",
        f"{folder}/acme",
        f"{folder}/acme/",
        f"{folder}",
        f"{folder}/acmee/hook",
        f"{folder.parent}/shadow",
        "/etc/passwd",
    ):
        assert ours.problem(f"file:{where}", "acme") is not None, where
        assert refused(ours, f"file:{where}"), where
    assert refused(Secrets(), f"file:{folder}/acme/hook"), "without a folder, file references are refused"


def test_a_tenant_folder_outside_of_the_secrets_is_ignored(folder: Path) -> None:
    (folder / "initech").symlink_to(folder.parent)
    assert refused(Secrets(folder=str(folder)), f"file:{folder}/initech/shadow", "initech")


def test_a_tenant_reads_only_variables_with_its_own_prefix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = Secrets()
    for name in ("TENURE_SECRET_acme_A", "TENURE_SECRET_acme_eu_A", "TENURE_SECRET_A", "TENURE_DB", "A"):
        monkeypatch.setenv(name, name)
    assert ours.resolve("env:TENURE_SECRET_acme_A", "acme") == b"TENURE_SECRET_acme_A"
    for name in ("TENURE_SECRET_A", "TENURE_DB", "A", "HOME", "TENURE_SECRET_ACME_A", "TENURE_SECRET_acme"):
        assert refused(ours, f"env:{name}"), name
    # The variables of a tenant `acme_eu` would also belong to the tenant `acme`.
    assert refused(ours, "env:TENURE_SECRET_acme_eu_A", "acme_eu")
    assert "env:" not in (ours.problem("env:TENURE_SECRET_acme_eu_A", "acme_eu") or "")


def test_shared_secrets_are_available_to_all_tenants(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Secrets(folder=str(folder), shared=True)
    monkeypatch.setenv("TENURE_SECRET_A", "a")
    assert shared.resolve("env:TENURE_SECRET_A", "acme") == b"a"
    assert shared.resolve(f"file:{folder}/globex/hook", "acme") == b"globex's"
    assert refused(shared, f"file:{folder}/acme/out")
    assert refused(shared, f"file:{folder.parent}/shadow")
    assert refused(shared, "env:HOME")


def test_an_invalid_reference_is_not_repeated_in_errors() -> None:
    assert Secrets(shared=True).problem("hunter2", "acme") == REFERENCE_FORM


@pytest.mark.parametrize(
    "reference", ["env:HOME", "env:TENURE_SECRET_globex_HOOK", "file:/etc/hostname", "file:/acme/../hook"]
)
async def test_hooks_and_webhooks_may_name_only_secrets_of_their_tenant(url: str, reference: str) -> None:
    async with site(url, secrets_folder="/acme") as s:
        admin = await s.as_("admin")
        hook = {"kind": "github", "name": "h", "secrets": [REFERENCE, reference]}
        hooks = {detail["path"] for detail in await _wrong(admin.post("/hooks", json=hook))}
        assert hooks == {"secrets[1]"}
        webhook = {"url": "https://example.com/", "secret": reference}
        [detail] = await _wrong(admin.post("/webhooks", json=webhook))
        assert detail["path"] == "secret"
        assert "env:TENURE_SECRET_acme_NAME" in detail["problem"]
        made = await make_hook(s, "github")
        changed = {"name": "h", "secrets": [reference], "revision": 1}
        assert await _wrong(admin.put(f"/hooks/{made['id']}", json=changed))


async def _wrong(asked) -> list[dict[str, str]]:  # type: ignore[no-untyped-def]  # an awaitable request
    answer = await asked
    assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT")
    details: list[dict[str, str]] = answer.json()["error"]["details"]
    return details


async def test_an_existing_hook_cannot_use_a_secret_of_another_tenant(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook from before the separation of tenants is checked again when its secret is used."""
    monkeypatch.setenv("TENURE_SECRET_OURS", SECRET)
    async with site(url, secrets_shared=True) as s:
        made = await make_hook(s, "github", secrets=["env:TENURE_SECRET_OURS"])
        fine = await GitHub(s, made["id"]).deliver("ping", pull_request(7))
        assert fine.status_code == 200
    async with site(url) as s:
        answer = await GitHub(s, made["id"]).deliver("ping", pull_request(7))
        assert (answer.status_code, problem(answer)) == (500, "SECRET_UNAVAILABLE")


@pytest.mark.parametrize("secret", ["whsec_", "whsec_ "])
async def test_an_empty_secret_admits_nobody(url: str, monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    monkeypatch.setenv(SECRET_NAME, secret)
    async with site(url) as s:
        made = await make_hook(s, "generic")
        answer = await Sender(s, made["id"], secret=b"").send({"a": 1})
        assert (answer.status_code, problem(answer)) == (500, "SECRET_UNAVAILABLE")
