"""Keys of clients: creation, rotation, narrower roles, expiry and revocation."""

import msgspec
import pytest

from tenure.clock import us
from tenure.kernel.identity_rows import ApiKeyRow
from tests.server.stage import ACME, Site, problem, site

FAR = "2099-01-01T00:00:00Z"


async def create_client(s: Site, *roles: str, client: str = "ci") -> None:
    admin = await s.as_("admin")
    made = await admin.post("/clients", json={"id": client, "name": "CI", "roles": list(roles)})
    assert made.status_code == 201, made.text


async def rows(s: Site) -> list[ApiKeyRow]:
    found: list[ApiKeyRow] = await s.engine.store.read("keys_owned", ACME, "client", "ci")
    return found


@pytest.mark.clause("GWI-08")
async def test_a_key_is_shown_once_and_identifies_its_client(url: str) -> None:
    async with site(url) as s:
        admin = await s.as_("admin")
        await create_client(s, "viewer", "operator")
        made = await admin.post("/keys", json={"client": "ci", "name": "laptop"})
        assert made.status_code == 201
        key = made.json()
        assert key["key"].startswith(f"tn_{key['id']}_")
        assert len(key["key"].rpartition("_")[2].encode()) <= 43
        assert (key["owner_kind"], key["owner_id"], key["name"]) == ("client", "ci", "laptop")

        ci = await s.caller(key["key"])
        me = (await ci.get("/session")).json()
        assert (me["kind"], me["id"], me["tenant"], me["key_id"]) == ("client", "ci", ACME, key["id"])
        assert me["roles"] == ["operator", "viewer"]

        listed = await admin.get("/keys", params={"client": "ci"})
        [shown] = listed.json()["items"]
        assert shown["id"] == key["id"]
        secret = key["key"].removeprefix(f"tn_{key['id']}_")
        [row] = await rows(s)
        for text in (listed.text, (await admin.get("/audit")).text, repr(row)):
            assert secret not in text
        assert row.hash.hex() not in listed.text
        assert {"key", "hash"}.isdisjoint(shown)


async def test_a_rotated_key_works_until_its_overlap_ends(url: str) -> None:
    async with site(url, key_cache_seconds=0.0) as s:
        admin = await s.as_("admin")
        await create_client(s, "viewer")
        old = (await admin.post("/keys", json={"client": "ci"})).json()
        new = (await admin.post(f"/keys/{old['id']}/rotate", json={"overlap": 3600})).json()
        assert new["id"] != old["id"]
        assert new["expires_at"] is None
        before, after = await s.caller(old["key"]), await s.caller(new["key"])
        assert (await before.get("/session")).status_code == 200
        assert (await after.get("/session")).json()["id"] == "ci"
        s.engine.store.shift_clock(us(3601))
        assert problem(await before.get("/session")) == "UNAUTHENTICATED"
        assert (await after.get("/session")).status_code == 200

        again = await admin.post(f"/keys/{old['id']}/rotate")
        assert (again.status_code, problem(again)) == (422, "INVALID_INPUT")
        third = (await admin.post(f"/keys/{new['id']}/rotate", json={"overlap": 0})).json()
        assert problem(await after.get("/session")) == "UNAUTHENTICATED"
        assert (await (await s.caller(third["key"])).get("/session")).status_code == 200


async def test_rotation_has_an_overlap_of_a_day_and_keeps_the_lifetime(url: str) -> None:
    async with site(url) as s:
        admin = await s.as_("admin")
        await create_client(s, "viewer")
        old = (await admin.post("/keys", json={"client": "ci", "expires_at": FAR})).json()
        new = (await admin.post(f"/keys/{old['id']}/rotate")).json()
        by_id = {row.id: row for row in await rows(s)}
        first, second = by_id[old["id"]], by_id[new["id"]]
        assert first.replaced_until == second.created_at + us(24 * 3600)
        assert first.expires_at is not None
        assert second.expires_at is not None
        assert first.revoked_at is None
        lifetime = first.expires_at - first.created_at
        assert second.expires_at - second.created_at == lifetime
        # A client that lost the answer rotates again.
        third = (await admin.post(f"/keys/{old['id']}/rotate", json={"overlap": 86_400 * 3})).json()
        by_id = {row.id: row for row in await rows(s)}
        again = by_id[third["id"]]
        assert again.expires_at == again.created_at + lifetime
        assert by_id[old["id"]].replaced_until == first.replaced_until, (
            "a second rotation does not extend the old key"
        )


async def test_a_key_can_have_fewer_roles_than_its_client(url: str) -> None:
    async with site(url) as s:
        admin = await s.as_("admin")
        await create_client(s, "viewer", "admin")
        made = (await admin.post("/keys", json={"client": "ci", "roles": ["viewer"]})).json()
        narrow = await s.caller(made["key"])
        assert (await narrow.get("/session")).json()["roles"] == ["viewer"]
        refused = await narrow.get("/keys")
        assert (refused.status_code, problem(refused)) == (403, "FORBIDDEN")
        wider = await admin.post("/keys", json={"client": "ci", "roles": ["approver"]})
        assert (wider.status_code, problem(wider)) == (422, "INVALID_INPUT")
        # A role that the client loses is lost for its keys, too.
        await admin.put("/clients/ci", json={"name": "CI", "roles": ["operator"]})
        assert (await narrow.get("/session")).status_code == 403


async def test_a_key_expires(url: str) -> None:
    async with site(url, key_cache_seconds=0.0) as s:
        admin = await s.as_("admin")
        await create_client(s, "viewer")
        made = (await admin.post("/keys", json={"client": "ci", "expires_at": "2090-01-01T00:00:00Z"})).json()
        ci = await s.caller(made["key"])
        assert (await ci.get("/session")).status_code == 200
        s.engine.store.shift_clock(us(70 * 365.25 * 86_400))
        assert problem(await ci.get("/session")) == "UNAUTHENTICATED"


async def test_a_revoked_key_is_refused_and_revoking_twice_is_recorded_once(url: str) -> None:
    async with site(url) as s:
        admin = await s.as_("admin")
        await create_client(s, "viewer")
        made = (await admin.post("/keys", json={"client": "ci"})).json()
        ci = await s.caller(made["key"])
        assert (await ci.get("/session")).status_code == 200
        for _ in range(2):
            assert (await admin.delete(f"/keys/{made['id']}")).status_code == 204
        assert problem(await ci.get("/session")) == "UNAUTHENTICATED"
        kinds = [line["kind"] for line in (await admin.get("/audit")).json()["items"]]
        assert kinds[:3] == ["key.revoked", "key.created", "client.created"]


async def test_a_revocation_by_another_server_applies_when_the_cache_expires(url: str) -> None:
    async with site(url, key_cache_seconds=0.0) as s:
        key = await s.key("viewer")
        ci = await s.caller(key)
        assert (await ci.get("/session")).status_code == 200
        key_id = key.split("_")[1]
        [row] = await s.engine.store.read("key_named", ACME, key_id)
        await s.identity.put(msgspec.structs.replace(row, revoked_at=5), None)
        assert problem(await ci.get("/session")) == "UNAUTHENTICATED"


async def test_closing_a_client_stops_all_its_keys(url: str) -> None:
    async with site(url) as s:
        admin = await s.as_("admin")
        await create_client(s, "viewer")
        keys = [(await admin.post("/keys", json={"client": "ci"})).json()["key"] for _ in range(2)]
        callers = [await s.caller(key) for key in keys]
        assert [(await c.get("/session")).status_code for c in callers] == [200, 200]
        assert (await admin.delete("/clients/ci")).status_code == 204
        assert [problem(await c.get("/session")) for c in callers] == ["UNAUTHENTICATED"] * 2
        assert (await admin.get("/clients/ci")).json()["closed_at"] is not None
        for answer in (
            await admin.post("/keys", json={"client": "ci"}),
            await admin.put("/clients/ci", json={"name": "x", "roles": ["viewer"]}),
        ):
            assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT")
        taken = await admin.post("/clients", json={"id": "ci", "name": "CI", "roles": ["viewer"]})
        assert (taken.status_code, problem(taken)) == (409, "ALREADY_EXISTS")


async def test_the_last_use_of_a_key_is_recorded_once_an_hour(url: str) -> None:
    async with site(url, key_cache_seconds=0.0) as s:
        admin = await s.as_("admin")
        await create_client(s, "viewer")
        made = (await admin.post("/keys", json={"client": "ci"})).json()
        assert made["used_at"] is None
        ci = await s.caller(made["key"])
        for _ in range(3):
            await ci.get("/session")
        await s.service.authenticator.close()
        [row] = await rows(s)
        assert row.used_at is not None
        assert row.used_at % us(3600) == 0
        s.engine.store.shift_clock(us(3600))
        await ci.get("/session")
        await s.service.authenticator.close()
        [later] = await rows(s)
        assert later.used_at == row.used_at + us(3600)


async def test_people_manage_their_own_keys(url: str) -> None:
    async with site(url) as s:
        key = await s.key("viewer", person="ada")
        ada = await s.caller(key)
        other = await s.key("viewer", person="bob")
        [mine] = (await ada.get("/me/keys")).json()["items"]
        assert mine["owner_id"] == "ada"
        rotated = (await ada.post(f"/me/keys/{mine['id']}/rotate", json={"overlap": 60})).json()
        fresh = await s.caller(rotated["key"])
        assert (await fresh.get("/session")).json()["id"] == "ada"
        theirs = other.split("_")[1]
        for answer in (
            await ada.delete(f"/me/keys/{theirs}"),
            await ada.post(f"/me/keys/{theirs}/rotate"),
        ):
            assert (answer.status_code, problem(answer)) == (404, "KEY_NOT_FOUND")
        assert (await fresh.delete(f"/me/keys/{mine['id']}")).status_code == 204
        assert problem(await ada.get("/me/keys")) == "UNAUTHENTICATED"
        operator = await s.caller(await s.operator_key())
        [own] = (await operator.get("/me/keys")).json()["items"]
        assert (await operator.post(f"/me/keys/{own['id']}/rotate")).status_code == 201


async def test_nobody_can_create_a_key_for_another_person(url: str) -> None:
    async with site(url) as s:
        key = await s.key("viewer", person="ada")
        admin = await s.as_("admin")
        answer = await admin.post(f"/keys/{key.split('_')[1]}/rotate")
        assert (answer.status_code, problem(answer)) == (403, "FORBIDDEN")
        answer = await admin.post("/keys", json={"person": "ada"})
        assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT")
        answer = await admin.post("/keys", json={"client": "ada"})
        assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT")
        # An admin may revoke the key.
        assert (await admin.delete(f"/keys/{key.split('_')[1]}")).status_code == 204


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"client": "nobody"},
        {"client": "ci\u0000"},
        {"client": "../ci"},
        {"client": 5},
        {"client": "ci", "roles": []},
        {"client": "ci", "roles": ["boss"]},
        {"client": "ci", "roles": ["viewer", "viewer"]},
        {"client": "ci", "name": "x" * 201},
        {"client": "ci", "name": "a\u0007b"},
        {"client": "ci", "expires_at": "2020-01-01T00:00:00Z"},
        {"client": "ci", "expires_at": "2090-01-01T00:00:00"},
        {"client": "ci", "expires_at": "soon"},
        {"client": "ci", "hash": "00"},
    ],
)
async def test_an_invalid_key_request_is_refused_with_its_place(
    tmp_path: object, body: dict[str, object]
) -> None:
    async with site(f"sqlite:{tmp_path}/site.db") as s:
        await create_client(s, "viewer")
        answer = await (await s.as_("admin")).post("/keys", json=body)
        assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT")
        assert answer.json()["error"]["details"]
        assert await rows(s) == []


async def test_invalid_rotations_and_ids_are_refused(url: str) -> None:
    async with site(url) as s:
        admin = await s.as_("admin")
        await create_client(s, "viewer")
        key = (await admin.post("/keys", json={"client": "ci"})).json()["id"]
        for overlap in (-1, 1e12, "x", None):
            answer = await admin.post(f"/keys/{key}/rotate", json={"overlap": overlap})
            assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT"), overlap
        for odd in ("nothing", "%00", "%F0%9F%98%80", "a%20b", "x" * 300, "%27%20or%201=1"):
            answer = await admin.delete(f"/keys/{odd}")
            assert (answer.status_code, problem(answer)) == (404, "KEY_NOT_FOUND"), odd
        whole = (await admin.post("/keys", json={"client": "ci"})).json()["key"]
        for asked in (admin.get(f"/keys/{whole}"), admin.post(f"/keys/{whole}/rotate", json={})):
            answer = await asked
            assert (answer.status_code, problem(answer)) == (404, "KEY_NOT_FOUND")
            assert whole.rpartition("_")[2] not in answer.text
        for listed in ({"client": "a/b"}, {"client": "a", "person": "b"}, {"limit": 0}, {"limit": 201}):
            answer = await admin.get("/keys", params=listed)
            assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT"), listed


async def test_pages_of_keys_are_bound_to_their_tenant_and_filter(url: str) -> None:
    async with site(url) as s:
        admin = await s.as_("admin")
        await create_client(s, "viewer")
        made = [(await admin.post("/keys", json={"client": "ci"})).json()["id"] for _ in range(5)]
        first = (await admin.get("/keys", params={"client": "ci", "limit": 2})).json()
        more = {"client": "ci", "limit": 2, "cursor": first["next_cursor"]}
        second = (await admin.get("/keys", params=more)).json()
        third = (await admin.get("/keys", params={**more, "cursor": second["next_cursor"]})).json()
        assert [k["id"] for page in (first, second, third) for k in page["items"]] == made[::-1]
        assert third["next_cursor"] is None
        other = await s.as_("admin", tenant="globex")
        for who, params in (
            (other, more),
            (admin, {"cursor": first["next_cursor"]}),
            (admin, {"cursor": "x"}),
        ):
            answer = await who.get("/keys", params=params)
            assert (answer.status_code, problem(answer)) == (400, "CURSOR_INVALID")


async def test_a_key_cannot_grant_more_than_it_has(url: str) -> None:
    async with site(url) as s:
        admin = await s.as_("admin")
        await create_client(s, "viewer", "admin")
        wide = (await admin.post("/keys", json={"client": "ci"})).json()
        narrow = (await admin.post("/keys", json={"client": "ci", "roles": ["viewer"]})).json()
        holder = await s.caller(narrow["key"])
        for answer in (
            await holder.post(f"/me/keys/{wide['id']}/rotate"),
            await holder.delete(f"/me/keys/{wide['id']}"),
        ):
            assert (answer.status_code, problem(answer)) == (403, "FORBIDDEN")
        rotated = (await holder.post(f"/me/keys/{narrow['id']}/rotate")).json()
        assert rotated["roles"] == ["viewer"]
        assert (await (await s.caller(wide["key"])).delete(f"/me/keys/{rotated['id']}")).status_code == 204

        short = (
            await admin.post("/keys", json={"client": "ci", "expires_at": "2090-01-01T00:00:00Z"})
        ).json()
        mine = await s.caller(short["key"])
        longer = await mine.post(
            f"/me/keys/{short['id']}/rotate", json={"expires_at": "2098-01-01T00:00:00Z"}
        )
        assert (longer.status_code, problem(longer)) == (422, "INVALID_INPUT")
        again = await mine.post(f"/me/keys/{short['id']}/rotate", json={"expires_at": "2080-01-01T00:00:00Z"})
        assert again.json()["expires_at"] == "2080-01-01T00:00:00Z"
        by_admin = await admin.post(
            f"/keys/{short['id']}/rotate", json={"expires_at": "2098-01-01T00:00:00Z"}
        )
        assert by_admin.json()["expires_at"] == "2098-01-01T00:00:00Z"
