"""People: enrolment by a one-time code, changes by other admins only, links to Slack accounts by a code."""

import asyncio

from tenure.clock import us
from tests.server.stage import ACME, Site, problem, site


async def create_ada(s: Site, **given: object) -> str:
    """Create a person who has not enrolled yet; returns the code."""
    admin = await s.as_("admin")
    body = {"id": "ada", "name": "Ada Lovelace", "roles": ["approver"], "groups": ["release"], **given}
    assert (await admin.post("/people", json=body)).status_code == 201
    code: str = (await admin.post("/people/ada/enrolment")).json()["code"]
    return code


async def test_a_person_enrols_with_a_code_and_alone_sees_the_key(url: str) -> None:
    async with site(url) as s:
        code = await create_ada(s)
        admin, stranger = await s.as_("admin"), await s.caller()
        waiting = (await admin.get("/people/ada")).json()
        assert waiting["enrolment_until"] is not None
        answer = await stranger.post("/enrolments", json={"code": code})
        assert answer.status_code == 201
        made = answer.json()
        assert (made["tenant"], made["person"]) == (ACME, "ada")
        me = (await (await s.caller(made["key"]["key"])).get("/session")).json()
        assert (me["kind"], me["id"], me["roles"], me["groups"]) == (
            "person",
            "ada",
            ["approver"],
            ["release"],
        )
        assert (await admin.get("/people/ada")).json()["enrolment_until"] is None
        secret = made["key"]["key"].removeprefix(f"tn_{made['key']['id']}_")
        seen = [(await admin.get(path)).text for path in ("/keys", "/people", "/people/ada", "/audit")]
        assert all(secret not in text and code not in text for text in seen)
        assert "Lovelace" not in seen[-1], "the audit chain contains no names"


async def test_an_enrolment_code_works_once_even_concurrently(url: str) -> None:
    async with site(url) as s:
        code, stranger = await create_ada(s), await s.caller()
        answers = await asyncio.gather(*(stranger.post("/enrolments", json={"code": code}) for _ in range(5)))
        assert sorted(answer.status_code for answer in answers) == [201, 401, 401, 401, 401]
        refused = next(answer for answer in answers if answer.status_code == 401)
        assert problem(refused) == "ENROLMENT_INVALID"
        keys = await s.engine.store.read("keys_owned", ACME, "person", "ada")
        assert len(keys) == 1


async def test_every_invalid_code_gets_the_same_answer(url: str) -> None:
    async with site(url) as s:
        stranger, admin = await s.caller(), await s.as_("admin")
        expired = await create_ada(s)
        s.engine.store.shift_clock(us(72 * 3600 + 1))
        void = (await admin.post("/people/ada/enrolment", json={"expires_in": 3600})).json()["code"]
        (await admin.post("/people/ada/enrolment")).json()
        bodies = []
        for code in (expired, void, "tne_nothing", "x"):
            answer = await stranger.post("/enrolments", json={"code": code})
            assert (answer.status_code, problem(answer)) == (401, "ENROLMENT_INVALID")
            bodies.append(answer.text.replace(answer.headers["x-request-id"], ""))
        assert len(set(bodies)) == 1
        last = (await admin.post("/people/ada/enrolment")).json()["code"]
        await admin.delete("/people/ada")
        answer = await stranger.post("/enrolments", json={"code": last})
        assert (answer.status_code, problem(answer)) == (401, "ENROLMENT_INVALID")
        for body in ({}, {"code": ""}, {"code": 5}, {"code": "x" * 101}, {"code": "x", "tenant": "acme"}):
            answer = await stranger.post("/enrolments", json=body)
            assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT"), body


async def test_enrolling_again_ends_the_old_keys(url: str) -> None:
    async with site(url) as s:
        stranger, admin = await s.caller(), await s.as_("admin")
        first = (await stranger.post("/enrolments", json={"code": await create_ada(s)})).json()["key"]["key"]
        old = await s.caller(first)
        assert (await old.get("/session")).status_code == 200
        code = (await admin.post("/people/ada/enrolment")).json()["code"]
        assert (await old.get("/session")).status_code == 200, "the old key works until the code is used"
        second = (await stranger.post("/enrolments", json={"code": code})).json()["key"]["key"]
        assert problem(await old.get("/session")) == "UNAUTHENTICATED"
        assert (await (await s.caller(second)).get("/session")).status_code == 200


async def test_closing_a_person_stops_their_keys(url: str) -> None:
    async with site(url) as s:
        bob = await s.person("bob", "viewer")
        assert (await bob.get("/session")).status_code == 200
        admin = await s.as_("admin")
        assert (await admin.delete("/people/bob")).status_code == 204
        assert (await admin.delete("/people/bob")).status_code == 204
        assert problem(await bob.get("/session")) == "UNAUTHENTICATED"
        answer = await admin.post("/people/bob/enrolment")
        assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT")
        kinds = [line["kind"] for line in (await admin.get("/audit")).json()["items"]]
        assert kinds.count("person.closed") == 1


async def test_nobody_changes_their_own_roles_or_groups(url: str) -> None:
    async with site(url) as s:
        eve = await s.person("eve", "admin")
        for change in ({"roles": ["admin", "approver"]}, {"roles": ["admin"], "groups": ["release"]}):
            answer = await eve.put("/people/eve", json={"name": "Eve", **change})
            assert (answer.status_code, problem(answer)) == (403, "FORBIDDEN")
        renamed = await eve.put("/people/eve", json={"name": "Eve B.", "roles": ["admin"]})
        assert renamed.json()["name"] == "Eve B."
        admin = await s.as_("admin")
        given = await admin.put("/people/eve", json={"name": "Eve", "roles": ["admin", "approver"]})
        assert given.status_code == 200
        assert (await eve.get("/session")).json()["roles"] == ["admin", "approver"]


async def test_a_client_has_an_owner_who_is_a_person_of_its_tenant(url: str) -> None:
    async with site(url) as s:
        admin = await s.as_("admin")
        await s.key("viewer", tenant="globex", person="greta")
        await s.key("viewer", person="bob")
        client = {"id": "bot", "name": "Bot", "roles": ["operator"]}
        for owner in ("greta", "nobody"):
            answer = await admin.post("/clients", json={**client, "owner": owner})
            assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT")
        made = await admin.post("/clients", json={**client, "owner": "bob"})
        assert made.json()["owner"] == "bob"
        key = (await admin.post("/keys", json={"client": "bot"})).json()["key"]
        who = await s.service.authenticator.by_bearer(f"Bearer {key}".encode())
        assert who.owner == "bob"


async def test_a_slack_account_is_linked_with_a_code_from_slack(url: str) -> None:
    async with site(url) as s:
        bob, cleo = await s.person("bob", "viewer"), await s.person("cleo", "viewer")
        code = await s.identity.slack_code(ACME, "T1", "U1")
        linked = await bob.put("/me/slack", json={"code": code})
        assert linked.json()["slack"] == "T1/U1"
        found = await s.identity.find_person_by_slack(ACME, "T1", "U1")
        assert found is not None
        assert found.id == "bob"
        assert await s.identity.find_person_by_slack("globex", "T1", "U1") is None
        again = await bob.put("/me/slack", json={"code": code})
        assert (again.status_code, problem(again)) == (422, "SLACK_CODE_INVALID")

        # A new proof moves the account to the other person.
        code = await s.identity.slack_code(ACME, "T1", "U1")
        assert (await cleo.put("/me/slack", json={"code": code})).status_code == 200
        found = await s.identity.find_person_by_slack(ACME, "T1", "U1")
        assert found is not None
        assert found.id == "cleo"
        assert (await cleo.delete("/me/slack")).status_code == 204
        assert (await cleo.delete("/me/slack")).status_code == 204
        assert await s.identity.find_person_by_slack(ACME, "T1", "U1") is None
        admin = await s.as_("admin")
        kinds = [line["kind"] for line in (await admin.get("/audit")).json()["items"]]
        assert kinds[1:5] == [
            "person.slack_unlinked", "person.slack_linked", "person.slack_unlinked", "person.slack_linked",
        ]  # fmt: skip


async def test_a_slack_account_cannot_be_linked_without_its_code(url: str) -> None:
    async with site(url) as s:
        bob = await s.person("bob", "viewer")
        others = await s.identity.slack_code("globex", "T1", "U1")
        answer = await bob.put("/me/slack", json={"code": others})
        assert (answer.status_code, problem(answer)) == (422, "SLACK_CODE_INVALID")
        old = await s.identity.slack_code(ACME, "T1", "U1")
        s.engine.store.shift_clock(us(601))
        for code in (old, "tns_x"):
            answer = await bob.put("/me/slack", json={"code": code})
            assert (answer.status_code, problem(answer)) == (422, "SLACK_CODE_INVALID")
        answer = await bob.put("/me/slack", json={"team": "T1", "user": "U1"})
        assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT")
        service = await s.as_("viewer")
        code = await s.identity.slack_code(ACME, "T1", "U2")
        answer = await service.put("/me/slack", json={"code": code})
        assert (answer.status_code, problem(answer)) == (403, "FORBIDDEN")


async def test_invalid_people_and_clients_are_refused_with_their_place(url: str) -> None:
    async with site(url) as s:
        admin = await s.as_("admin")
        fine = {"name": "N", "roles": ["viewer"]}
        bad: list[dict[str, object]] = [
            {}, {"name": "N"}, {**fine, "name": ""}, {**fine, "name": " "}, {**fine, "name": "x" * 201},
            {**fine, "name": "a\nb"}, {**fine, "name": "a\u0000b"}, {**fine, "roles": []},
            {**fine, "roles": ["viewer", "viewer"]}, {**fine, "roles": ["root"]}, {**fine, "roles": "viewer"},
            {**fine, "id": ""}, {**fine, "id": "a/b"}, {**fine, "id": "a b"}, {**fine, "id": ".."},
            {**fine, "id": "x" * 65}, {**fine, "id": "é"}, {**fine, "id": "a\n"}, {**fine, "secret": "x"},
        ]  # fmt: skip
        for path in ("/people", "/clients"):
            for body in bad:
                answer = await admin.post(path, json=body)
                assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT"), (path, body)
                assert answer.json()["error"]["details"], (path, body)
        for groups in (["a", "a"], [""], ["x" * 201], ["a\u0000"], [str(n) for n in range(51)]):
            answer = await admin.post("/people", json={**fine, "groups": groups})
            assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT"), groups
        assert (await admin.post("/people", json={**fine, "id": "twice"})).status_code == 201
        for path in ("/people", "/clients"):  # people and clients share one space of ids
            answer = await admin.post(path, json={**fine, "id": "twice"})
            assert (answer.status_code, problem(answer)) == (409, "ALREADY_EXISTS")
        for seconds in (0, 59, 1e9, "soon"):
            answer = await admin.post("/people/twice/enrolment", json={"expires_in": seconds})
            assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT")
        answer = await admin.put("/people/nobody", json=fine)
        assert (answer.status_code, problem(answer)) == (404, "PERSON_NOT_FOUND")


async def test_creating_twice_under_one_key_creates_once(url: str) -> None:
    async with site(url) as s:
        admin, operator = await s.as_("admin"), await s.caller(await s.operator_key())
        for who, path, body in (
            (admin, "/people", {"name": "N", "roles": ["viewer"]}),
            (admin, "/clients", {"name": "N", "roles": ["viewer"]}),
            (operator, "/admin/tenants", {"id": "initech", "name": "Initech"}),
        ):
            first = await who.post(path, json=body, headers={"Idempotency-Key": f"once{path}"})
            again = await who.post(path, json=body, headers={"Idempotency-Key": f"once{path}"})
            assert (first.status_code, again.status_code) == (201, 201), again.text
            assert again.headers["idempotency-replayed"] == "true"
            assert (again.content, again.headers["location"]) == (first.content, first.headers["location"])
            assert (await who.get(first.headers["location"])).json() == first.json()


async def test_a_recorded_response_contains_no_secret(url: str) -> None:
    async with site(url) as s:
        admin = await s.as_("admin")
        await admin.post("/clients", json={"id": "ci", "name": "CI", "roles": ["viewer"]})
        made = [
            (await admin.post("/keys", json={"client": "ci"}, headers={"Idempotency-Key": "k"})).json()
            for _ in range(2)
        ]
        assert made[0]["key"] != made[1]["key"]
        shown = (await admin.get(f"/keys/{made[0]['id']}")).json()
        assert shown == {name: value for name, value in made[0].items() if name != "key"}
