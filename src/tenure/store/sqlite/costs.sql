-- What runs have spent, in total; see tenure.store.costs.

-- name: cost_totals
-- The index finds the days. The sum has two parts, because SQLite's sum() fails if it overflows; a total that does not fit is
-- the largest number.
select
    case when ?4 = 'workflow' then workflow else '' end as the_workflow,
    case when ?4 in ('provider', 'model') then provider else '' end as the_provider,
    case when ?4 = 'model' then model else '' end as the_model,
    case when ?4 = 'day' then day else 0 end as the_day,
    currency, count(distinct run_id),
    cast(sum(calls / 1000000) * 1000000 + sum(calls % 1000000) as integer),
    cast(sum(tokens_in / 1000000) * 1000000 + sum(tokens_in % 1000000) as integer),
    cast(sum(tokens_out / 1000000) * 1000000 + sum(tokens_out % 1000000) as integer),
    cast(sum(micros / 1000000) * 1000000 + sum(micros % 1000000) as integer) as money
from cost_line
where tenant = ?1 and day between ?2 and ?3
group by 1, 2, 3, 4, 5
order by the_day desc, money desc, 1, 2, 3, 5 limit ?5
