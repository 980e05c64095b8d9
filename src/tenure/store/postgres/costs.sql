-- What runs have spent, in total; see tenure.store.costs.

-- name: cost_totals
-- A total that does not fit is the largest number.
select
    case when $4::text = 'workflow' then workflow else '' end as the_workflow,
    case when $4::text in ('provider', 'model') then provider else '' end as the_provider,
    case when $4::text = 'model' then model else '' end as the_model,
    case when $4::text = 'day' then day else 0 end as the_day,
    currency, count(distinct run_id), least(sum(calls), 9223372036854775807)::bigint, least(sum(tokens_in), 9223372036854775807)::bigint,
    least(sum(tokens_out), 9223372036854775807)::bigint, least(sum(micros), 9223372036854775807)::bigint as money
from tenure.cost_line
where tenant = $1::text and day between $2::integer and $3::integer
group by 1, 2, 3, 4, 5
order by the_day desc, money desc, 1, 2, 3, 5 limit $5::integer
