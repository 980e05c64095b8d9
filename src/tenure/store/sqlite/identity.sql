-- Tenants, clients, people, keys, sessions and the admin chain; see tenure.store.identity.

-- name: key_owner
-- A key without its owner counts as closed.
select k.id, k.tenant, k.owner_kind, k.owner_id, k.hash, k.roles,
    coalesce(min(k.expires_at, k.replaced_until), k.expires_at, k.replaced_until), k.revoked_at, k.used_at,
    coalesce(c.roles, p.roles, '[]'), coalesce(p.groups, '[]'), c.owner,
    k.owner_kind <> 'operator'
        and (coalesce(t.closed_at, c.closed_at, p.closed_at) is not null or (c.id is null and p.id is null)),
    trim(k.unconfirmed || ' ' || coalesce(c.unconfirmed, p.unconfirmed, '')), ?2
from api_key k
left join tenant t on t.id = k.tenant
left join client c on k.owner_kind = 'client' and c.tenant = k.tenant and c.id = k.owner_id
left join person p on k.owner_kind = 'person' and p.tenant = k.tenant and p.id = k.owner_id
where k.id = ?1

-- name: tenants_before
select * from tenant
where created_at < ?1 or (created_at = ?1 and id < ?2) order by created_at desc, id desc limit ?3

-- name: clients_before
select * from client
where tenant = ?1 and (created_at < ?2 or (created_at = ?2 and id < ?3)) order by created_at desc, id desc limit ?4

-- name: people_before
select * from person
where tenant = ?1 and (created_at < ?2 or (created_at = ?2 and id < ?3)) order by created_at desc, id desc limit ?4

-- name: keys_before
-- The keys of one owner, or (with an empty kind) of all.
select * from api_key
where tenant = ?1 and (created_at < ?2 or (created_at = ?2 and id < ?3))
    and (?5 = '' or (owner_kind = ?5 and owner_id = ?6))
order by created_at desc, id desc limit ?4

-- name: keys_owned
select * from api_key where tenant = ?1 and owner_kind = ?2 and owner_id = ?3 order by id

-- name: person_of_slack
select * from person where tenant = ?1 and slack = ?2

-- name: person_of_github
select * from person where tenant = ?1 and github = ?2

-- name: person_enrolling
select * from person where enrol_hash = ?1

-- name: admin_events_before
select * from admin_event where tenant = ?1 and seq < ?2 order by seq desc limit ?3

-- name: admin_chains
select distinct tenant from admin_event order by tenant

-- name: tenant_named
select * from tenant where id = ?1

-- name: client_named
select * from client where tenant = ?1 and id = ?2

-- name: person_named
select * from person where tenant = ?1 and id = ?2

-- name: key_named
select * from api_key where tenant = ?1 and id = ?2

-- name: session_named
select * from session where hash = ?1

-- name: admin_events_after
select * from admin_event where tenant = ?1 and seq > ?2 order by seq limit ?3

-- name: admin_head
select * from admin_event where tenant = ?1 order by seq desc limit 1

-- name: save_tenant
insert into tenant values (?1, ?2, ?3, ?4, ?5)
on conflict (id) do update set
    name = excluded.name, settings = excluded.settings, created_at = excluded.created_at, closed_at = excluded.closed_at
returning *

-- name: save_client
insert into client values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
on conflict (tenant, id) do update set
    name = excluded.name, roles = excluded.roles, owner = excluded.owner, created_at = excluded.created_at,
    closed_at = excluded.closed_at, revision = excluded.revision, unconfirmed = excluded.unconfirmed
returning *

-- name: save_person
insert into person values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
on conflict (tenant, id) do update set
    name = excluded.name, roles = excluded.roles, groups = excluded.groups, slack = excluded.slack, enrol_hash = excluded.enrol_hash, enrol_until = excluded.enrol_until, created_at = excluded.created_at, closed_at = excluded.closed_at, github = excluded.github, revision = excluded.revision, unconfirmed = excluded.unconfirmed, enrol_by = excluded.enrol_by
returning *

-- name: save_api_key
insert into api_key values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
on conflict (id) do update set
    tenant = excluded.tenant, owner_kind = excluded.owner_kind, owner_id = excluded.owner_id, name = excluded.name, hash = excluded.hash, roles = excluded.roles, created_by = excluded.created_by, created_at = excluded.created_at, expires_at = excluded.expires_at, revoked_at = excluded.revoked_at, used_at = excluded.used_at, replaced_until = excluded.replaced_until, unconfirmed = excluded.unconfirmed
returning *

-- name: save_session
insert into session values (?1, ?2, ?3, ?4, ?5)
on conflict (hash) do update set
    key_id = excluded.key_id, tenant = excluded.tenant, created_at = excluded.created_at, expires_at = excluded.expires_at
returning *

-- name: delete_session
delete from session where hash = ?1 returning *

-- name: delete_expired_sessions
delete from session where expires_at < ?1 returning *

-- name: touch_key
-- Writes nothing if this hour, or a later one, is written already.
update api_key set used_at = ?2 where id = ?1 and (used_at is null or used_at < ?2) returning *

-- name: save_slack_code
insert into slack_code values (?1, ?2, ?3, ?4) returning *

-- name: take_slack_code
-- A code is valid once: if it is used twice at the same time, one of them succeeds.
delete from slack_code where hash = ?1 and tenant = ?2 and expires_at > ?3 returning *

-- name: save_account_link
insert into account_link values (?1, ?2, ?3, ?4)
on conflict (tenant, account, person) do update set linked_at = excluded.linked_at
returning *

-- name: account_links_of
select * from account_link where tenant = ?1 and account = ?2 order by person

-- name: delete_expired_slack_codes
delete from slack_code where expires_at <= ?1 returning *

-- name: people_unconfirmed
select id, unconfirmed from person indexed by person_unconfirmed where tenant = ?1 and unconfirmed <> '' order by id

-- name: approvers_of
-- The people who may approve, with their groups.
select * from person where tenant = ?1 and closed_at is null and roles like '%"approver"%' order by id limit ?2

-- name: slack_app_of
select * from slack_app where tenant = ?1 and team = ?2

-- name: slack_apps_of
select * from slack_app where tenant = ?1 order by team

-- name: save_slack_app
insert into slack_app values (?1, ?2, ?3, ?4, ?5)
on conflict (tenant, team) do update set
    secrets = excluded.secrets, registered_by = excluded.registered_by, registered_at = excluded.registered_at
returning *

-- name: delete_slack_app
delete from slack_app where tenant = ?1 and team = ?2 returning *

-- name: confirm_hook
update hook set unconfirmed = ?4 where tenant = ?1 and id = ?2 and revision = ?3 returning *

-- name: confirm_schedule
update schedule set unconfirmed = ?4 where tenant = ?1 and name = ?2 and revision = ?3 returning *

-- name: confirm_workflow
update workflow set unconfirmed = ?5 where tenant = ?1 and name = ?2 and version = ?3 and digest = ?4 returning *

-- name: workflow_version
select * from workflow where tenant = ?1 and name = ?2 and version = ?3

-- name: save_admin_event
insert into admin_event values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
returning *
