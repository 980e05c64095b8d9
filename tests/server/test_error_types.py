"""The `type` of an error is a URL that the server itself serves, without a credential."""

import pytest

from tenure.errors import CODES
from tests.server.stage import problem, site


async def test_the_type_of_an_error_is_the_url_of_its_explanation(url: str) -> None:
    async with site(url) as s:
        stranger = await s.caller()
        refused = await stranger.get("/runs")
        assert problem(refused) == "UNAUTHENTICATED"
        found = await stranger.get(refused.json()["error"]["type"])
        assert found.status_code == 200
        assert found.json()["meaning"] == CODES["UNAUTHENTICATED"].meaning
        for code in CODES:
            explanation = (await stranger.get(f"/errors/{code}")).json()
            assert (explanation["code"], explanation["status"], explanation["type"]) == (
                code,
                CODES[code].status,
                f"/errors/{code}",
            )
        listed = (await stranger.get("/errors")).json()["items"]
        assert [one["code"] for one in listed] == sorted(CODES)
        assert problem(await stranger.get("/errors/NO_SUCH_CODE")) == "NOT_FOUND"


@pytest.mark.parametrize(
    ("accept", "kind", "part"),
    [
        ("application/json", "application/json", '"code":"FROZEN"'),
        ("*/*", "application/json", '"code":"FROZEN"'),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "text/html", "<h1>FROZEN</h1>"),
        ("text/markdown", "text/markdown", "# FROZEN"),
    ],
)
async def test_the_explanation_is_served_in_the_requested_format(
    url: str, accept: str, kind: str, part: str
) -> None:
    async with site(url) as s:
        answer = await (await s.caller()).get("/errors/FROZEN", headers={"Accept": accept})
        assert answer.headers["content-type"].partition(";")[0] == kind
        assert part in answer.text
