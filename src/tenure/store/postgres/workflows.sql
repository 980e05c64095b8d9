-- Registered workflows; see tenure.store.workflows.

-- name: save_workflow
-- A version never changes, except the definition of a `code` workflow.
insert into tenure.workflow as w ({workflow})
values ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $9::bigint, $7::text, $8::text)
on conflict (tenant, name, version) do update set
    definition = excluded.definition, digest = excluded.digest, registered_at = excluded.registered_at,
    registered_by = excluded.registered_by, unconfirmed = trim(w.unconfirmed || ' ' || excluded.unconfirmed)
where w.kind = 'code' and excluded.kind = 'code' and w.digest <> excluded.digest
returning {w.workflow}

-- name: workflows_of
select {workflow} from tenure.workflow where tenant = $1 and name > $2 order by name, version limit $3

-- name: workflows_page
select {w.workflow} from tenure.workflow w
where w.tenant in ($1, $2) and (w.name, w.version) > ($3, $4) and (w.tenant = $1 or not exists (
    select from tenure.workflow o where o.tenant = $1 and o.name = w.name and o.version = w.version))
order by w.name, w.version limit $5

-- name: workflow_named
select {workflow} from tenure.workflow where tenant = $1 and name = $2 order by registered_at desc, version desc
