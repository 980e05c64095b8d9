"""The installation's operator: tenants, their first admins, their caps, and the audit chain."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tenure.doctor.examination import examine_database
from tenure.doctor.tenant_checks import find_broken_chains
from tenure.errors import TenureError
from tenure.kernel.identity_rows import AdminEventRow
from tenure.store.identity import next_admin_event
from tenure.store.port import Store
from tests.server.stage import ACME, problem, site


async def test_a_new_tenant_gets_its_first_admin(url: str) -> None:
    async with site(url) as s:
        operator = await s.caller(await s.operator_key())
        made = await operator.post("/admin/tenants", json={"id": "initech", "name": "Initech"})
        assert made.status_code == 201
        assert made.json()["closed_at"] is None
        invited = (
            await operator.post("/admin/tenants/initech/people", json={"id": "bill", "name": "Bill"})
        ).json()
        assert invited["person"]["roles"] == ["admin"]
        stranger = await s.caller()
        enrolled = await stranger.post("/enrolments", json={"code": invited["enrolment"]["code"]})
        bill = await s.caller(enrolled.json()["key"]["key"])
        assert (await bill.get("/people")).json()["items"][0]["id"] == "bill"
        assert (await bill.post("/clients", json={"name": "bot", "roles": ["operator"]})).status_code == 201
        # The installation's operator is no admin of the tenant, and bill is no operator of the installation.
        assert problem(await operator.get("/people")) == "FORBIDDEN"
        assert problem(await bill.get("/admin/tenants")) == "FORBIDDEN"
        lines = (await bill.get("/audit")).json()["items"]
        assert [line["kind"] for line in lines] == [
            "client.created", "person.enrolled", "person.invited", "person.created",
        ]  # fmt: skip
        assert lines[-1]["actor"] == "operator:operator"
        assert "Bill" not in str(lines)


async def test_the_keys_of_a_closed_tenant_work_again_after_it_is_reopened(url: str) -> None:
    async with site(url) as s:
        operator = await s.caller(await s.operator_key())
        viewer, other = await s.as_("viewer"), await s.as_("viewer", tenant="globex")
        assert (await viewer.get("/session")).status_code == 200
        for _ in range(2):
            assert (await operator.delete(f"/admin/tenants/{ACME}")).status_code == 204
        assert problem(await viewer.get("/session")) == "UNAUTHENTICATED"
        assert (await other.get("/session")).status_code == 200
        answer = await operator.post(f"/admin/tenants/{ACME}/people", json={"name": "X"})
        assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT")
        opened = await operator.put(f"/admin/tenants/{ACME}", json={"name": "Acme Ltd", "closed": False})
        assert (opened.json()["name"], opened.json()["closed_at"]) == ("Acme Ltd", None)
        assert (await viewer.get("/session")).status_code == 200
        kinds = [line["kind"] for line in (await operator.get("/admin/audit")).json()["items"]]
        assert kinds[:3] == ["tenant.opened", "tenant.renamed", "tenant.closed"]


async def test_a_closed_tenant_starts_no_runs_and_sends_no_webhooks(url: str) -> None:
    async with site(url) as s:
        operator, store = await s.caller(await s.operator_key()), s.engine.store
        acme = s.engine.scoped(tenant=ACME)
        await acme.schedules.create("nightly", "w", "30 2 * * *", plan=[{"name": "a"}])
        later = (1 << 62) - 1
        assert len(await store.read("schedules_due", later, 10)) == 1
        await operator.delete(f"/admin/tenants/{ACME}")
        assert await store.read("schedules_due", later, 10) == []
        await operator.put(f"/admin/tenants/{ACME}", json={"name": "Acme", "closed": False})
        assert len(await store.read("schedules_due", later, 10)) == 1


async def test_tenants_are_listed_and_invalid_ones_refused(url: str) -> None:
    async with site(url) as s:
        operator = await s.caller(await s.operator_key())
        for n in range(3):
            await operator.post("/admin/tenants", json={"id": f"t{n}", "name": f"T {n}"})
        first = (await operator.get("/admin/tenants", params={"limit": 2})).json()
        rest = (await operator.get("/admin/tenants", params={"cursor": first["next_cursor"]})).json()
        assert [t["id"] for page in (first, rest) for t in page["items"]] == ["t2", "t1", "t0", ACME]
        again = await operator.post("/admin/tenants", json={"id": "t0", "name": "T"})
        assert (again.status_code, problem(again)) == (409, "ALREADY_EXISTS")
        for body in (
            {},
            {"id": "", "name": "x"},
            {"id": "a/b", "name": "x"},
            {"id": "x"},
            {"id": "x", "name": ""},
        ):
            answer = await operator.post("/admin/tenants", json=body)
            assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT"), body
        for path in ("/admin/tenants/none", "/admin/tenants/%00", "/admin/tenants/none/caps"):
            answer = await operator.get(path)
            assert (answer.status_code, problem(answer)) == (404, "TENANT_NOT_FOUND")


async def test_caps_are_replaced_as_a_whole(url: str) -> None:
    async with site(url) as s:
        operator = await s.caller(await s.operator_key())
        path = f"/admin/tenants/{ACME}/caps"
        none = {"weight": 1, "max_concurrency": None, "max_runs_per_min": None, "max_writes_per_run": None}
        assert (await operator.get(path)).json() == {"tenant": none, "workspaces": {}, "workflows": {}}
        wanted = {
            "tenant": {"weight": 3, "max_concurrency": 10},
            "workspaces": {"lab": {"weight": 2}},
            "workflows": {"build": {"max_runs_per_min": 60, "max_concurrency": 0, "max_writes_per_run": 5}},
        }
        caps = (await operator.put(path, json=wanted)).json()
        assert caps == (await operator.get(path)).json()
        assert caps["tenant"] == {**none, "weight": 3, "max_concurrency": 10}
        assert caps["workspaces"] == {"lab": {**none, "weight": 2}}
        assert caps["workflows"]["build"]["max_runs_per_min"] == 60
        assert caps["workflows"]["build"]["max_writes_per_run"] == 5
        await operator.put(path, json={"workspaces": {"lab": {"max_concurrency": 1}}})
        caps = (await operator.get(path)).json()
        assert (caps["tenant"], caps["workflows"]) == (none, {})
        assert caps["workspaces"] == {"lab": {**none, "max_concurrency": 1}}
        lines = (await operator.get("/admin/audit")).json()["items"]
        assert [line["kind"] for line in lines[:2]] == ["tenant.caps_set"] * 2
        assert lines[0]["about"]["caps"]["ws:lab"] == [1, 1, None, None]
        wrongs: list[dict[str, object]] = [
            {"tenant": {"weight": 0}}, {"tenant": {"max_concurrency": -1}}, {"tenant": {"max_concurrency": 2**31}},
            {"workflows": {"": {}}}, {"workflows": {"a\u0000": {}}}, {"workflows": {"x" * 201: {}}}, {"queues": {}},
            {"workspaces": {str(n): {} for n in range(1001)}},
        ]  # fmt: skip
        for wrong in wrongs:
            answer = await operator.put(path, json=wrong)
            assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT"), wrong


async def test_a_cap_is_enforced(url: str) -> None:
    async with site(url) as s:
        operator = await s.caller(await s.operator_key())
        await operator.put(f"/admin/tenants/{ACME}/caps", json={"tenant": {"max_runs_per_min": 1}})
        engine = s.engine.scoped(tenant=ACME)
        await engine.create("w", [{"name": "a"}])
        with pytest.raises(TenureError) as refused:
            await engine.create("w", [{"name": "a"}])
        assert refused.value.code == "TENANT_RATE_LIMITED"


async def test_the_audit_chain_is_paged_and_a_changed_entry_is_found(url: str) -> None:
    async with site(url) as s:
        admin = await s.as_("admin")
        for n in range(5):
            await admin.post("/clients", json={"id": f"c{n}", "name": "C", "roles": ["viewer"]})
        seen, cursor = [], None
        while True:
            params = {"limit": 3, **({"cursor": cursor} if cursor else {})}
            page = (await admin.get("/audit", params=params)).json()
            seen += [line["seq"] for line in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert seen == sorted(seen, reverse=True)
        assert seen[-1] == 1
        assert len(seen) >= 7
        other = await s.as_("admin", tenant="globex")
        assert {line["about"].get("client") for line in (await other.get("/audit")).json()["items"]} == {None}

        lines: list[AdminEventRow] = await s.engine.store.read("admin_events_after", ACME, 0, 100)
        assert await find_broken_chains(s.engine.store) == []
        old = lines[3]
        careless = msgspec.structs.replace(old, actor="client:nobody")
        careful = next_admin_event(lines[2], ACME, old.kind, old.at, "client:nobody", old.body)
        for forged, at in ((careless, old.seq), (careful, old.seq + 1)):
            tampered = TamperedStore(s.engine.store, old, forged)
            assert await find_broken_chains(tampered) == [(ACME, at)]
            [found] = (await examine_database(tampered)).violations
            assert (found.number, found.row) == ("I51", "tenant acme")


class TamperedStore:
    """A store in which one audit entry was changed by hand."""

    def __init__(self, store: Store, old: AdminEventRow, forged: AdminEventRow) -> None:
        self._store, self._old, self._forged = store, old, forged

    async def read(self, name: str, *values: Any, rows: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
        found = await self._store.read(name, *values, rows=rows)
        return [self._forged if row == self._old else row for row in found]
