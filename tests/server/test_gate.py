"""The gate: who gets in, and how the others are refused."""

from tests.server.stage import problem, site


async def test_a_request_without_a_credential_is_refused_in_the_one_shape(url: str) -> None:
    async with site(url) as s:
        stranger = await s.caller()
        answer = await stranger.get("/runs/run_2026-02-14_080000_abc123")
        assert (answer.status_code, problem(answer)) == (401, "UNAUTHENTICATED")
        assert (await stranger.get("/healthz")).json() == {"status": "ok"}
        assert (await stranger.get("/readyz")).status_code == 200


async def test_a_key_opens_what_its_role_may(url: str) -> None:
    async with site(url) as s:
        viewer = await s.as_("viewer")
        run = await s.engine.scoped(tenant="acme").create("w", [{"name": "a"}])
        assert (await viewer.get(f"/runs/{run}")).json()["id"] == run
        other = await s.as_("viewer", tenant="globex")
        answer = await other.get(f"/runs/{run}")
        assert (answer.status_code, problem(answer)) == (404, "RUN_NOT_FOUND")
        runner = await s.as_("runner")
        answer = await runner.get(f"/runs/{run}")
        assert (answer.status_code, problem(answer)) == (403, "FORBIDDEN")
        answer = await viewer.get("/nowhere")
        assert (answer.status_code, problem(answer)) == (404, "NOT_FOUND")
        answer = await viewer.delete("/healthz")
        assert (answer.status_code, problem(answer)) == (405, "METHOD_NOT_ALLOWED")
