-- Caches of repositories; see tenure.store.caches.

-- name: cache_named
select {cache_entry} from tenure.cache_entry where tenant = $1 and scope = $2 and name = $3

-- name: cache_newest
-- The newest whose key begins with $3.
select {cache_entry} from tenure.cache_entry where tenant = $1 and scope = $2 and name >= $3 and starts_with(name, $3)
order by created_at desc, name limit 1

-- name: cache_total
-- The size of a repository's caches in bytes, and their number.
select coalesce(sum(size), 0)::bigint, count(*) from tenure.cache_entry where tenant = $1 and repository = $2

-- name: caches_least_used
-- With $3, also those of trusted scopes.
select {cache_entry} from tenure.cache_entry where tenant = $1 and repository = $2 and ($3::boolean or not trusted)
order by used_at, name limit $4

-- name: save_cache
-- The first complete cache of a key is kept.
insert into tenure.cache_entry ({cache_entry}) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
on conflict (tenant, scope, name) do nothing returning {cache_entry}

-- name: touch_cache
update tenure.cache_entry set used_at = $4 where tenant = $1 and scope = $2 and name = $3 and used_at < $4
returning {cache_entry}

-- name: end_cache
-- Unless it was deleted and made again: $4 is its upload.
delete from tenure.cache_entry where tenant = $1 and scope = $2 and name = $3 and upload = $4 returning {cache_entry}
