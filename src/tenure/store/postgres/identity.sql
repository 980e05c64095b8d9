-- Tenants, clients, people, keys, sessions and the admin chain; see tenure.store.identity.

-- name: key_owner
-- A key without its owner counts as closed.
select k.id, k.tenant, k.owner_kind, k.owner_id, k.hash, k.roles,
    least(k.expires_at, k.replaced_until), k.revoked_at, k.used_at,
    coalesce(c.roles, p.roles, '[]'), coalesce(p.groups, '[]'), c.owner,
    k.owner_kind <> 'operator'
        and (coalesce(t.closed_at, c.closed_at, p.closed_at) is not null or (c.id is null and p.id is null)),
    concat_ws(' ', nullif(k.unconfirmed, ''), nullif(coalesce(c.unconfirmed, p.unconfirmed), '')), $2::bigint
from tenure.api_key k
left join tenure.tenant t on t.id = k.tenant
left join tenure.client c on k.owner_kind = 'client' and c.tenant = k.tenant and c.id = k.owner_id
left join tenure.person p on k.owner_kind = 'person' and p.tenant = k.tenant and p.id = k.owner_id
where k.id = $1

-- name: tenants_before
select {tenant} from tenure.tenant
where created_at < $1 or (created_at = $1 and id < $2) order by created_at desc, id desc limit $3

-- name: clients_before
select {client} from tenure.client
where tenant = $1 and (created_at < $2 or (created_at = $2 and id < $3)) order by created_at desc, id desc limit $4

-- name: people_before
select {person} from tenure.person
where tenant = $1 and (created_at < $2 or (created_at = $2 and id < $3)) order by created_at desc, id desc limit $4

-- name: keys_before
-- The keys of one owner, or (with an empty kind) of all.
select {api_key} from tenure.api_key
where tenant = $1 and (created_at < $2 or (created_at = $2 and id < $3))
    and ($5::text = '' or (owner_kind = $5 and owner_id = $6::text))
order by created_at desc, id desc limit $4

-- name: keys_owned
select {api_key} from tenure.api_key where tenant = $1 and owner_kind = $2 and owner_id = $3 order by id

-- name: person_of_slack
select {person} from tenure.person where tenant = $1 and slack = $2

-- name: person_of_github
select {person} from tenure.person where tenant = $1 and github = $2

-- name: person_enrolling
select {person} from tenure.person where enrol_hash = $1

-- name: admin_events_before
select {admin_event} from tenure.admin_event where tenant = $1 and seq < $2 order by seq desc limit $3

-- name: admin_chains
select distinct tenant from tenure.admin_event order by tenant

-- name: tenant_named
select {tenant} from tenure.tenant where id = $1

-- name: client_named
select {client} from tenure.client where tenant = $1 and id = $2

-- name: person_named
select {person} from tenure.person where tenant = $1 and id = $2

-- name: key_named
select {api_key} from tenure.api_key where tenant = $1 and id = $2

-- name: session_named
select {session} from tenure.session where hash = $1

-- name: admin_events_after
select {admin_event} from tenure.admin_event where tenant = $1 and seq > $2 order by seq limit $3

-- name: admin_head
select {admin_event} from tenure.admin_event where tenant = $1 order by seq desc limit 1

-- name: save_tenant
insert into tenure.tenant ({tenant})
values ($1::text, $2::text, $3::text, $4::bigint, $5::bigint)
on conflict (id) do update set
    name = excluded.name, settings = excluded.settings, created_at = excluded.created_at, closed_at = excluded.closed_at
returning {tenant}

-- name: save_client
insert into tenure.client ({client})
values ($1::text, $2::text, $3::text, $4::text, $5::text, $6::bigint, $7::bigint, $8::integer, $9::text)
on conflict (tenant, id) do update set
    name = excluded.name, roles = excluded.roles, owner = excluded.owner, created_at = excluded.created_at,
    closed_at = excluded.closed_at, revision = excluded.revision, unconfirmed = excluded.unconfirmed
returning {client}

-- name: save_person
insert into tenure.person ({person})
values ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::bytea, $8::bigint, $9::bigint, $10::bigint, $11::text, $12::integer, $13::text, $14::text)
on conflict (tenant, id) do update set
    name = excluded.name, roles = excluded.roles, groups = excluded.groups, slack = excluded.slack, enrol_hash = excluded.enrol_hash, enrol_until = excluded.enrol_until, created_at = excluded.created_at, closed_at = excluded.closed_at, github = excluded.github, revision = excluded.revision, unconfirmed = excluded.unconfirmed, enrol_by = excluded.enrol_by
returning {person}

-- name: save_api_key
insert into tenure.api_key ({api_key})
values ($1::text, $2::text, $3::text, $4::text, $5::text, $6::bytea, $7::text, $8::text, $9::bigint, $10::bigint, $11::bigint, $12::bigint, $13::bigint, $14::text)
on conflict (id) do update set
    tenant = excluded.tenant, owner_kind = excluded.owner_kind, owner_id = excluded.owner_id, name = excluded.name, hash = excluded.hash, roles = excluded.roles, created_by = excluded.created_by, created_at = excluded.created_at, expires_at = excluded.expires_at, revoked_at = excluded.revoked_at, used_at = excluded.used_at, replaced_until = excluded.replaced_until, unconfirmed = excluded.unconfirmed
returning {api_key}

-- name: save_session
insert into tenure.session ({session})
values ($1::bytea, $2::text, $3::text, $4::bigint, $5::bigint)
on conflict (hash) do update set
    key_id = excluded.key_id, tenant = excluded.tenant, created_at = excluded.created_at, expires_at = excluded.expires_at
returning {session}

-- name: delete_session
delete from tenure.session where hash = $1 returning {session}

-- name: delete_expired_sessions
delete from tenure.session where expires_at < $1 returning {session}

-- name: touch_key
-- Writes nothing if this hour, or a later one, is written already.
update tenure.api_key set used_at = $2::bigint where id = $1 and (used_at is null or used_at < $2) returning {api_key}

-- name: save_slack_code
insert into tenure.slack_code ({slack_code}) values ($1::bytea, $2::text, $3::text, $4::bigint) returning {slack_code}

-- name: take_slack_code
-- A code is valid once: if it is used twice at the same time, one of them succeeds.
delete from tenure.slack_code where hash = $1 and tenant = $2 and expires_at > $3 returning {slack_code}

-- name: save_account_link
insert into tenure.account_link ({account_link}) values ($1::text, $2::text, $3::text, $4::bigint)
on conflict (tenant, account, person) do update set linked_at = excluded.linked_at
returning {account_link}

-- name: account_links_of
select {account_link} from tenure.account_link where tenant = $1 and account = $2 order by person

-- name: delete_expired_slack_codes
delete from tenure.slack_code where expires_at <= $1 returning {slack_code}

-- name: people_unconfirmed
select id, unconfirmed from tenure.person where tenant = $1 and unconfirmed <> '' order by id

-- name: approvers_of
-- The people who may approve, with their groups.
select {person} from tenure.person where tenant = $1 and closed_at is null and roles like '%"approver"%' order by id limit $2

-- name: slack_app_of
select {slack_app} from tenure.slack_app where tenant = $1 and team = $2

-- name: slack_apps_of
select {slack_app} from tenure.slack_app where tenant = $1 order by team

-- name: save_slack_app
insert into tenure.slack_app ({slack_app}) values ($1::text, $2::text, $3::text, $4::text, $5::bigint)
on conflict (tenant, team) do update set
    secrets = excluded.secrets, registered_by = excluded.registered_by, registered_at = excluded.registered_at
returning {slack_app}

-- name: delete_slack_app
delete from tenure.slack_app where tenant = $1 and team = $2 returning {slack_app}

-- name: confirm_hook
update tenure.hook set unconfirmed = $4::text where tenant = $1 and id = $2 and revision = $3 returning {hook}

-- name: confirm_schedule
update tenure.schedule set unconfirmed = $4::text where tenant = $1 and name = $2 and revision = $3 returning {schedule}

-- name: confirm_workflow
update tenure.workflow set unconfirmed = $5::text where tenant = $1 and name = $2 and version = $3 and digest = $4
returning {workflow}

-- name: workflow_version
select {workflow} from tenure.workflow where tenant = $1 and name = $2 and version = $3

-- name: save_admin_event
insert into tenure.admin_event ({admin_event})
values ($1::text, $2::bigint, $3::text, $4::bigint, $5::text, $6::bytea, $7::bytea)
returning {admin_event}
