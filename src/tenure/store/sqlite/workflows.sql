-- Registered workflows; see tenure.store.workflows.

-- name: save_workflow
-- A version never changes, except the definition of a `code` workflow.
insert into workflow values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?9, ?7, ?8
)
on conflict (tenant, name, version) do update set
    definition = excluded.definition, digest = excluded.digest, registered_at = excluded.registered_at,
    registered_by = excluded.registered_by, unconfirmed = trim(workflow.unconfirmed || ' ' || excluded.unconfirmed)
where workflow.kind = 'code' and excluded.kind = 'code' and workflow.digest <> excluded.digest
returning *

-- name: workflows_of
-- A tenant's workflows, page by page: by name and version.
select * from workflow where tenant = ?1 and name > ?2 order by name, version limit ?3

-- name: workflows_page
-- A tenant's workflows, and those for everybody unless the tenant has that name and version, after a name and a version.
select * from workflow as w
where w.tenant in (?1, ?2) and (w.name, w.version) > (?3, ?4) and (w.tenant = ?1 or not exists (
    select 1 from workflow as o where o.tenant = ?1 and o.name = w.name and o.version = w.version
))
order by w.name, w.version limit ?5

-- name: workflow_named
-- All versions of one workflow, newest first.
select * from workflow where tenant = ?1 and name = ?2 order by registered_at desc, version desc
